"""The report: figures, tables and one self-contained HTML page from run directories."""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fedsim.core.files import replacing_folder, run_around
from fedsim.core.terminal import printable

from .. import AnalysisError, series, trials
from ..figures import classes, curves, losses, partition, phases, style, updates
from ..figures.grid import Absent, Drawing, Facets, facet_lines, facets, settings_by, unit_of
from ..files import client_names
from ..runs import Group, default_by, find, first_run, group, summaries, unit_among, without_repeats
from ..scores import ALL, SCORES, TAKES, completed, of_rounds
from ..tables import captions, clients, layout, pairs, participation, sites
from ..tables import scores as tables
from ..tables.variance import with_variances
from ..units import ExperimentalUnit
from ..words import say
from . import headline, overview, plain
from .outcome import Outcome, outcome
from .overview import Descriptions

PAGE = "report.html"
ALWAYS = ("test_accuracy", "test_loss", "conflict_ratio")
IF_PRESENT = ("gradient_diversity", "top_axis_share")
"""Columns of rounds.csv in figures; the latter only if all runs have them."""
LISTED = 60
"""A page lists at most this many sites by name; ``fedsim table --metric sites`` lists all."""


@dataclass(frozen=True)
class Picture:
    """A drawing and its PNG file in base64."""

    png: str
    drawing: Drawing


Block = str | Picture | layout.Table | Mapping[str, str]
"""A part of a section: paragraph, figure, table, or terms and their meanings."""


@dataclass(frozen=True)
class Section:
    """A section of the page, with its anchor, and whether it is open at first."""

    key: str
    title: str
    blocks: Sequence[Block]
    open: bool = False


@dataclass(frozen=True)
class Written:
    """The HTML file of :func:`write`, and the runs and figures that were left out."""

    page: Path
    unfinished: Sequence[Path]
    absent: Sequence[Absent]


def write(
    dirs: Sequence[Path],
    out: Path,
    by: Sequence[str] = (),
    baseline: str | None = None,
    title: str | None = None,
    descriptions: Descriptions | None = None,
    metrics: Sequence[str] = ("accuracy",),
    unit: ExperimentalUnit | None = None,
) -> Written:
    """Writes ``report.html``, ``figures/`` and ``tables/`` to a folder.

    ``out`` is a new or empty folder, or one with an earlier report, whose files are replaced. The
    columns ``by`` of summary.csv distinguish the groups (none: those of
    :func:`analysis.runs.default_by`); settings among them become panels. The
    ``metrics`` are keys of :data:`analysis.scores.ALL`; the first one leads. ``unit`` is what
    the runs repeat; partitions where there are several, see :func:`analysis.runs.unit_among`.

    Raises:
        AnalysisError: runs that cannot be averaged or compared, an unreadable file, or ``out``
            contains other files.
    """
    _check(out)
    finished, unfinished = find(dirs)
    runs, repeated = without_repeats(summaries(finished))
    runs = completed(runs, {*SCORES} - {"loss"} | {*metrics})
    without = {captions.UNFINISHED: unfinished, captions.REPEATED: repeated}
    by = by or default_by(runs, unit)
    unit = unit_among(runs, by, unit)
    groups = group(runs, by, unit)
    settings = settings_by(by, groups)
    if baseline is not None:
        baseline = style.meant(baseline, [one.label for one in groups])
    split = facets(groups, settings)
    found = _sites(split, metrics[0])
    main = outcome(split, metrics[0], found)
    compared = {"": tables.scored(groups, metrics[0], "final", baseline)}
    if main.by_site:
        compared = main.tables(baseline)
    few = {setting: of for setting, of in found.items() if len(of.names) <= LISTED}
    whom = [*(compared.values() if main.by_site else ()), *(sites.made(few) if few else ())]
    whom = captions.left_out(whom, without)
    made = captions.left_out(_tables(runs, groups, by, settings, baseline, metrics), without)
    if main.by_site:
        everybody = say("outcome.everybody", personal=main.personal)
        made = [
            replace(table, caption=f"{everybody} {table.caption}")
            if table.name.startswith((*metrics, "scores"))
            else table
            for table in made
        ]
    pictures: dict[str, list[Block]] = {}
    contents: dict[str, bytes] = {}
    absent = []
    for part, drawn in _drawings(groups, settings, main):
        if isinstance(drawn, Absent):
            absent.append(drawn)
        else:
            pictures.setdefault(part, []).append(_picture(drawn, contents))
    methods = overview.methods(groups, descriptions or {})
    common = overview.settings(groups, descriptions or {})
    _write_page(
        out,
        contents,
        tables=[methods, common, *whom, *made],
        title=title or overview.title(groups),
        lead=overview.lead(groups, baseline),
        plain=plain.summary(main),
        unknown=plain.unknown(main, unfinished),
        findings=headline.findings(main, baseline, compared),
        first=pictures.pop("headline"),
        sections=_sections(
            methods, common, whom, made, pictures, absent, unfinished, by_site=main.by_site
        ),
    )
    return Written(out / PAGE, unfinished, absent)


