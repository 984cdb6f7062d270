"""The report: figures, tables and one self-contained HTML page from run directories."""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path

import pandas as pd
from markupsafe import Markup, escape

from fedsim.core.files import replacing_folder, run_around
from fedsim.core.terminal import printable

from .. import AnalysisError, series, trials
from ..facets import Facets, facets, groups_in, settings_by, unit_of
from ..figures import classes, curves, losses, masks, partition, phases, scores, style, updates
from ..figures import clients as client_figures
from ..figures import sites as site_figures
from ..figures.grid import Absent, Drawing, facet_lines
from ..files import client_names
from ..labels import HALVES, METHOD, meant, text, title_of
from ..runs import (
    Group,
    default_by,
    differing,
    find,
    first_run,
    group,
    shared,
    summaries,
    unit_among,
    without_repeats,
)
from ..scores import TAKES, completed, measure_of, measures_of, of_rounds, primary_of
from ..tables import captions, layout, pairs, sites
from ..tables import scores as score_tables
from ..units import PARTITION, ExperimentalUnit
from ..words import environment, say
from . import answer
from .answer import Outcome, outcome

PAGE = "report.html"
SECTIONS = {
    "runs": "What was run", "scores": "Scores", "curves": "Learning curves and classes",
    "losses": "Where the loss comes from", "clients": "Sites and clients", "costs": "Time",
    "caveats": "Left out, and how to make it again",
}  # fmt: skip
"""The sections after the answer, by their anchor."""
ALWAYS = ("test_loss", "conflict_ratio")
IF_PRESENT = ("gradient_diversity", "top_axis_share")
"""Columns of rounds.csv in figures, beside the primary; the latter only if all runs have them."""
LISTED = 60  # a page lists at most this many sites by name; `fedsim table --metric sites` lists all


Block = str | Drawing | layout.Table | Mapping[str, str]
"""A part of a section: paragraph, figure, table, or signs and their meanings."""
Descriptions = Mapping[str, str]
"""A line on each method and setting, by label or column of summary.csv; fedsim provides them."""
MAIN = ("dataset", "model", "num_clients", "sample_rate", "alpha", "rounds", "train.lr")
"""The settings that come first in the table."""
FACTS = {
    "model": "network {}", "num_clients": "{} clients",
    "sample_rate": "{:.4g} % of the clients in each round", "rounds": "{} communication rounds",
}  # fmt: skip
"""Settings that the first paragraph names where all runs share them."""


@dataclass(frozen=True)
class Written:
    """The HTML file of :func:`write`, and the runs and figures that were left out."""

    page: Path
    unfinished: Sequence[Path]
    absent: Sequence[Absent]


def write(
    dirs: Sequence[Path], out: Path, by: Sequence[str] = (), baseline: str | None = None,
    title: str | None = None, descriptions: Descriptions | None = None,
    metrics: Sequence[str] = (), unit: ExperimentalUnit | None = None,
) -> Written:  # fmt: skip
    """Writes ``report.html``, ``figures/`` and ``tables/`` to a new, empty or earlier folder.
    Settings in ``by`` become panels; the first of the ``metrics`` leads, by default the primary
    measure. Raises AnalysisError."""
    _check(out)
    finished, unfinished = find(dirs)
    runs, repeated = without_repeats(summaries(finished))
    measures = measures_of(runs)
    metrics = metrics or (measures.primary,)
    for metric in metrics:
        measure_of(runs, metric)
    runs = completed(runs, {*measures.scores} - {"loss"} | {*metrics})
    by = by or default_by(runs, unit)
    every = group(runs, by, unit_among(runs, by, unit))
    settings = settings_by(by, every)
    split, left_out = sites.split(every, settings)
    groups = every
    if left_out:  # of these runs the page has what they say of the sites that they leave out
        groups = groups_in(split)
        runs = pd.concat([one.runs for one in groups])
        by, settings = ([c for c in of if c != sites.LEAVES_OUT] for of in (by, settings))
        groups = group(runs, by, groups[0].unit)
    if baseline is not None:
        baseline = meant(baseline, [one.label for one in groups])
    by_site = _sites(split, left_out, metrics[0])
    main = outcome(split, metrics[0], by_site)
    compared = {"": score_tables.scored(groups, metrics[0], "final", baseline)}
    if main.by_site:
        compared = main.tables(baseline)
    few = {setting: of for setting, of in by_site.items() if len(of.names) <= LISTED}
    whom = [*(compared.values() if main.by_site else ()), *(sites.tables(few) if few else ())]
    made = [
        _on_everybody(table, main, metrics)
        for table in _tables(runs, groups, by, settings, baseline, metrics)
    ]
    without = {captions.UNFINISHED: unfinished, captions.REPEATED: repeated}
    whom, made = (captions.left_out(tables, without) for tables in (whom, made))
    about = [make(every, descriptions or {}) for make in (methods_table, settings_table)]
    files: dict[str, bytes] = {}
    figures, absent = list[tuple[str, Drawing]](), list[Absent]()
    for key, drawing in _drawings(groups, settings, main):
        if isinstance(drawing, Absent):
            absent.append(drawing)
        else:
            figures.append((key, _picture(drawing, files)))
    _write_page(
        out, files, [*about, *whom, *made], title=title or heading(every),
        lead=lead(every, baseline), plain=answer.summary(main),
        unknown=answer.unknown(main, unfinished), first=[figures.pop(0)[1]],
        findings=answer.findings(main, baseline, compared),
        sections=_sections(about, whom, made, figures, _caveats(absent, unfinished, dirs)),
        opened="clients" if main.by_site else "", measures=measures,
    )  # fmt: skip
    return Written(out / PAGE, unfinished, absent)


