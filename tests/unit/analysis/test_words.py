"""The templates of sentences."""

from __future__ import annotations

import pytest

from analysis.words import listed, say, sentences


@pytest.mark.parametrize(("count", "runs"), [(1, "1 run"), (3, "3 runs"), (0, "0 runs")])
def test_a_count_has_the_plural_of_its_noun(count: int, runs: str) -> None:
    text = say("caption.left_out", runs={"why": ["{a}"] * count}, most=1)
    assert text.startswith(f"Left out: {runs} (why): {{a}}" if count else "")


def test_lists_and_sentences() -> None:
    assert sentences("A.", "", "B.") == "A. B."
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"
