"""docs/METHODS.md says what the docstrings of the methods say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from fedsim import algorithms

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("methods_page", DOCS / "methods.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_docstrings(maker):
    assert maker.page() == (DOCS / "METHODS.md").read_text(), "run: python docs/methods.py"


@pytest.mark.parametrize("name", algorithms.names())
def test_every_method_says_what_the_page_needs(maker, name):
    label, what, source = maker.title(name)
    assert source
    assert label
    assert what
    assert tuple(algorithms.fields(name)) == algorithms.FIELDS
    assert all(said for _, _, said in maker.options(name))


def test_a_bar_does_not_end_a_cell(maker):
    assert maker.table(["a"], [["x | y"]]) == ["| a |", "| --- |", "| x \\| y |"]