def _sections(
    about: Sequence[layout.Table], whom: Sequence[layout.Table], made: Sequence[layout.Table],
    figures: Sequence[tuple[str, Drawing]], caveats: Sequence[str],
) -> list[tuple[str, str, list[Block]]]:  # fmt: skip
    """Anchor, title and content of each section."""
    once, signs = layout.explained_once(made)
    first: dict[str, Sequence[Block]] = {
        "runs": about, "clients": whom, "caveats": caveats, "scores": [signs] if signs else [],
    }  # fmt: skip
    content = {section: [*first.get(section, ())] for section in SECTIONS}
    for section, drawing in figures:
        content[section].append(drawing)
    for table in once:
        content["losses" if table.name.startswith("decomposition") else "scores"].append(table)
    return [(section, title, content[section]) for section, title in SECTIONS.items()]


def _on_everybody(table: layout.Table, main: Outcome, metrics: Sequence[str]) -> layout.Table:
    """A table of scores on the common test part, where the page is about scores by site."""
    if not main.by_site or not table.name.startswith((*metrics, "scores")):
        return table
    everybody = say("answer.everybody", personal=main.personal)
    return replace(table, caption=f"{everybody} {table.caption}")


def write_search(folder: Path, out: Path, title: str | None = None) -> Written:
    """Writes the same files about the trials of ``fedsim tune`` in a folder."""
    _check(out)
    search = trials.read_search(folder)
    confirmed = list(filter(None, [trials.confirmed(folder, search)]))
    files: dict[str, bytes] = {}
    first, *rest = (_picture(drawing, files) for drawing in trials.drawings(search))
    table = trials.table(search)
    sections = [
        ("confirmed", "Fresh training seeds", confirmed),
        ("values", "Values of the searched settings", rest),
        ("trials", "Trials", [table]),
    ]
    _write_page(
        out, files, [*confirmed, table], title=title or f"Search over {', '.join(search.keys)}",
        lead=trials.lead(search), plain=[], unknown=[], findings=trials.findings(search),
        first=[first], sections=sections, opened="", measures=search.measures,
    )  # fmt: skip
    return Written(out / PAGE, (), ())


def _write_page(
    out: Path, files: Mapping[str, bytes], tables: Sequence[layout.Table], **content: object
) -> None:
    """Writes the files, the tables and the page of what the template asks for, or nothing."""
    contents = dict(files)
    for table in tables:
        for suffix, formatted in layout.FORMATS.items():
            contents[f"tables/{table.name}{suffix}"] = formatted([table]).encode()
    template = environment().get_template("page.html")
    page = template.render(foot=say("page.foot"), inline=_inline, **content)
    contents[PAGE] = printable(page, keep="\n\N{NO-BREAK SPACE}").encode()
    with replacing_folder(out) as folder:
        for name, data in contents.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)


def _check(out: Path) -> None:
    if run := run_around(out):
        raise AnalysisError(f"--out {out}: lies inside the run directory {run}")
    if out.exists() and not (out.is_dir() and ((out / PAGE).is_file() or not any(out.iterdir()))):
        raise AnalysisError(
            f"--out {out}: has other files and no {PAGE}; name a new or empty folder, or that of "
            "an earlier report"
        )


def _sites(split: Facets, left_out: Facets, score: str) -> dict[str, sites.Sites]:
    """The scores by site of each setting that has them, where sites can be told apart."""
    if unit_of(split) == "partition" and not client_names(first_run(next(iter(split.values())))):
        return {}
    known = score in sites.by_client(groups_in(split))
    return sites.by_setting(split, left_out, measure=score if known else None)