def write_search(folder: Path, out: Path, title: str | None = None) -> Written:
    """Writes the same files about the trials of ``fedsim tune`` in a folder.

    Raises:
        AnalysisError: the folder holds no search, an unreadable file, or ``out`` other files.
    """
    _check(out)
    search = trials.read_search(folder)
    again = trials.confirmed(folder, search)
    contents: dict[str, bytes] = {}
    first, *rest = (_picture(drawn, contents) for drawn in trials.drawings(search))
    listed = trials.table(search)
    _write_page(
        out,
        contents,
        tables=[listed] if again is None else [again, listed],
        title=title or f"Search over {', '.join(search.keys)}",
        lead=trials.lead(search),
        plain=[],
        unknown=[],
        findings=trials.findings(search),
        first=[first],
        sections=[
            *([] if again is None else [Section("confirmed", "Fresh training seeds", [again])]),
            Section("values", "Values of the searched settings", rest),
            Section("trials", "Trials", [listed]),
        ],
    )
    return Written(out / PAGE, (), ())


def _write_page(
    out: Path, contents: Mapping[str, bytes], tables: Sequence[layout.Table], **content: object
) -> None:
    """Writes the files of ``contents``, the tables, and the page of what the template asks for.

    Raises:
        StoreError: they cannot be written; then none of them is.
    """
    files = {
        f"tables/{table.name}{suffix}": formatted([table]).encode()
        for table in tables
        for suffix, formatted in layout.FORMATS.items()
    }
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["inline"] = _inline
    page = environment.get_template("page.html").render(foot=say("report.foot"), **content)
    seen = printable(page, keep="\n\N{NO-BREAK SPACE}")
    with replacing_folder(out) as folder:
        for name, data in {**contents, **files, PAGE: seen.encode()}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)


