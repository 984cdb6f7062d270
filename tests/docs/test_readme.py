"""The README is a page: short, with the two commands, its scope, code that runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fedsim
from fedsim.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "README.md").read_text()


def test_it_has_at_most_120_lines():
    assert len(PAGE.splitlines()) <= 120


def test_the_two_commands_are_as_ever():
    install = "python3 -m venv .venv && .venv/bin/pip install -e"
    assert f"```bash\n{install} . && .venv/bin/fedsim run\n```" in PAGE
    assert f"```bash\n{install} '.[test]' && .venv/bin/python -m pytest\n```" in PAGE


@pytest.mark.parametrize(
    "args", [("run", "--help"), ("list", "--help"), ("list", "datasets")], ids=" ".join
)
def test_commands_say_that_tasks_are_classification(args):
    text = CliRunner().invoke(main, args).output
    assert "classifi" in text


def test_pages_say_that_tasks_are_classification():
    for name, lines in (("README.md", 20), ("docs/index.md", 12), ("docs/how-to/errors.md", 199)):
        text = " ".join((ROOT / name).read_text(encoding="utf-8").splitlines()[:lines])
        assert re.search("classifi.*survival|survival.*classifi", text), name


def test_the_python_example_says_what_the_api_has():
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    settings = re.search(r"RunConfig\((.*?)\)\)", code[1])
    assert settings is not None
    config = eval(f"fedsim.RunConfig({settings[1]})", {"fedsim": fedsim})
    assert config.train.rounds == 20
    last = code[1].strip().splitlines()[-1]
    scope: dict[str, object] = {"fedsim": fedsim}
    exec(last, scope)
    # (1, 0) and (-1, 1) become (0.5, 0.5) and (0, 1), with weights 3/4 and 1/4
    np.testing.assert_allclose(scope["step"], [0.375, 0.625])
