"""Fig. 2 of FedLD: shift and aggregation loss against the heterogeneity of the labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis import panels, stats, streams, style
from analysis.drawing import Absent, Drawing
from analysis.facets import Facets
from analysis.runs import Group, text
from analysis.terms import by_kind, where

TITLE = "Shift and aggregation loss against heterogeneity (Fig. 2 of FedLD)"
ABSENT = Absent(
    TITLE,
    "needs `--decompose-every` runs of two values of alpha or more by `-a fedavg`, "
    "`-a fedld --margin none` and `-a fedld --server fedavg`",
)
LINES = {
    "Shift: cross-entropy": ("shift_loss", "plain", style.Line(style.RED, "-")),
    "Shift: margin control": ("shift_loss", "margin", style.Line(style.RED, "--")),
    "Aggregation: weighted mean": ("aggregation_loss", "plain", style.Line(style.BLUE, "-")),
    "Aggregation: principal": ("aggregation_loss", "principal", style.Line(style.BLUE, "--")),
}
"""By label: which loss, of which runs (see :func:`variant`), and the line."""
LOSSES = {"shift_loss": "|shift| (nats)", "aggregation_loss": "|aggregation| (nats)"}
ALPHA = "Dirichlet \N{GREEK SMALL LETTER ALPHA} (more heterogeneous \N{RIGHTWARDS ARROW})"


def variant(group: Group) -> str:
    """``plain`` (cross-entropy, mean), ``principal`` or ``margin`` alone, or empty for others."""
    row = group.runs.iloc[0]
    name, server, margin = (text(row.get(c)) for c in ("algorithm", "server", "margin"))
    if name == "fedavg" and server in ("unset", "fedavg") and margin in ("unset", "none"):
        return "plain"
    if name == "fedld" and server in ("unset", "fedld") and margin == "none":
        return "principal"
    return "margin" if name == "fedld" and server == "fedavg" and margin != "none" else ""


def draw(facets: Facets) -> Drawing | Absent:
    """A row of panels per setting, for the last round and for the mean over all rounds.

    Args:
        facets: by the settings other than alpha.
    """
    shown = []
    used: list[tuple[str, str]] = []
    signed: list[tuple[str, pd.Series[float]]] = []
    for setting, groups in facets.items():
        known = [group for group in groups if variant(group)]
        twice = _twice(known)
        if twice:
            names = " and ".join(map(style.title, twice))
            return Absent(TITLE, f"{names} would be one point of a line; give runs of one of them")
        every = _values(known)
        if every.empty:
            continue
        kinds = by_kind(every)
        kind = min(kinds, key=lambda kind: (kind[0] != "train", *kind))
        used.append(kind)
        signed += [(LINES[name][0], c["mean"]) for name, c in _lines(kinds[kind]).items()]
        every = kinds[kind].abs()
        newest = every.groupby(level=["variant", "alpha", "seed"]).tail(1)
        rounds = every.index.get_level_values("round").nunique()
        takes = {"last round": newest, "mean over the rounds": every} if rounds > 1 else {"": every}
        for take, part in takes.items():
            lines = _lines(part)
            title = "; ".join(filter(None, (setting, take)))
            shown += [
                panels.Panel(
                    label, {name: c for name, c in lines.items() if LINES[name][0] == loss},
                    title, x=ALPHA, log=True,
                )
                for loss, label in LOSSES.items()
            ]  # fmt: skip
    if not any(len(curve) > 1 for panel in shown for curve in panel.curves.values()):
        return ABSENT
    seeds = panels.seeds_of(shown)
    several = any("mean over" in panel.title for panel in shown)
    when = (
        "Top: the last round with a decomposition; below: the mean over all rounds with one, in "
        "which the methods start from models of their own"
        if several
        else "One round: the methods start from the same model"
    )
    return Drawing(
        "fig2",
        TITLE,
        "Absolute value of the shift loss of clients trained with cross-entropy and with margin "
        "control (red, both aggregated by the weighted mean), and of the aggregation loss of "
        "clients trained with cross-entropy and aggregated by the weighted mean and by principal "
        f"gradients (blue), against the Dirichlet parameter, on {where(used)}. {when}. "
        f"{seeds}.",
        "To the right the clients' labels differ more. The lines show sizes: where a loss is "
        "positive, a dashed line below the solid one of its colour means that FedLD's part lowers "
        "the loss it is meant for; a negative one lowers the global loss, and the nearer its line "
        f"is to zero, the less it does so. {_signs(signed)}",
        panels.grid(shown, 2, seeds, {name: line for name, (*_, line) in LINES.items()}),
    )


def _twice(groups: Sequence[Group]) -> list[str]:
    """The labels of the first groups that are of one variant and alpha, where there are such."""
    points: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        point = variant(group), text(group.runs["alpha"].iloc[0])
        points.setdefault(point, []).append(group.label)
    return next((labels for labels in points.values() if len(labels) > 1), [])


def _signs(means: Sequence[tuple[str, pd.Series[float]]]) -> str:
    """How many of the points of each loss are negative in the mean over seeds and rounds."""
    told = []
    for loss in LOSSES:
        points = [value for of, values in means if of == loss for value in values]
        below = sum(value < 0 for value in points)
        told.append(f"{below} of {len(points)} for the {loss.partition('_')[0]} loss")
    return f"Negative means in these runs: {', '.join(told)}."


def _values(groups: Sequence[Group]) -> pd.DataFrame:
    """Signed losses indexed by (variant, alpha, seed, split, scope, round)."""
    found = streams.values(groups, "decomposition", list(LOSSES), key=("split", "scope", "round"))
    parts = {}
    for group in groups:
        alpha = pd.to_numeric(group.runs["alpha"].iloc[0], errors="coerce")
        if group.label in found and math.isfinite(alpha):
            parts[variant(group), float(alpha)] = found[group.label]
    if not parts:
        return pd.DataFrame()
    return pd.concat(parts, names=["variant", "alpha"]).sort_index()


def _lines(values: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The curves over alpha by label, each run's value the mean over its rounds."""
    per_run = values.groupby(level=["variant", "seed", "alpha"]).mean()
    variants = {
        str(kind): stats.over_seeds(part, ["alpha"])
        for kind, part in per_run.groupby(level="variant")
    }
    return {
        name: panels.band(panels.column(variants[kind], loss))
        for name, (loss, kind, _) in LINES.items()
        if kind in variants
    }
