"""What every site gains: each client's score by name and approach, against its own local model.

It is of the final model on the client's own test part (final_clients.csv), else of the last
evaluation (evaluations.csv). Only on its own test part can an approach help or harm a client.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pandas as pd

from fedsim.core.errors import nearest

from .. import AnalysisError, series
from ..facets import Facets, facets
from ..files import client_names, header, read_table
from ..formats import PLAIN
from ..labels import meant, text, title_of
from ..paired import SIGNIFICANT, T, Test
from ..runs import Group, first_run
from ..scores import Score, counts, measures_of, scores_of
from ..stats import EQUAL, FEWEST, NOTHING, Cell, holm, of_runs, paired
from ..words import say
from .captions import interval_words
from .clients import last_scores
from .layout import COLLAPSE, EMPTY, Table, data, interval_head, spread, unit_of

LOCAL = "local"  # the algorithm in which each client trains a model of its own
FIRST = (LOCAL, "centralized")  # the approaches without federation are the first columns
TUNED = ", fine-tuned"  # end of the label of a method whose final model each client has fine-tuned
SAMPLES = {"train_samples": "Training samples", "test_samples": "Test samples"}
"""Columns of partition.csv and their headings."""
OWN, COMMON = "own_test", "test"
"""The parts that clients are scored on: samples of their own, or the same ones for all."""
NARROW = 6  # headings of more approaches are as short as can be, so that the table fits a page
HELD_OUT = " (held out)"  # end of the name of a site that never trained
LEAVES_OUT = "data.heldout_clients"  # column: how many sites are held out, or their names
NO_MEASURES = {"round", "client_id", "group", "held_out", "split", "num_samples"}
"""Columns of :data:`TABLES` that are no measures."""
TABLES = ("final_clients", "evaluations")
UNSEEN = ", without the site"  # end of the label of a method's models that never saw the site
Verdict = Literal["helps", "harms", "cannot be told"]


@dataclass(frozen=True, kw_only=True)
class Sites:
    """The scores of the clients under one setting."""

    score: str  # of :func:`by_client`
    shown: Score  # what it is called, its unit, and which way is better
    part: str  # that all are scored on, `OWN` or `COMMON`
    names: Mapping[int, str]  # of the clients by id
    samples: pd.DataFrame  # by client id, columns train_samples and, where known, test_samples
    # by label of an approach and client id one value per run in which the client trained
    values: Mapping[str, Mapping[int, pd.Series[float]]]
    cells: Sequence[Cell]  # one per client and approach, the column being the client's name
    reference: str | None  # the label that the others are compared with; None for no comparison
    without: Sequence[str]  # labels of methods that have no scores by client
    held_out: frozenset[int]  # clients that never trained, which nothing can help or harm

    @property
    def labels(self) -> list[str]:
        """The approaches."""
        return list(self.values)

    def means(self) -> dict[str, pd.Series[float]]:
        """By label each run's mean over the clients that trained; each client counts once. Models
        that never saw their site have none: no one of them is a way to take part."""
        trained = {
            label: [series for client, series in of.items() if client not in self.held_out]
            for label, of in self.values.items()
            if UNSEEN not in label
        }
        return {label: pd.concat(of, axis=1).mean(axis=1) for label, of in trained.items() if of}

    def verdict(self, cell: Cell) -> Verdict:
        """Helps or harms where significantly so over partitions, on the site's own samples."""
        other = cell.comparison
        if other is None or self.part != OWN or self.few(cell) or not cell.adjusted < SIGNIFICANT:
            return "cannot be told"
        better = -other.sign if self.shown.lowest else other.sign
        return "helps" if better > 0 else "harms" if better < 0 else "cannot be told"

    def few(self, cell: Cell) -> bool:
        """Whether there are too few partitions to tell anything of a comparison."""
        other = cell.comparison
        return unit_of(self.cells) == "seed" or (other is not None and other.difference.n < FEWEST)

    def name(self, client: int) -> str:
        """The name of a client, marked where it never trained."""
        return self.names[client] + HELD_OUT * (client in self.held_out)

    def of(self, label: str) -> dict[str, Cell]:
        """The cells of an approach by the client's name."""
        return {cell.column: cell for cell in self.cells if cell.row == label}


def by_client(groups: Sequence[Group]) -> list[str]:
    """The measures that any run has values of by client, the primary one first and loss last."""
    found: dict[str, None] = {}
    for path in (Path(path) for group in groups for path in group.runs["path"]):
        for file in (path / f"{table}.csv" for table in TABLES):
            columns = [c for c in header(file) if c not in NO_MEASURES]
            columns = [c for c in columns if not c.startswith("finetuned_")]
            if not {*columns} <= found.keys():
                frame = read_table(file, ("client_id",), optional=columns)
                values = frame[frame["client_id"].notna()][columns]
                found |= dict.fromkeys(c for c in columns if values[c].notna().any())
    primary = measures_of(groups).primary
    return sorted(found, key=lambda name: (name != primary) + (name == "loss"))


