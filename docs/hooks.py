"""Hooks of mkdocs: the pages of commands and configuration keys, and a check of every page."""

from __future__ import annotations

import json
import logging
import posixpath
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args, get_origin
from urllib.parse import unquote, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic.fields import FieldInfo

from fedsim.cli import main
from fedsim.cli.names import CATALOGUES
from fedsim.cli.options import HELP_ALL, flag_names
from fedsim.config import sections

ROOT = Path(__file__).resolve().parents[1]
logger = logging.getLogger("mkdocs.hooks.fedsim")
EXTERNAL = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
)
SOURCE = re.compile(r'href="([^":#]+\.(?:md|ipynb))((?:#[^"]*)?)"')
"""A link to the source of a page."""
ROLE = re.compile(r":(?:class|func|meth|mod|data):(<code[^>]*>)~?")
"""How Sphinx marks a name in a docstring, once it is HTML."""
CLI = """# Command line

What `fedsim --help` and `fedsim COMMAND --help` print. The exit status is 0 when all is done, 1
when a run failed, 2 for usage, configuration or data that are refused before the start, and 130 or
143 after Ctrl-C or SIGTERM. An error is one line; `--verbose` or `FEDSIM_DEBUG=1` shows the
traceback, too.
"""
NAMES = """# Data sets, models, partitions, presets

What `fedsim list datasets`, `models`, `partitions` and `presets` show; the methods have
[a page of their own](../METHODS.md).

A data set, a model or a method may also be a function of yours, named `module:function`: see
[add a data set](../tutorials/own-data.md), [a model](../tutorials/own-model.md),
[a method](../tutorials/own-method.md).

Decoded images, features of frozen networks and downloads are kept in a cache, `$FEDSIM_CACHE`, by
default `~/.cache/fedsim`. A data set that is downloaded is read from `--data-dir` where that is
given, without a network.
"""
COMBINATIONS = """# What cannot be combined

These runs are refused before anything starts, with the reason, and [pair by pair](#pair-by-pair).
Whether a server rule goes with another method's clients is said in [Methods](../METHODS.md).
"""
SHOWN = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "launch/README.md": "how-to/clusters.md",
    "fedsim/config/sections.py": "reference/config.md",
    "fedsim/training/combinations.py": "reference/combinations.md",
}
"""Files beside docs/ that pages link, as a checkout needs it, and the pages that show them."""
BESIDE = re.compile(r"\]\((\.\./[^)#\s]+)((?:#[^)\s]*)?)\)")
COLUMNS: dict[str, tuple[str, ...]] = {
    "data sets": ("name", "description", "classes", "pixels", "partition", "options", "source"),
    "models": ("name", "inputs", "description"),
    "partitions": ("name", "description"),
    "attacks": ("name", "description"),
    "compressors": ("name", "description"),
    "presets": ("name", "runs", "description"),
}
KEYS = """# Configuration keys

The same keys serve in YAML files, in `--set KEY=VALUE` and as arguments of `fedsim.RunConfig`
(`train={"rounds": 20}`), and `config.yaml` of a run lists them all. Flags win over a file, a file
over a preset, a preset over these defaults. An unknown key is refused, with the nearest one that
exists. A method's hyperparameters and a data set's options stand under its name: `fedprox.mu`,
`synthetic.beta`; [Methods](../METHODS.md) has those of the methods, `fedsim list datasets`
those of the data sets.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made from commands and keys, and those of files beside docs/."""
    for source, page in SHOWN.items():
        if source.endswith(".md"):
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "reference/cli.md", content=commands()))
    files.append(File.generated(config, "reference/config.md", content=keys()))
    files.append(File.generated(config, "reference/names.md", content=names()))
    files.append(File.generated(config, "reference/combinations.md", content=combinations()))
    return files


def combinations() -> str:
    """The page of what cannot be combined."""
    from fedsim.training.combinations import table  # imports torch

    return f"{COMBINATIONS}\n{table()}\n\n{pairs().page()}"


