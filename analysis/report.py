"""The report: figures, tables and one self-contained page from run directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import pandas as pd

from analysis import (
    classes,
    clients,
    conflict,
    curves,
    fig2,
    formats,
    html,
    overview,
    owners,
    pairs,
    phases,
    streams,
    style,
    table,
    target,
    terms,
    words,
)
from analysis.drawing import Absent, Drawing
from analysis.errors import AnalysisError
from analysis.facets import facets, settings_by
from analysis.layout import Table
from analysis.runs import Group, find, group, summaries

PAGE = "report.html"
OLD = ("test_accuracy", "test_loss", "conflict_ratio")
NEW = ("gradient_diversity", "top_axis_share")
"""Columns of rounds.csv in figures; the new ones are shown where all runs have them."""


@dataclass(frozen=True)
class Written:
    """What a report consists of.

    Attributes:
        page: the HTML file.
        unfinished: runs that were left out.
        absent: figures that were left out.
    """

    page: Path
    unfinished: Sequence[Path]
    absent: Sequence[Absent]


def write(
    dirs: Sequence[Path],
    out: Path,
    by: Sequence[str] = ("algorithm",),
    baseline: str | None = None,
    title: str | None = None,
) -> Written:
    """Writes ``report.html``, ``figures/`` and ``tables/`` to a folder.

    Args:
        dirs: run directories or folders above them.
        out: made if need be; one with files must hold an earlier report, whose files are replaced.
        by: columns of summary.csv that tell the groups apart; settings among them become panels.
        baseline: label of the group that the others are compared with.
        title: of the page.

    Raises:
        AnalysisError: runs that cannot be averaged or compared, unreadable files, a folder with
            other files.
    """
    _check(out)
    finished, unfinished = find(dirs)
    runs = summaries(finished)
    groups = group(runs, by)
    settings = settings_by(by, groups)
    tables = list(_tables(runs, groups, by, settings, baseline))
    for folder in (out, out / "figures", out / "tables"):
        folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, list[html.Block]] = {}
    absent = []
    for part, drawn in _drawings(groups, settings):
        if isinstance(drawn, Absent):
            absent.append(drawn)
        else:
            pictures.setdefault(part, []).append(_picture(drawn, out / "figures"))
    for one in [overview.methods(groups), overview.settings(groups), *tables]:
        for suffix, writer in formats.FORMATS.items():
            file = out / "tables" / f"{one.name}{suffix}"
            file.write_text(writer([one]), encoding="utf-8", newline="\n")
    page = html.page(
        title or overview.title(groups),
        overview.lead(groups, baseline),
        _sections(groups, tables, pictures, absent, unfinished),
        "Made by `python -m analysis report` from the CSV files of the run directories. The page "
        "stands for itself; the same figures and tables lie in the folders `figures` and `tables`.",
    )
    (out / PAGE).write_text(page, encoding="utf-8", newline="\n")
    return Written(out / PAGE, unfinished, absent)


def told(written: Written) -> None:
    """Says on standard output what was written, and on standard error what was left out."""
    for run in written.unfinished:
        click.echo(f"left out {run}: no summary.csv, the run has not finished", err=True)
    for one in written.absent:
        click.echo(f"left out {one.title}: {one.reason}", err=True)
    click.echo(f"wrote {written.page}")


def _check(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise AnalysisError(f"--out {out}: a file; a report is a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / PAGE).is_file():
        raise AnalysisError(
            f"--out {out}: the folder has files and no {PAGE}; name a new or empty folder, or that "
            "of an earlier report"
        )


def _drawings(
    groups: Sequence[Group], settings: Sequence[str]
) -> Iterator[tuple[str, Drawing | Absent]]:
    """All figures, each with the key of its section, one in memory at a time."""
    split = facets(groups, settings)
    old = streams.absent(groups, "rounds", NEW)
    columns = OLD if old else (*OLD, *NEW)
    rounds = {t: streams.values(inside, "rounds", columns) for t, inside in split.items()}
    yield "accuracy", curves.draw(rounds)
    yield "accuracy", classes.draw(split)
    yield "accuracy", clients.by_client(split)
    yield "accuracy", clients.by_group(split)
    yield "terms", terms.draw(split)
    yield "terms", fig2.draw(facets(groups, [c for c in settings if c != "alpha"]))
    yield "updates", conflict.agreement(rounds)
    yield "updates", conflict.cosines(split)
    for drawn in owners.draw(groups):
        yield "data", drawn
    yield "time", phases.draw(split)


def _tables(
    runs: pd.DataFrame, groups: Sequence[Group], by: Sequence[str], settings: Sequence[str],
    baseline: str | None,
) -> Iterator[Table]:  # fmt: skip
    """Final, best and last-10 accuracy, where one setting differs also methods by its values.

    Methods under two server rules and runs with a target accuracy have tables of their own.
    """
    crossed = len(settings) == 1 and set(by) != set(settings)
    for metric in table.METRICS:
        if crossed:
            yield table.crossed_accuracy(runs, by, settings[0], metric, baseline)
        yield table.accuracy(groups, metric, baseline)
    labels = [one.label for one in groups]
    if any(pairs.base(label, labels) for label in labels):
        yield pairs.accuracies(runs, by)
    if target.available(runs):
        yield target.reached(runs, by)
    yield from table.image_groups(groups, baseline)
    yield from table.decomposition(groups, baseline)


def _picture(drawn: Drawing, folder: Path) -> html.Picture:
    """Writes the figure as PNG and PDF; its layout is computed once for both."""
    with style.look():
        drawn.figure.draw_without_rendering()
    drawn.figure.set_layout_engine("none")
    for suffix in (".pdf", ".png"):
        style.save(drawn.figure, folder / f"{drawn.name}{suffix}")
    return html.Picture((folder / f"{drawn.name}.png").read_bytes(), drawn)


def _sections(
    groups: Sequence[Group],
    tables: Sequence[Table],
    pictures: dict[str, list[html.Block]],
    absent: Sequence[Absent],
    unfinished: Sequence[Path],
) -> list[html.Section]:
    losses = [one for one in tables if one.name.startswith("decomposition")]
    left_out: list[html.Block] = [f"**{one.title}**: {one.reason}." for one in absent]
    if unfinished:
        names = ", ".join(f"`{path}`" for path in unfinished)
        left_out.append(f"**Runs that have not finished** (no summary.csv): {names}.")
    parts: list[tuple[str, str, list[html.Block]]] = [
        ("runs", "What was run", [overview.methods(groups)]),
        ("results", "Results", [one for one in tables if one not in losses]),
        ("accuracy", "Accuracy", []),
        ("terms", "Where the loss comes from", [*losses]),
        ("updates", "How the clients' updates agree", []),
        ("data", "The clients' data", []),
        ("time", "Time", []),
        ("settings", "Settings", [overview.settings(groups)]),
        ("absent", "Left out", left_out),
        ("words", "Terms", [html.Terms(words.TERMS)]),
    ]
    filled = ((key, name, [*pictures.get(key, []), *blocks]) for key, name, blocks in parts)
    return [html.Section(key, name, blocks) for key, name, blocks in filled if blocks]