def _chosen(groups: Sequence[Group], name: str | None) -> str:
    """The measure to show by client: ``name``, else the first that the runs have."""
    recorded = by_client(groups)
    if not recorded or name in recorded:
        return name or measures_of(groups).primary
    if name is None:
        return recorded[0]
    raise AnalysisError(
        f"measure {name!r}: in no run is it recorded by client{nearest(name, recorded)}; those "
        f"that are: {', '.join(recorded)}"
    )


def gather(
    groups: Sequence[Group], baseline: str | None = None, test: Test = T,
    measure: str | None = None, left_out: Sequence[Group] = (),
) -> Sites | None:  # fmt: skip
    """The scores by client, compared with ``baseline`` or :data:`LOCAL`; None if no run has any.
    ``left_out`` are runs that hold named clients out, whose models are compared on these."""
    score = _chosen([*groups, *left_out], measure)
    shown = scores_of(groups).get(score, Score(score, PLAIN, least=-math.inf))
    seen, part, held_out = _scores(groups, score)
    by_label = _with_unseen(seen, left_out if part == OWN else (), score)
    if not by_label:
        return None
    names, samples = _clients(groups)
    ids = sorted({client for of in by_label.values() for client in of})
    names = {client: names.get(client, f"client {client}") for client in ids}
    often = Counter(names.values())
    names = {c: n if often[n] == 1 else f"{n} (client {c})" for c, n in names.items()}
    local = [one.label for one in groups if set(one.runs["algorithm"]) == {LOCAL}]
    reference = next((label for label in local if label in by_label), None)
    if baseline is not None and (reference := meant(baseline, by_label)) not in by_label:
        raise AnalysisError(
            f"baseline {reference}: no {shown.title} by client; those that have it are "
            f"{'; '.join(by_label)}"
        )
    return Sites(
        score=score, shown=shown, part=part, names=names, samples=samples.reindex(ids),
        values=by_label, reference=reference, held_out=held_out, cells=_cells(
            by_label, names, reference, counts(groups), held_out, test
        ),
        without=[one.label for one in groups if one.label not in by_label],
    )  # fmt: skip


def _cells(
    by_label: Mapping[str, Mapping[int, pd.Series[float]]], names: Mapping[int, str],
    reference: str | None, collapsed: Mapping[str, int], held_out: frozenset[int], test: Test,
) -> list[Cell]:  # fmt: skip
    """One cell per approach and client; p values are corrected over the clients of an approach."""
    references = {} if reference is None else by_label[reference]
    made: list[Cell] = []
    for label, values in by_label.items():
        row = []
        for client in (client for client in names if client in values):
            compared = label != reference and client in references and client not in held_out
            other = paired(values[client], references[client], test) if compared else None
            cell = Cell(
                row=label, column=names[client], estimate=of_runs(values[client]),
                comparison=other, collapsed=collapsed.get(label, 0),
            )  # fmt: skip
            row.append(cell)
        adjusted = holm([cell.comparison.p if cell.comparison else math.nan for cell in row])
        made += [replace(cell, adjusted=p) for cell, p in zip(row, adjusted, strict=True)]
    last = {names[client] for client in held_out if client in names}
    return sorted(made, key=lambda cell: cell.column in last)


def _scores(
    groups: Sequence[Group], score: str
) -> tuple[dict[str, dict[int, pd.Series[float]]], str, frozenset[int]]:
    """By approach and client the score of each run; the part; clients that never trained."""
    columns = [score, f"finetuned_{score}", "held_out"]
    final = series.by_run(groups, "final_clients", columns, "client_id", {"split": OWN})
    last = last_scores(groups, score)
    part = OWN if final or last[OWN] else COMMON
    held = [frame["held_out"].groupby(level="client_id").min() for frame in final.values()]
    held_out = frozenset(int(client) for of in held for client in of.index[of == 1])
    scores: dict[str, dict[int, pd.Series[float]]] = {}
    tuned: dict[str, dict[int, pd.Series[float]]] = {}
    for one in groups:
        of = final.get(one.label, last[part].get(one.label))
        if of is None:
            continue
        if "held_out" in of:
            clients = of.index.get_level_values("client_id")
            of = of[(of["held_out"] == 0) | clients.isin(held_out)]
            if of[columns[1]].notna().any():
                tuned[f"{one.label}{TUNED}"] = _by_client(of[columns[1]])
        scores[one.label] = _by_client(of[score])
    first = [one.label for name in FIRST for one in groups if name in set(one.runs["algorithm"])]
    ordered = {label: scores[label] for label in (*first, *scores) if label in scores}
    return ordered | tuned, part, held_out


