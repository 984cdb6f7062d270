"""docs/METHODS.md and docs/TABLES.md say what the docstrings of methods and rows say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from fedsim import algorithms

DOCS = Path(__file__).resolve().parents[3] / "docs"


def module(name):
    spec = importlib.util.spec_from_file_location(f"{name}_page", DOCS / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def maker():
    return module("methods")


@pytest.mark.parametrize("name", ["methods", "tables"])
def test_the_page_is_that_of_the_docstrings(name):
    page = (DOCS / f"{name.upper()}.md").read_text()
    assert module(name).page() == page, f"run: python docs/{name}.py"


@pytest.mark.slow
def test_the_page_of_published_tables_follows_from_the_stored_values():
    page = (DOCS / "REPRODUCED.md").read_text(encoding="utf-8")
    assert module("reproduced").page() == page, "run: python docs/reproduced.py"


@pytest.mark.parametrize("name", algorithms.names())
def test_every_method_says_what_the_page_needs(maker, name):
    label, what, source = maker.title(name)
    assert source
    assert label
    assert what
    assert tuple(algorithms.fields(name)) == algorithms.FIELDS
    assert all(said for _, _, said in maker.options(name))


def test_every_method_is_in_one_group(maker):
    members = [name for _, names in maker.GROUPS.values() for name in names]
    assert sorted(members) == sorted(algorithms.names())


def test_a_bar_does_not_end_a_cell(maker):
    assert maker.table(["a"], [["x | y"]]) == ["| a |", "| --- |", "| x \\| y |"]