def _drawings(
    groups: Sequence[Group], settings: Sequence[str], main: Outcome
) -> Iterator[tuple[str, Drawing | Absent]]:
    """Yields the figures, each with the key of its section; one is in memory at a time."""
    split, score, unit = main.facets, main.wanted, groups[0].unit
    always = (measures_of(groups).column("test"), *ALWAYS)
    columns = always if series.absent(groups, "rounds", IF_PRESENT) else (*always, *IF_PRESENT)
    if not series.absent(groups, "rounds", [of_rounds(score)]):
        columns = tuple(dict.fromkeys((*columns, of_rounds(score))))
    rounds = {t: series.values(inside, "rounds", columns) for t, inside in split.items()}
    lines = facet_lines(split)
    by_site = 0
    for by_site, pairs_drawn in enumerate(site_figures.drawings(main), 1):
        yield "clients" if by_site > 1 else "answer", pairs_drawn
    yield "clients", scores.draw(main, answer.lacking(main))
    yield "curves", curves.draw(rounds, score, unit, lines, groups)
    for drawing in (*classes.by_class(split), classes.confusion(split)):
        if measures_of(groups).of_classes or isinstance(drawing, Drawing):
            yield "curves", drawing
    for drawing in masks.drawings(split):
        yield "curves", drawing
    yield "curves", client_figures.by_group(split)
    yield "losses", losses.by_round(split)
    yield "losses", losses.by_alpha(facets(groups, [c for c in settings if c != "alpha"]))
    yield "losses", updates.agreement(rounds, unit, lines)
    yield "losses", updates.cosines(split)
    if not by_site:  # else the sites' own figures say it by name
        yield "clients", client_figures.by_client(split)
    yield "clients", updates.participation(split)
    for drawing in partition.drawings(groups):
        yield "runs", drawing
    yield "costs", phases.draw(split)


def _tables(
    runs: pd.DataFrame, groups: Sequence[Group], by: Sequence[str], settings: Sequence[str],
    baseline: str | None, metrics: Sequence[str],
) -> Iterator[layout.Table]:  # fmt: skip
    """All tables of scores and loss terms that the runs have data for."""
    crossed, unit = len(settings) == 1 and set(by) != set(settings), groups[0].unit
    yield from score_tables.all_scores(groups, baseline)
    for metric, take in product(metrics, TAKES):
        if crossed:
            cross = score_tables.crossed_score(
                runs, by, settings[0], metric, take, baseline, unit=unit
            )
            yield from layout.with_differences([cross], measure_of(runs, metric).unit)
        made = score_tables.scored(groups, metric, take, baseline)
        yield from layout.with_variances([made], measure_of(runs, metric).unit)
    if pairs.has_pairs(runs, by):
        paired, shown = [pairs.accuracies(runs, by, unit=unit)], primary_of(runs)[1].unit
        yield from layout.with_differences(layout.with_variances(paired, shown), shown)
    if pairs.any_target(runs):
        yield pairs.reached(runs, by, unit=unit)
    for name, rest in (
        ("groups", score_tables.image_groups(groups, baseline)),
        ("decomposition", score_tables.decomposition(groups, baseline)),
    ):
        yield from captions.left_out(rest, score_tables.without_rows(name, groups))


def _caveats(
    absent: Sequence[Absent], unfinished: Sequence[Path], dirs: Sequence[Path]
) -> list[str]:
    """What the page lacks, and how to make it again."""
    texts = [say("page.absent", title=one.title, reason=one.reason) for one in absent]
    names = ", ".join(f"`{path}`" for path in unfinished)
    texts += [say("page.unfinished", names=names)] if names else []
    return [*texts, say("page.rerun", dirs=dirs)]


def _picture(drawing: Drawing, files: dict[str, bytes]) -> Drawing:
    """Adds the files of the figure, PNG and PDF; the layout is computed once for both."""
    with style.look():
        drawing.figure.draw_without_rendering()
    drawing.figure.set_layout_engine("none")
    for suffix in (".pdf", ".png"):
        files[f"figures/{drawing.name}{suffix}"] = style.rendered(drawing.figure, suffix)
    png = files[f"figures/{drawing.name}.png"]
    return replace(drawing, png=base64.b64encode(png).decode("ascii"))


def _inline(text: str) -> Markup:
    """Escaped text, with ``**bold**`` and back-quoted ``code``; intervals are not broken."""
    whole = r"± 95 % CI|\[[^][ ]+, [^][ ]+\]"
    unbroken = re.sub(whole, lambda part: part[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    bold = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(unbroken)))
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", bold))