def split(groups: Sequence[Group], settings: Sequence[str]) -> tuple[Facets, Facets]:
    """The facets of the groups, and those of the groups that hold out clients by name. The latter
    stand apart where others hold out nobody, under the same settings and labels."""
    held = [one.runs[LEAVES_OUT].iloc[0] if LEAVES_OUT in one.runs else 0 for one in groups]
    numbers = {text(value) for value in held if not isinstance(value, str)}
    if LEAVES_OUT not in settings or numbers != {"0"}:
        return facets(groups, settings), {}
    others = [column for column in settings if column != LEAVES_OUT]
    whole: dict[str, list[Group]] = {}
    left_out: dict[str, list[Group]] = {}
    for setting, inside in facets(groups, others).items():
        for one in inside:
            value = one.runs[LEAVES_OUT].iloc[0]
            label = one.label.replace(f", {LEAVES_OUT}={text(value)}", "")
            where = left_out if isinstance(value, str) else whole
            where.setdefault(setting, []).append(replace(one, label=label))
    return whole, left_out


def _with_unseen(
    by_label: Mapping[str, Mapping[int, pd.Series[float]]], left_out: Sequence[Group], score: str
) -> dict[str, Mapping[int, pd.Series[float]]]:
    """With the scores of each client by the models of the runs that held it out, by approach."""
    every = dict(by_label)
    columns = [score, f"finetuned_{score}", "held_out"]
    for one in (one for one in left_out if set(one.runs["algorithm"]) != {LOCAL}):
        final = series.by_run([one], "final_clients", columns, "client_id", {"split": OWN})
        for frame in final.values():
            never = frame[frame["held_out"] == 1]
            for column, end in ((score, UNSEEN), (columns[1], UNSEEN + TUNED)):
                if len(of := _by_client(never[column])):
                    label = f"{one.label}{end}"
                    every[label] = {**every.get(label, {}), **of}
    return every


def _by_client(values: pd.Series[float]) -> dict[int, pd.Series[float]]:
    by_client = values.dropna().groupby(level="client_id", sort=False)
    return {int(float(str(client))): of.droplevel("client_id") for client, of in by_client}


def _clients(groups: Sequence[Group]) -> tuple[Mapping[int, str], pd.DataFrame]:
    """The clients' names by id, which are those of all methods, and their numbers of samples."""
    paths = [first_run([one]) for one in groups]
    named = {path: names for path in paths if (names := client_names(path))}
    first, names = next(iter(named.items()), (paths[0], {}))
    for path, others in named.items():
        if others != names:
            raise AnalysisError(
                f"{first} and {path}: their partition.csv do not name the same clients; "
                "compare sites in runs on the same partition"
            )
    if groups[0].unit == "partition" and not names:
        raise AnalysisError(
            f"{first}/partition.csv: clients without names are other ones on each partition; "
            "compare them on one partition (data.seed)"
        )
    columns = [*SAMPLES]
    counted = series.by_run(groups[:1], "partition", columns, "client_id", reduced="sum")
    none = pd.DataFrame(columns=columns, index=pd.Index([], name="client_id"), dtype=float)
    return names, counted.get(groups[0].label, none).groupby(level="client_id").mean()


def by_setting(
    whole: Facets, left_out: Facets | None = None, baseline: str | None = None, test: Test = T,
    measure: str | None = None,
) -> dict[str, Sites]:  # fmt: skip
    """:func:`gather` for each setting of :func:`split` that has scores by client."""
    gathered = {
        setting: gather(groups, baseline, test, measure, (left_out or {}).get(setting, ()))
        for setting, groups in whole.items()
    }
    return {setting: of for setting, of in gathered.items() if of is not None}


def tables(found: Mapping[str, Sites], test: Test = T) -> list[Table]:
    """Scores by site and approach, and differences from the local model, for each setting."""
    if not found:
        raise AnalysisError(say("sites.absent"))
    made = []
    for number, (setting, of) in enumerate(found.items(), 1):
        parts = [_levels(of)]
        if of.reference is not None and len(of.labels) > 1:
            parts.append(_differences(of, test))
        end, where = f"_{number}" * (len(found) > 1), f" ({setting})" * bool(setting)
        made += [replace(t, name=t.name + end, title=t.title + where) for t in parts]
    return made


