"""The loss decomposition: its terms by round, and FedLD's Fig. 2 of them against heterogeneity."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from .. import series, stats
from ..labels import text
from ..runs import Group
from ..words import say, section
from . import grid as panels
from . import style
from .grid import Absent, Drawing, Facets, facet_lines, unit_of

COLUMNS = {
    "local_loss": "Local loss (nats)",
    "shift_loss": "Shift loss (nats)",
    "aggregation_loss": "Aggregation loss (nats)",
    "global_loss": "Global loss (nats)",
}
LINES = {
    "Shift: cross-entropy": ("shift_loss", "plain", style.Line(style.RED, "-")),
    "Shift: margin control": ("shift_loss", "margin", style.Line(style.RED, "--")),
    "Aggregation: weighted mean": ("aggregation_loss", "plain", style.Line(style.BLUE, "-")),
    "Aggregation: principal": ("aggregation_loss", "principal", style.Line(style.BLUE, "--")),
}
"""By label: the loss, the runs (see :func:`variant`), and the line."""
LOSSES = {"shift_loss": "|shift| (nats)", "aggregation_loss": "|aggregation| (nats)"}
ALPHA = "Dirichlet \N{GREEK SMALL LETTER ALPHA} (more heterogeneous \N{RIGHTWARDS ARROW})"


def by_round(facets: Facets) -> Drawing | Absent:
    """The terms and their sum by round, one row of panels per setting and split."""
    shown: list[panels.Panel] = []
    kinds: list[tuple[str, str]] = []
    for setting, groups in facets.items():
        keys = ("split", "scope", "round")
        terms = series.aggregated(groups, "decomposition", [*COLUMNS], keys)
        by_label = {label: by_kind(frame) for label, frame in terms.items()}
        own = sorted({kind for parts in by_label.values() for kind in parts})
        kinds += own
        for kind in own:
            part = {label: parts[kind] for label, parts in by_label.items() if kind in parts}
            title = "; ".join(filter(None, (setting, ", ".join(kind) if len(own) > 1 else "")))
            shown += [
                panels.Panel(
                    label=label, curves=panels.curves(part, column), title=title,
                    zero=column in LOSSES, unit=unit_of(facets),
                    possible=(-math.inf if column in LOSSES else 0, math.inf),
                )
                for column, label in COLUMNS.items()
            ]  # fmt: skip
    if not shown:
        return panels.absent("decomposition")
    note = panels.panel_note(shown)
    figure = panels.grid(shown, 2, note, facet_lines(facets))
    told = panels.told(shown)
    return panels.drawing("decomposition", figure, where=where(kinds), note=note, told=told)


def by_kind(frame: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """The rows by (split, scope), without those index levels."""
    levels = ["split", "scope"]
    parts = {(str(key[0]), str(key[1])): part for key, part in frame.groupby(level=levels)}
    return {kind: part.reset_index(levels, drop=True) for kind, part in parts.items()}


def where(kinds: Sequence[tuple[str, str]]) -> str:
    """Splits and scopes in words: which data the losses are over, and whose."""
    splits, scopes = section("splits"), section("scopes")
    return " and ".join(
        f"{splits.get(split, split)} ({scopes.get(scope, scope)})"
        for split, scope in dict.fromkeys(kinds)
    )


def variant(group: Group) -> str:
    """``plain`` (cross-entropy, mean), ``principal`` or ``margin`` alone, or "" for others."""
    row = group.runs.iloc[0]
    name, server, margin = (text(row.get(c)) for c in ("algorithm", "server", "margin"))
    if name == "fedavg" and server in ("unset", "fedavg") and margin in ("unset", "none"):
        return "plain"
    if name == "fedld" and server in ("unset", "fedld") and margin == "none":
        return "principal"
    return "margin" if name == "fedld" and server == "fedavg" and margin != "none" else ""


def by_alpha(facets: Facets) -> Drawing | Absent:
    """Fig. 2: one row of panels per setting but alpha, for the last round and the mean of all."""
    shown = []
    used: list[tuple[str, str]] = []
    signed: list[tuple[str, pd.Series[float]]] = []
    for setting, groups in facets.items():
        known = [group for group in groups if variant(group)]
        ambiguous = _ambiguous(known)
        if ambiguous:
            names = " and ".join(map(style.title, ambiguous))
            return Absent(say("fig2.title"), say("fig2.ambiguous", names=names))
        every = _values(known)
        if every.empty:
            continue
        kinds = by_kind(every)
        kind = min(kinds, key=lambda kind: (kind[0] != "train", *kind))
        used.append(kind)
        signed += [(LINES[name][0], c["mean"]) for name, c in _lines(kinds[kind]).items()]
        every = kinds[kind].abs()
        newest = every.groupby(level=["variant", "alpha", series.UNIT]).tail(1)
        rounds = every.index.get_level_values("round").nunique()
        takes = {"last round": newest, "mean over the rounds": every} if rounds > 1 else {"": every}
        for take, part in takes.items():
            lines = _lines(part)
            title = "; ".join(filter(None, (setting, take)))
            shown += [
                panels.Panel(
                    label=label, title=title, x=ALPHA, log=True, possible=(0, math.inf),
                    curves={name: c for name, c in lines.items() if LINES[name][0] == loss},
                    unit=unit_of(facets),
                )
                for loss, label in LOSSES.items()
            ]  # fmt: skip
    if not any(len(curve) > 1 for panel in shown for curve in panel.curves.values()):
        return panels.absent("fig2")
    note = panels.panel_note(shown)
    several = any("mean over" in panel.title for panel in shown)
    figure = panels.grid(shown, 2, note, {name: line for name, (*_, line) in LINES.items()})
    return panels.drawing(
        "fig2", figure, where=where(used), when=say("fig2.several" if several else "fig2.one"),
        note=note, signs=_signs(signed), told=panels.told(shown),
    )  # fmt: skip


def _ambiguous(groups: Sequence[Group]) -> list[str]:
    """The labels of the first groups that share variant and alpha."""
    points: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        point = variant(group), text(group.runs["alpha"].iloc[0])
        points.setdefault(point, []).append(group.label)
    return next((labels for labels in points.values() if len(labels) > 1), [])


def _signs(means: Sequence[tuple[str, pd.Series[float]]]) -> str:
    """How many points of each loss have a negative mean over units and rounds."""
    counts = []
    for loss in LOSSES:
        points = [value for of, values in means if of == loss for value in values]
        below = sum(value < 0 for value in points)
        counts.append(f"{below} of {len(points)} for the {loss.partition('_')[0]} loss")
    return ", ".join(counts)


def _values(groups: Sequence[Group]) -> pd.DataFrame:
    """Signed losses indexed by (variant, alpha, unit, split, scope, round)."""
    by_label = series.values(groups, "decomposition", list(LOSSES), key=("split", "scope", "round"))
    parts = {}
    for group in groups:
        alpha = pd.to_numeric(group.runs["alpha"].iloc[0], errors="coerce")
        if group.label in by_label and math.isfinite(alpha):
            parts[variant(group), float(alpha)] = by_label[group.label]
    if not parts:
        return pd.DataFrame()
    return pd.concat(parts, names=["variant", "alpha"]).sort_index()


def _lines(values: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The curves over alpha by label; a value of a unit is its mean over the rounds."""
    per_unit = values.groupby(level=["variant", series.UNIT, "alpha"]).mean()
    variants = {
        str(kind): stats.over_units(part, ["alpha"])
        for kind, part in per_unit.groupby(level="variant")
    }
    return {
        name: panels.band(panels.column(variants[kind], loss))
        for name, (loss, kind, _) in LINES.items()
        if kind in variants
    }