def heading(groups: Sequence[Group]) -> str:
    """A heading for the page: the data set, and how many methods."""
    names = {str(name) for group in groups for name in group.runs["dataset"].dropna()}
    rows = (group.runs.iloc[0] for group in groups)
    methods = {tuple(text(row.get(column)) for column in METHOD) for row in rows}
    count = "one method" if len(methods) == 1 else f"{len(methods)} methods"
    return f"Federated learning on {', '.join(sorted(names))}: {count}"


def lead(groups: Sequence[Group], baseline: str | None) -> str:
    """The first paragraph: numbers of runs, clients, rounds and seeds."""
    common = shared(groups)
    facts = [
        form.format(100 * float(common[key]) if key == "sample_rate" else common[key])
        for key, form in FACTS.items()
        if key in common
    ]
    seeds, partitions = _numbers(groups, "seed"), _partitions(groups)
    return say(
        "lead", runs=sum(len(group.runs) for group in groups), groups=len(groups), facts=facts,
        seeds=len(seeds), numbers=_ranges(seeds), partitions=len(partitions),
        partition_numbers=_ranges(partitions), baseline=title_of(baseline) if baseline else "",
        one_partition=len(seeds) > 1 and all(PARTITION in group.runs for group in groups),
    )  # fmt: skip


def _numbers(groups: Sequence[Group], column: str) -> list[int]:
    return sorted({int(number) for group in groups for number in group.runs[column]})


def _partitions(groups: Sequence[Group]) -> list[int]:
    """The seeds of the partitions, if they are the unit."""
    return [] if groups[0].unit == "seed" else _numbers(groups, PARTITION)


def methods_table(groups: Sequence[Group], descriptions: Descriptions) -> layout.Table:
    """One row per group: what it is and the settings that distinguish it."""
    meanings = {**descriptions, **{half: meaning for half, (_, meaning) in HALVES.items()}}
    settings = differing(groups)
    rows = []
    for one in groups:
        name = title_of(one.label)
        values = {str(c): v for c, v in settings.loc[one.label].items() if v != "unset"}
        further = ", ".join(
            f"{c} = {values[c]}"
            for c in sorted(values, key=lambda c: c not in METHOD)
            if c != "algorithm" and f"{c}={values[c]}" not in name.split(", ")
        )
        row = {"Group": name, "What it is": _meaning(one.label, meanings)}
        row["Further settings that differ"] = further or layout.EMPTY
        if one.unit == "partition":
            row["Partitions"] = _ranges(_partitions([one]))
        rows.append(row | {"Seeds": _ranges(_numbers([one], "seed")), "Runs": str(len(one.runs))})
    return layout.Table(
        name="groups_of_runs", title="Methods", caption=say("groups_of_runs.caption"),
        head=list(rows[0]), rows=[list(row.values()) for row in rows], words=3,
        data=pd.DataFrame(rows),
    )  # fmt: skip


def settings_table(groups: Sequence[Group], descriptions: Descriptions) -> layout.Table:
    """The settings that all runs share."""
    common = shared(groups)
    order = [*(key for key in MAIN if key in common), *(key for key in common if key not in MAIN)]
    return layout.Table(
        name="settings", title="Settings of all runs", caption=say("settings.caption"),
        head=["Setting", "Value", "Meaning"], words=3,
        rows=[[f"`{key}`", common[key], descriptions.get(key, "")] for key in order],
        data=pd.DataFrame({"setting": order, "value": [common[key] for key in order]}),
    )  # fmt: skip


def _meaning(label: str, meanings: Mapping[str, str]) -> str:
    """That of the method in a label, alone or with settings, or with another server rule."""
    for name, meaning in meanings.items():
        rest = f"{label}, ".removeprefix(f"{name}, ")
        if rest != f"{label}, " and not rest.startswith(("server=", "margin=")):
            return meaning
    method, _, rest = label.partition(", server=")
    server = title_of(rest.partition(", ")[0])
    return f"{title_of(method)}'s clients, aggregated as {server} does" if server else ""


def _ranges(numbers: Sequence[int]) -> str:
    """``0-4, 7`` for 0, 1, 2, 3, 4, 7."""
    ranges = groupby(enumerate(numbers), lambda place: place[1] - place[0])
    runs = [[number for _, number in part] for _, part in ranges]
    return ", ".join("\N{EN DASH}".join(dict.fromkeys((str(r[0]), str(r[-1])))) for r in runs)
