"""A report as one HTML page: figures inside, styles inside, no script, nothing loaded."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from analysis.drawing import Drawing
from analysis.layout import Table


@dataclass(frozen=True)
class Picture:
    """A drawing as it was written: the bytes of its PNG file."""

    png: bytes
    drawing: Drawing


@dataclass(frozen=True)
class Terms:
    """Words and what they mean."""

    meanings: Mapping[str, str]


Block = str | Picture | Table | Terms
"""What a section is made of; a text is a paragraph."""


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading and a line in the table of contents."""

    key: str
    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: #1d2327; line-height: 1.55;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
header, nav, main, footer { max-width: 62rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 .6rem; padding-bottom: .3rem;
  border-bottom: 1px solid #d5dade; }
h3 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { max-width: 46rem; margin: .6rem 0; overflow-wrap: break-word; }
.lead { font-size: 1.08rem; color: #3c444b; }
nav ol { columns: 2 16rem; padding-left: 1.8rem; margin: .4rem 0; }
nav h2 { margin-top: 1.6rem; font-size: 1.05rem; border: 0; padding: 0; }
a { color: #00588c; }
figure { margin: 1.2rem 0 2.2rem; }
.wide { overflow-x: auto; }
.wide:focus-visible { outline: 2px solid #00588c; outline-offset: 2px; }
figure img { display: block; width: 100%; min-width: 36rem; height: auto; }
figcaption, caption { color: #3c444b; font-size: .94rem; text-align: left; }
figcaption { margin-top: .6rem; max-width: 50rem; }
figcaption p { margin: .35rem 0; max-width: none; }
table { border-collapse: collapse; min-width: 32rem; font-size: .92rem; margin: .4rem 0;
  font-variant-numeric: tabular-nums; }
.note { color: #3c444b; font-size: .94rem; margin: 1.4rem 0 .2rem; }
th, td { padding: .34rem .8rem .34rem 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid #e4e8eb; vertical-align: top; }
th { border-bottom: 1.5px solid #6b757d; vertical-align: bottom; white-space: normal; }
.word { text-align: left; }
td.word { white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
.files { color: #5b656d; font-size: .86rem; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .92em; }
dl { max-width: 50rem; }
dt { font-weight: 600; margin-top: .7rem; }
dd { margin: 0 0 0 1.2rem; }
footer { color: #5b656d; font-size: .88rem; padding-top: 2rem; padding-bottom: 3rem; }
@media print {
  body { font-size: 10pt; }
  header, nav, main, footer { max-width: none; padding-left: 0; padding-right: 0; }
  h2, h3, .note { break-after: avoid; }
  figure, tr, dt { break-inside: avoid; }
  table { min-width: 0; }
  figure img { min-width: 0; max-height: 20cm; object-fit: contain; object-position: left; }
  .wide { overflow: visible; }
  a { color: inherit; text-decoration: none; }
}
"""


def page(title: str, lead: str, sections: Sequence[Section], foot: str) -> str:
    """The whole page; all texts are escaped, and ``code`` stands between back quotes."""
    contents = "".join(
        f'<li><a href="#{escape(section.key)}">{escape(section.title)}</a></li>\n'
        for section in sections
    )
    body = "".join(_section(section) for section in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="lead">{_inline(lead)}</p>\n</header>\n'
        f'<nav aria-label="Contents">\n<h2>Contents</h2>\n<ol>\n{contents}</ol>\n</nav>\n'
        f"<main>\n{body}</main>\n<footer><p>{_inline(foot)}</p></footer>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    blocks = "".join(_block(block) for block in section.blocks)
    return (
        f'<section id="{escape(section.key)}">\n<h2>{escape(section.title)}</h2>\n'
        f"{blocks}</section>\n"
    )


def _block(block: Block) -> str:
    match block:
        case str():
            return f"<p>{_inline(block)}</p>\n"
        case Picture():
            return _picture(block)
        case Table():
            return _table(block)
        case Terms():
            entries = "".join(
                f"<dt>{_inline(word)}</dt><dd>{_inline(meaning)}</dd>\n"
                for word, meaning in block.meanings.items()
            )
            return f"<dl>\n{entries}</dl>\n"


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode("ascii")
    drawing = picture.drawing
    return (
        f'<h3 id="figure-{escape(drawing.name)}">{escape(drawing.title)}</h3>\n<figure>\n'
        f'<div class="wide" tabindex="0"><img alt="{escape(drawing.caption)}" '
        f'src="data:image/png;base64,{data}"></div>\n'
        f"<figcaption><p>{_inline(drawing.caption)}</p>\n"
        f"<p><strong>How to read this.</strong> {_inline(drawing.reading)}</p>\n"
        f'<p class="files">Files: <code>figures/{escape(drawing.name)}.png</code>, '
        "<code>.pdf</code></p></figcaption>\n</figure>\n"
    )


def _table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        kinds = (' class="word"' if index < table.words else "" for index in range(len(cells)))
        texts = (
            f"<{tag}{kind}>{_inline(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        )
        return f"<tr>{''.join(texts)}</tr>\n"

    return (
        f'<h3 id="table-{escape(table.name)}">{escape(table.title)}</h3>\n'
        f'<p class="note">{_inline(table.caption)}</p>\n'
        f'<div class="wide" tabindex="0"><table aria-labelledby="table-{escape(table.name)}">\n'
        f"<thead>{row(table.head, 'th')}</thead>\n"
        f"<tbody>{''.join(row(cells, 'td') for cells in table.rows)}</tbody>\n"
        f"</table></div>\n"
        f'<p class="files">Files: <code>tables/{escape(table.name)}.csv</code>, '
        "<code>.md</code>, <code>.tex</code></p>\n"
    )


def _inline(text: str) -> str:
    """Escaped text, with ``**bold**`` and back-quoted ``code``."""
    marked = _between(escape(text), "**", "strong")
    return _between(marked, "`", "code")


def _between(text: str, mark: str, tag: str) -> str:
    parts = text.split(mark)
    if len(parts) % 2 == 0:
        return text
    return "".join(
        part if index % 2 == 0 else f"<{tag}>{part}</{tag}>" for index, part in enumerate(parts)
    )
