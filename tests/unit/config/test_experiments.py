"""Files of settings: what YAML can hold that no configuration needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.config import experiments, search
from fedsim.config.experiments import MOST_BYTES, MOST_NODES
from fedsim.core.errors import ConfigError

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
"""Ten lists of ten lists ...: 10^12 values in 700 bytes."""
TEXTS = {
    "a list of lists by aliases": (LAUGHS + "server: *a11\n", "values, each alias counted"),
    "a search of it": (LAUGHS + "search: {train.lr: *a11}\n", "values, each alias counted"),
    "columns of it": (LAUGHS + "data: {columns: {label: *a11}}\n", "values, each alias counted"),
    "a text of it": (LAUGHS + "about: *a11\n", "values, each alias counted"),
    "a list within itself": ("server: &a [*a]\n", "values, each alias counted"),
    "a section within itself": ("train: &a {lr: *a}\n", "values, each alias counted"),
    "brackets": ("server: " + "[" * 2_000, "nested too deeply"),
    "braces": ("{a: " * 2_000, "nested too deeply"),
    "a whole number without end": ("seed: 0x" + "f" * 5000 + "\n", "bits, allowed are 1,023"),
    "it in a list": ("server: [0x" + "f" * 5000 + "]\n", "bits, allowed are 1,023"),
    "it in a grid": ("grid: {seed: [0b" + "1" * 5000 + "]}\n", "bits, allowed are 1,023"),
    "it in base 60": ("seed: 1" + ":10" * 300 + "\n", "bits, allowed are 1,023"),
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


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    with file.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(ConfigError, match=f"1,099,511,627,776 bytes, at most {MOST_BYTES:,}"):
        experiments.read(file)
    assert MOST_NODES > 10_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"choice({', '.join(map(str, range(1001)))})", "has 1,001 values, allowed are 1,000"),
        (f"int(0, {2**53 + 1})", "must be int.a, b. of numbers up to 9,007,199,254,740,992"),
        ("uniform(-1.0e+308, 1.0e+308)", "whose difference is a number"),
        ("choice(0x" + "f" * 5000 + ")", "are no list"),
        ("choice(!!bool x)", "are no list"),
        ("choice(" + "[" * 2_000 + ")", "are no list"),
        ("choice(&a [1, 1], &b [*a, *a], &c [*b, *b])", "must hold single values"),
    ],
)
def test_a_search_has_bounds(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        search.parse(experiments.Setting(text, "--search train.lr"))
