"""The loss decomposition: its terms by round, and FedLD's Fig. 2 of them against heterogeneity."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from .. import series, stats
from ..facets import Facets, unit_of
from ..labels import text
from ..runs import Group
from ..tables.scores import TERMS as NAMES
from . import grid, style
from .grid import Absent, Drawing, Panel

TERMS = {column: f"{name} loss (nats)" for column, name in NAMES.items()}
LINES = {
    "Shift: cross-entropy": ("shift_loss", "plain", style.Line(style.RED, "-")),
    "Shift: margin control": ("shift_loss", "margin", style.Line(style.RED, "--")),
    "Aggregation: weighted mean": ("aggregation_loss", "plain", style.Line(style.BLUE, "-")),
    "Aggregation: principal": ("aggregation_loss", "principal", style.Line(style.BLUE, "--")),
}
"""Of Fig. 2, by label: the loss, the runs (see :func:`variant`), and the line."""
LOSSES = {"shift_loss": "|shift| (nats)", "aggregation_loss": "|aggregation| (nats)"}
ALPHA = "Dirichlet \N{GREEK SMALL LETTER ALPHA} (more heterogeneous \N{RIGHTWARDS ARROW})"
SPLITS = {
    "train": "training data", "val": "the clients' validation parts",
    "test": "the clients' test parts", "common_test": "the common test part",
}  # fmt: skip
SCOPES = {"cohort": "the clients of the round", "population": "all clients"}
Kind = tuple[str, str]
"""Split and scope of a decomposition: which data the losses are over, and whose."""


def by_round(facets: Facets) -> Drawing | Absent:
    """A row per term, and a column per setting, split and scope."""
    keys = ("split", "scope", "round")
    parts: dict[tuple[str, Kind], dict[str, pd.DataFrame]] = {}
    for setting, groups in facets.items():
        for label, frame in series.aggregated(groups, "decomposition", [*TERMS], keys).items():
            for kind, part in by_kind(frame).items():
                parts.setdefault((setting, kind), {})[label] = part
    if not parts:
        return grid.absent("decomposition")
    kinds = list(dict.fromkeys(kind for _, kind in parts))
    panels = [
        Panel(
            label=label, curves=grid.curves(frames, column), zero=column in LOSSES,
            title="; ".join(filter(None, (setting, ", ".join(kind) if len(kinds) > 1 else ""))),
            possible=(-math.inf if column in LOSSES else 0, math.inf), unit=unit_of(facets),
        )
        for column, label in TERMS.items()
        for (setting, kind), frames in parts.items()
    ]  # fmt: skip
    lines = grid.facet_lines(facets)
    return grid.of_panels("decomposition", panels, lines, where=where(kinds))


def by_kind(frame: pd.DataFrame) -> dict[Kind, pd.DataFrame]:
    """The rows by (split, scope), without those index levels."""
    levels = ["split", "scope"]
    parts = {(str(key[0]), str(key[1])): part for key, part in frame.groupby(level=levels)}
    return {kind: part.reset_index(levels, drop=True) for kind, part in parts.items()}


def where(kinds: Sequence[Kind]) -> str:
    """Splits and scopes in words."""
    return " and ".join(
        f"{SPLITS.get(split, split)} ({SCOPES.get(scope, scope)})"
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
    """Fig. 2: a row per term; a column per setting but alpha, of the last round and of all."""
    shown: list[Panel] = []
    kinds: list[Kind] = []
    signed: dict[str, list[float]] = {loss: [] for loss in LOSSES}
    for setting, groups in facets.items():
        members = [group for group in groups if variant(group)]
        points = {(variant(group), text(group.runs["alpha"].iloc[0])) for group in members}
        if len(points) < len(members):
            return grid.absent("fig2")
        values = _values(members)
        if values.empty:
            continue
        by = by_kind(values)
        kind = min(by, key=lambda kind: (kind[0] != "train", *kind))
        kinds.append(kind)
        for name, curve in _lines(by[kind]).items():
            signed[LINES[name][0]] += curve["mean"].tolist()
        sizes = by[kind].abs()
        takes = {"": sizes}
        if sizes.index.get_level_values("round").nunique() > 1:
            newest = sizes.groupby(level=["variant", "alpha", series.UNIT]).tail(1)
            takes = {"last round": newest, "mean over the rounds": sizes}
        for take, part in takes.items():
            lines = _lines(part)
            shown += [
                Panel(
                    label=label, title="; ".join(filter(None, (setting, take))), x=ALPHA, log=True,
                    curves={name: c for name, c in lines.items() if LINES[name][0] == loss},
                    possible=(0, math.inf), unit=unit_of(facets),
                )
                for loss, label in LOSSES.items()
            ]  # fmt: skip
    if not any(len(curve) > 1 for panel in shown for curve in panel.curves.values()):
        return grid.absent("fig2")
    below = {
        loss.partition("_")[0]: (sum(value < 0 for value in values), len(values))
        for loss, values in signed.items()
    }
    return grid.of_panels(
        "fig2", shown, {name: line for name, (*_, line) in LINES.items()}, where=where(kinds),
        below=below, several=any("mean over" in panel.title for panel in shown),
    )  # fmt: skip


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
        name: grid.band(pd.DataFrame(variants[kind][loss]))
        for name, (loss, kind, _) in LINES.items()
        if kind in variants
    }