def pairs() -> ModuleType:
    """The module beside this one, which is no package."""
    path = Path(__file__).with_name("pairs.py")
    loader = SourceFileLoader("docs_pairs", str(path))
    module = ModuleType(loader.name)
    loader.exec_module(module)
    return module


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turns links to files beside docs/ into links to the pages that show them."""

    def linked(match: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join("docs", folder, match[1]))
        shown = posixpath.relpath(SHOWN[file], folder or ".") if file in SHOWN else match[1]
        return f"]({shown}{match[2]})"

    folder = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri in {SHOWN["CHANGELOG.md"], SHOWN["CONTRIBUTING.md"]}:
        markdown = markdown.replace("](docs/", "](")
    return BESIDE.sub(linked, markdown)


def on_page_content(html: str, page: Page, files: Files, **_: object) -> str:
    """Takes Sphinx's roles out of what docstrings say, and turns links of notebooks to pages.

    A notebook links ``../GRAM.md``, as GitHub needs it; mkdocs turns such links of Markdown only.
    """
    html = ROLE.sub(r"\1", html)
    if not page.file.src_uri.endswith(".ipynb"):
        return html

    def linked(match: re.Match[str]) -> str:
        source = files.get_file_from_path(posixpath.normpath(posixpath.join(folder, match[1])))
        if source is None:
            return match[0]
        return f'href="{source.url_relative_to(page.file)}{match[2]}"'

    folder = posixpath.dirname(page.file.src_uri)
    return SOURCE.sub(linked, html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Warns of what a page would load from another server; --strict makes that an error."""
    for tag in EXTERNAL.findall(output):
        logger.warning("%s loads %s", page.file.src_uri, tag)
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Warns of links of the built pages that lead nowhere; --strict makes that an error."""
    for page, link, reason in broken_links(Path(config.site_dir)):
        logger.warning("%s links %s: %s", page, link, reason)


class Links(HTMLParser):
    """What a page links or loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes note of a tag."""
        for name, value in attrs:
            if value is not None and name in ("href", "src"):
                self.links.append(value)
            if value is not None and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)


def broken_links(site: Path) -> Iterator[tuple[str, str, str]]:
    """The links within a built site that lead nowhere: page, link, and what is missing.

    A page that is not found (404.html) is shown at any address, so that its links are absolute.
    """
    pages = {
        file.resolve(): Links(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")
    }
    for file, page in sorted(pages.items()):
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or file.name == "404.html":
                continue
            path = unquote(parts.path)
            target = (
                file if not path else (site if path[0] == "/" else file.parent) / path.lstrip("/")
            )
            target = target / "index.html" if target.is_dir() else target
            name = file.relative_to(site.resolve()).as_posix()
            if not target.is_file():
                yield name, link, "there is no such page or file"
            elif target.resolve() in pages and parts.fragment:
                anchors = pages[target.resolve()].anchors
                if unquote(parts.fragment) not in anchors:
                    yield name, link, "the page has no such anchor"


def commands() -> str:
    """The page of all commands: their help, as a terminal shows it."""
    group = main.make_context(
        "fedsim", [], resilient_parsing=True, max_content_width=96, terminal_width=96
    )
    lines = [CLI, "```text", main.get_help(group), "```"]
    for name in main.list_commands(group):
        command = main.get_command(group, name)
        if command is not None:
            ctx = command.make_context(name, [], group, resilient_parsing=True)
            ctx.meta[HELP_ALL] = name == "run"
            lines += ["", f"## fedsim {name}", "", "```text", ctx.get_help(), "```"]
    return "\n".join(lines) + "\n"


def names() -> str:
    """The page of data sets, models, partitions and presets: what ``fedsim list`` shows."""
    lines = [NAMES]
    for kind, columns in COLUMNS.items():
        lines += ["", f"## {kind.capitalize()}", "", f"| {' | '.join(columns)} |"]
        lines.append("| --- " * len(columns) + "|")
        for row in CATALOGUES[kind.replace(" ", "")]():
            lines.append(f"| `{row['name']}` | {' | '.join(cell(row[c]) for c in columns[1:])} |")
    return "\n".join(lines) + "\n"


def cell(value: object) -> str:
    """A value of a row in words."""
    if isinstance(value, dict):
        return ", ".join(f"`{key}`={item}" for key, item in value.items())
    return "" if value is None else str(value).replace("|", "&#124;").replace("[", "&#91;")


def keys() -> str:
    """The page of all keys, a table for each section."""
    flags = {key: names[-1] for key, names in flag_names().items()}
    lines = [KEYS]
    of_run = {k: f for k, f in sections.fields().items() if "." not in k}
    lines += ["## Run", "", *table(of_run, flags)]
    for name in sections.SECTIONS:
        section = type(sections.RunSettings.model_fields[name].default)
        text = (section.__doc__ or "").partition(":")[2].partition("\n\n")[0].strip()
        lines += ["", f"## {name}", "", text[:1].upper() + text[1:], ""]
        lines += table({f"{name}.{k}": f for k, f in section.model_fields.items()}, flags)
    return "\n".join(lines) + "\n"


def table(fields: dict[str, FieldInfo], flags: dict[str, str]) -> list[str]:
    """Keys with their flags, defaults, allowed values and descriptions."""
    lines = ["| Key | Default | Meaning |", "| --- | --- | --- |"]
    for key, field in fields.items():
        flag = f"<br>`{flags[key].partition('/')[0]}`" if key in flags else ""
        default = "unset" if field.default is None else json.dumps(field.default).strip('"')
        text = " ".join((field.description or "").split()) + allowed(field)
        lines.append(f"| `{key}`{flag} | {default} | {text.replace('|', '&#124;')} |")
    return lines


def allowed(field: FieldInfo) -> str:
    """The names or the range that a field takes, where it has such."""
    kinds = (field.annotation, *get_args(field.annotation))
    names = [name for kind in kinds if get_origin(kind) is Literal for name in get_args(kind)]
    bounds = [
        f"{sign} {number(getattr(bound, name))}"
        for bound in field.metadata
        for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
        if hasattr(bound, name)
    ]
    said = ", ".join(f"`{name}`" for name in names) or ", ".join(bounds)
    return f" ({said})" if said else ""


def number(value: float) -> str:
    """A bound as people write it: 2^64 for 18446744073709551616."""
    power = int(value).bit_length() - 1
    return f"2^{power}" if power > 30 and value == 2**power else f"{value:g}"
