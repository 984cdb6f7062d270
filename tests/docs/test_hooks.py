"""The pages that are made when the site is built, the check of what a page loads, and notebooks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedsim.cli import main
from fedsim.config.sections import fields

ROOT = Path(__file__).resolve().parents[2]


# hooks


pytest.importorskip("mkdocs", reason="needs the extra docs")


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
    assert "| true |" in rows["engine.deterministic"]
    assert "≥ 0, < 2^64" in rows["seed"]
    assert [line.count(" | ") for line in rows.values()] == [2] * len(rows)


def test_every_command_has_its_help():
    page = hooks.commands()
    for name in main.commands:
        assert f"## fedsim {name}\n\n```text\nUsage: fedsim {name} " in page
    assert "--sample-rate RATE" in page
    assert "--baseline" in page  # of a command that is imported when it runs


def test_links_to_files_beside_docs_are_those_of_the_pages_that_show_them():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="tutorials/compare.md"))
    made = hooks.on_page_markdown(
        "[a](../../launch/README.md#experiment-files) [b](../../fedsim/config/sections.py) "
        "[c](../METHODS.md#fedbn) ![d](../x.png)", page,
    )  # fmt: skip
    assert made == (
        "[a](../how-to/clusters.md#experiment-files) [b](../reference/config.md) "
        "[c](../METHODS.md#fedbn) ![d](../x.png)"
    )
    page.file.src_uri = "index.md"
    wanted = "[a](how-to/clusters.md)"
    assert hooks.on_page_markdown("[a](../launch/README.md)", page) == wanted
    page.file.src_uri = "contributing.md"
    assert hooks.on_page_markdown("[a](docs/GRAM.md#x)", page) == "[a](GRAM.md#x)"


PAGES = {
    "index.html": '<h1 id="top"></h1><a href="a/">A</a><a href="a/#here">x</a><a href="#top">y</a>',
    "a/index.html": '<a name="here"></a><a href="..">up</a><a href="../b.png?v=1">b</a>'
    '<a href="https://ray.io">r</a><a href="mailto:x@y">m</a><link href="/s.css"><p id="\u00e9">',
    "404.html": '<a href="/elsewhere/">all addresses</a>',
    "b.png": "",
    "s.css": "",
}


def site(folder):
    for name, text in PAGES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_links_of_built_pages_are_followed(tmp_path, caplog):
    hooks.on_post_build(SimpleNamespace(site_dir=str(site(tmp_path))))
    assert not caplog.records


@pytest.mark.parametrize(
    ("html", "link"),
    [
        ('<a href="../GRAM.md">', "../GRAM.md"),  # of a notebook
        ('<a href="../tutorials/compare.md#x">', "../tutorials/compare.md#x"),
        ('<a href="nowhere/">', "nowhere/"),
        ('<a href="a/#there">', "a/#there"),
        ('<a href="#there">', "#there"),
        ('<img src="no.png">', "no.png"),
        ('<script src="/no.js"></script>', "/no.js"),
        ("<a href='../index.html'>", "../index.html"),
    ],
)
def test_a_broken_link_is_warned_of(html, link, tmp_path, caplog):
    (tmp_path / "site").mkdir()
    found = site(tmp_path / "site")
    (found / "c.html").write_text(f"{html} &amp; <code>href='x'</code>")
    hooks.on_post_build(SimpleNamespace(site_dir=str(found)))
    (record,) = caplog.records
    assert record.getMessage().startswith(f"c.html links {link}: ")


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


# notebooks


nbformat = pytest.importorskip("nbformat", reason="needs the extra docs")
nbclient = pytest.importorskip("nbclient", reason="needs the extra docs")

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_its_outputs_and_without_errors(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]
    assert str(ROOT) not in path.read_text()


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=folder
    ).execute()
    texts = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert any(texts)
