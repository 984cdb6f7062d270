"""The templates of sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import analysis
from analysis.words import listed, say, section, sentences

SOURCES = sorted(Path(analysis.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize(("count", "runs"), [(1, "1 run"), (3, "3 runs"), (0, "0 runs")])
def test_a_count_has_the_plural_of_its_noun(count: int, runs: str) -> None:
    text = say("caption.left_out", count=count, reason="why", names="{a}")
    assert text == f"Left out: {runs} (why): {{a}}."


def test_a_text_is_one_line_whatever_its_template() -> None:
    assert all("\n" not in text for text in section("terms").values())


def test_every_text_that_the_code_names_is_there() -> None:
    keys = re.findall(r'say\(\s*"(\w+)\.(\w+)"', _sources())
    keys += [(key, "absent") for key in re.findall(r'panels\.absent\("(\w+)"\)', _sources())]
    assert len(keys) > 50
    for name, text in keys:
        say(f"{name}.{text}", **dict.fromkeys(_fields(name, text), 1))


def _sources() -> str:
    return "".join(file.read_text(encoding="utf-8") for file in SOURCES)


def _fields(name: str, text: str) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analysis.words._TEMPLATES.vformat", lambda template, *_: template)
        return re.findall(r"{(\w+)", say(f"{name}.{text}"))


def test_lists_and_sentences() -> None:
    assert sentences("A.", "", "B.") == "A. B."
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"
