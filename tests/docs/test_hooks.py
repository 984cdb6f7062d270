"""The pages that are made when the site is built, and the check of what a page loads."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("mkdocs", reason="needs the extra docs")

from fedsim.cli import main
from fedsim.config.sections import fields

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
hooks = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(hooks)


def test_every_key_has_a_row_with_its_default_and_range():
    lines = hooks.keys().splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    assert rows.keys() == fields().keys()
    assert rows["train.rounds"].startswith("| `train.rounds`<br>`--rounds` | 100 | ")
    assert rows["model.norm"].endswith("(`batch`, `group`) |")
    assert "| unset |" in rows["data.dir"]
    assert "| false |" in rows["engine.fast"]
    assert "≥ 0, < 2^64" in rows["seed"]
    assert [line.count(" | ") for line in rows.values()] == [2] * len(rows)


def test_every_command_has_its_help():
    page = hooks.commands()
    for name in main.commands:
        assert f"## fedsim {name}\n\n```text\nUsage: fedsim {name} " in page
    assert "--sample-rate RATE" in page
    assert "--baseline" in page  # of a command that is imported when it runs


def test_every_preset_and_data_set_is_named():
    page = hooks.names()
    assert "| `table3_small` | 18 | " in page
    assert "| `digits` | " in page
    assert "labels.csv (filename,label&#91;,site]" in page


@pytest.mark.parametrize(
    ("html", "warnings"),
    [
        ('<script src="https://cdn.example/x.js"></script>', 1),
        ('<link rel="stylesheet" href="//fonts.example/css">', 1),
        ('<a href="https://ray.io">Ray</a><img src="curves.png">', 0),
    ],
)
def test_a_page_that_loads_from_another_server_is_warned_of(html, warnings, caplog):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
    assert hooks.on_post_page(html, page, None) == html
    assert len(caplog.records) == warnings