def _check(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise AnalysisError(f"--out {out}: a file; a report is a folder")
    if run := run_around(out):
        raise AnalysisError(f"--out {out}: lies inside the run directory {run}")
    if out.is_dir() and any(out.iterdir()) and not (out / PAGE).is_file():
        raise AnalysisError(
            f"--out {out}: the folder has files and no {PAGE}; name a new or empty folder, or that "
            "of an earlier report"
        )


def _sites(split: Facets, score: str) -> dict[str, sites.Sites]:
    """The scores by site of each setting that has them, where sites can be told apart."""
    if unit_of(split) == "partition" and not client_names(first_run(next(iter(split.values())))):
        return {}
    return sites.gathered(split, score=score if score in sites.BY_SITE else "accuracy")


def _drawings(
    groups: Sequence[Group], settings: Sequence[str], main: Outcome
) -> Iterator[tuple[str, Drawing | Absent]]:
    """Yields the figures, each with the key of its section; one is in memory at a time.

    The score that was asked for is shown first.
    """
    split, score = main.facets, main.wanted
    columns = ALWAYS if series.absent(groups, "rounds", IF_PRESENT) else (*ALWAYS, *IF_PRESENT)
    if not series.absent(groups, "rounds", [of_rounds(score)]):
        columns = tuple(dict.fromkeys((*columns, of_rounds(score))))
    rounds = {t: series.values(inside, "rounds", columns) for t, inside in split.items()}
    lines = facet_lines(split)
    yield "headline", headline.draw(main)
    for drawn in curves.drawings(rounds, score, groups[0].unit, lines):
        yield "accuracy", drawn
    yield "classes", classes.confusion(split)
    for drawn in classes.by_class(split):
        yield "classes", drawn
    yield "accuracy", clients.by_client(split)
    yield "accuracy", clients.by_group(split)
    yield "terms", losses.by_round(split)
    yield "terms", losses.by_alpha(facets(groups, [c for c in settings if c != "alpha"]))
    yield "updates", participation.draw(split)
    yield "updates", updates.agreement(rounds, groups[0].unit, lines)
    yield "updates", updates.cosines(split)
    for drawn in partition.drawings(groups):
        yield "data", drawn
    yield "time", phases.draw(split)


def _tables(
    runs: pd.DataFrame, groups: Sequence[Group], by: Sequence[str], settings: Sequence[str],
    baseline: str | None, metrics: Sequence[str],
) -> Iterator[layout.Table]:  # fmt: skip
    """All tables of scores and loss terms that the runs have data for.

    If the groups differ in one setting, there are also tables with a column per value of it.
    """
    crossed = len(settings) == 1 and set(by) != set(settings)
    yield tables.all_scores(groups, baseline)
    for metric, take in product(metrics, TAKES):
        if crossed:
            cross = tables.crossed_score(
                runs, by, settings[0], metric, take, baseline, unit=groups[0].unit
            )
            yield from layout.with_differences([cross], ALL[metric].unit)
        made = tables.scored(groups, metric, take, baseline)
        yield from with_variances([made], ALL[metric].unit)
    if pairs.has_pairs(runs, by):
        paired = [pairs.accuracies(runs, by, unit=groups[0].unit)]
        yield from layout.with_differences(with_variances(paired, layout.PERCENT), layout.PERCENT)
    if pairs.any_target(runs):
        yield pairs.reached(runs, by, unit=groups[0].unit)
    for name, rest in (
        ("groups", tables.image_groups(groups, baseline)),
        ("decomposition", tables.decomposition(groups, baseline)),
    ):
        yield from captions.left_out(rest, tables.without_rows(name, groups))


def _picture(drawn: Drawing, contents: dict[str, bytes]) -> Picture:
    """Adds the files of the figure, PNG and PDF; the layout is computed once for both."""
    with style.look():
        drawn.figure.draw_without_rendering()
    drawn.figure.set_layout_engine("none")
    for suffix in (".pdf", ".png"):
        contents[f"figures/{drawn.name}{suffix}"] = style.rendered(drawn.figure, suffix)
    png = contents[f"figures/{drawn.name}.png"]
    return Picture(base64.b64encode(png).decode("ascii"), drawn)


def _sections(
    methods: layout.Table, common: layout.Table, whom: Sequence[layout.Table],
    made: Sequence[layout.Table], pictures: Mapping[str, Sequence[Block]],
    absent: Sequence[Absent], unfinished: Sequence[Path], *, by_site: bool,
) -> list[Section]:  # fmt: skip
    """The sections that have content, figures before tables."""
    once, shared = layout.explained_once(made)
    terms = [table for table in once if table.name.startswith("decomposition")]
    results = [table for table in once if not table.name.startswith("decomposition")]
    left_out = [say("report.absent", title=one.title, reason=one.reason) for one in absent]
    if unfinished:
        names = ", ".join(f"`{path}`" for path in unfinished)
        left_out.append(say("report.unfinished", names=names))
    parts: list[tuple[str, str, Sequence[Block]]] = [
        ("sites", "Whom it helps" if by_site else "Results by site", whom),
        ("results", "Results", [*([shared] if shared else []), *results]),
        ("accuracy", "Learning curves and clients", []),
        ("classes", "Classes", []),
        ("terms", "Where the loss comes from", terms),
        ("updates", "How the clients' updates agree", []),
        ("data", "The clients' data", []),
        ("runs", "What was run", [methods, common]),
        ("time", "Time", []),
        ("absent", "Left out", left_out),
        ("words", "Terms", [overview.TERMS]),
    ]
    filled = [
        Section(key, name, [*pictures.get(key, []), *rest], by_site and key == "sites")
        for key, name, rest in parts
    ]
    return [section for section in filled if section.blocks]


def _inline(text: str) -> Markup:
    """Escaped text, with ``**bold**`` and back-quoted ``code``; what ± means is not broken."""
    ci = "± 95 % CI"
    unbroken = text.replace(ci, ci.replace(" ", "\N{NO-BREAK SPACE}"))
    bold = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(unbroken)))
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", bold))
