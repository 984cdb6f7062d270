"""Files of settings: what YAML can hold that no configuration needs."""

from __future__ import annotations

import pytest

from fedsim.config import experiments, search
from fedsim.core.errors import ConfigError

TEXTS = {
    "brackets": ("server: " + "[" * 2_000, "nested too deeply"),
    "braces": ("{a: " * 2_000, "nested too deeply"),
    "a fraction in base 60": ("train: {lr: 1" + ":10" * 300 + ".5}\n", "not a float of YAML"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_has_no_bounds_is_refused(name: str) -> None:
    text, wanted = TEXTS[name]
    with pytest.raises(ConfigError, match=wanted) as error:
        experiments.parse(text, "e.yaml")
    assert str(error.value).startswith("e.yaml")
    assert len(str(error.value)) < 300


def test_aliases_of_ordinary_size_are_read() -> None:
    found = experiments.parse("server: &s [fedgh, fedadam]\ngrid: {server: [*s, fedgh]}\n", "e")
    assert [value.label for value in found.grid[0].values] == ["fedgh,fedadam", "fedgh"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"choice({', '.join(map(str, range(1001)))})", "has 1,001 values, allowed are 1,000"),
        (f"int(0, {2**53 + 1})", "must be int.a, b. of numbers up to 9,007,199,254,740,992"),
        ("uniform(-1.0e+308, 1.0e+308)", "whose difference is a number"),
        ("choice(!!bool x)", "are no list"),
        ("choice(" + "[" * 2_000 + ")", "are no list"),
        ("choice(&a [1, 1], &b [*a, *a], &c [*b, *b])", "must hold single values"),
    ],
)
def test_a_search_has_bounds(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        search.parse(experiments.Setting(text, "--search train.lr"))