def _levels(sites: Sites) -> Table:
    """Accuracies: one row per site, one column per approach."""
    cells, unit, shown = sites.cells, unit_of(sites.cells), sites.shown
    samples = {
        head: [EMPTY if math.isnan(n) else f"{n:.0f}" for n in sites.samples[column]]
        for column, head in SAMPLES.items()
        if sites.samples[column].sum() > 0
    }
    few = len(sites.labels) <= NARROW  # of more columns the caption alone says what ± is
    heads = [
        title_of(label) + (interval_head(sites.of(label).values()) if few else "")
        for label in sites.labels
    ]
    texts = {(cell.column, cell.row): spread(cell, shown.unit) for cell in cells}
    numbers = sorted({cell.estimate.n for cell in cells})
    caption = say(
        "sites.caption", score=shown.name, lowest=shown.lowest, part=sites.part, numbers=numbers,
        unit=unit, means=unit == "partition" and bool(samples),
        without=[*map(title_of, sites.without)],
        reference=sites.reference, held_out=sites.held_out, unit_words=say(f"units.{unit}"),
        unseen=any(UNSEEN in label for label in sites.labels),
        interval=interval_words(unit) if numbers[-1] > 1 else "", sign=COLLAPSE,
        collapsed=[*dict.fromkeys(title_of(cell.row) for cell in cells if cell.collapsed)],
    )  # fmt: skip
    columns = ["label", "method", "site", "client_id", "num_samples", "test_samples", "split"]
    columns += ["n", "mean", "std", "low", "high", "collapsed", "unit"]
    return Table(
        name="sites", title=shown.unit.head(say("sites.title", score=shown.name)), caption=caption,
        head=["Site", *samples, *heads], words=1, data=_data(sites)[columns],
        rows=_rows(sites, texts, sites.labels, [*samples.values()]),
    )  # fmt: skip


def _rows(
    sites: Sites, texts: Mapping[tuple[str, str], str], labels: Sequence[str],
    more: Sequence[Sequence[str]] = (),
) -> list[list[str]]:  # fmt: skip
    """A row per site: its name, its items of ``more``, and its text for each approach."""
    rows = []
    for i, (client, name) in enumerate(sites.names.items()):
        first = [sites.name(client), *(column[i] for column in more)]
        rows.append(first + [texts.get((name, label), EMPTY) for label in labels])
    return rows


def _differences(sites: Sites, test: Test) -> Table:
    """Differences from the reference: one row per site, one column per other approach."""
    labels = [label for label in sites.labels if label != sites.reference]
    reference, score = title_of(sites.reference or ""), sites.shown
    compared = [cell for cell in sites.cells if cell.comparison is not None]
    texts, alike = {}, False
    for cell in compared:
        difference, word = (cell.comparison or NOTHING).difference, sites.verdict(cell)
        same = difference.n > 1 and difference.std <= EQUAL  # do not tell how far others may be
        alike |= same
        if not math.isnan(difference.mean):
            none = math.isnan(difference.half) or same
            interval = "" if none else f" {score.unit.interval(difference, '+')}"
            shown = word if word == "cannot be told" else f"**{word}**"
            number = score.unit.number(difference.mean, "+")
            texts[cell.column, cell.row] = f"{number}{interval} {shown}"
    caption = say(
        "sites.difference", reference=reference, unit=unit_of(sites.cells), test=test.title,
        lowest=score.lowest, level=SIGNIFICANT, fewest=FEWEST, few=all(map(sites.few, compared)),
        too_few=say("sites.too_few", fewest=FEWEST), same=alike, part=sites.part,
    )  # fmt: skip
    every = _data(sites)
    columns = ["label", "method", "site", "client_id", "num_samples", "split", "pairs"]
    columns += ["difference", "difference_low", "difference_high", "p", "p_holm", "verdict", "unit"]
    title = say("sites.difference_title", reference=reference)
    return Table(
        name="sites_difference", title=score.unit.head(title, differences=True), caption=caption,
        head=["Site", *map(title_of, labels)], rows=_rows(sites, texts, labels), words=1,
        data=every[every["label"] != sites.reference][columns],
    )  # fmt: skip


def _data(sites: Sites) -> pd.DataFrame:
    """All numbers, one row per site and approach; samples are means over the partitions."""
    frame = data(sites.cells).rename(columns={"column": "site"})
    clients = frame["site"].map({name: client for client, name in sites.names.items()})
    counted = {
        column: clients.map(sites.samples[column_of]).astype("Float64").convert_dtypes()
        for column, column_of in zip(("num_samples", "test_samples"), SAMPLES, strict=True)
    }
    verdicts = ["" if cell.comparison is None else sites.verdict(cell) for cell in sites.cells]
    return frame.assign(client_id=clients, split=sites.part, verdict=verdicts, **counted)
