"""The three terms of the loss decomposition over the rounds."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import panels, streams
from analysis.drawing import Absent, Drawing
from analysis.facets import Facets, drawn

COLUMNS = {
    "local_loss": "Local loss (nats)",
    "shift_loss": "Shift loss (nats)",
    "aggregation_loss": "Aggregation loss (nats)",
    "global_loss": "Global loss (nats)",
}
SPLITS = {
    "train": "training data", "val": "the clients' validation parts",
    "test": "the clients' test parts", "common_test": "the common test part",
}  # fmt: skip
TITLE = "Loss decomposition"
ABSENT = Absent(TITLE, "no decomposition.csv; `fedsim run --decompose-every N` writes it")


def draw(facets: Facets) -> Drawing | Absent:
    """Local, shift, aggregation and global loss by round, a row of panels per setting and split."""
    rows: list[list[panels.Panel]] = []
    kinds: list[tuple[str, str]] = []
    for setting, groups in facets.items():
        keys = ("split", "scope", "round")
        found = {
            label: by_kind(frame)
            for label, frame in streams.series(groups, "decomposition", [*COLUMNS], keys).items()
        }
        own = sorted({kind for parts in found.values() for kind in parts})
        kinds += own
        for kind in own:
            part = {label: parts[kind] for label, parts in found.items() if kind in parts}
            title = "; ".join(filter(None, (setting, ", ".join(kind) if len(own) > 1 else "")))
            rows.append(
                [
                    panels.Panel(
                        label, panels.curves(part, column), title,
                        zero=column in ("shift_loss", "aggregation_loss"),
                    )
                    for column, label in COLUMNS.items()
                ]
            )  # fmt: skip
    if not rows:
        return ABSENT
    flat = [panel for row in rows for panel in row]
    seeds = panels.seeds_of(flat)
    return Drawing(
        "decomposition",
        TITLE,
        f"Local, shift and aggregation loss and their sum, the global loss, by communication "
        f"round, on {where(kinds)}. {seeds}.",
        "Local + shift + aggregation = global loss, exactly. The shift loss is what the clients' "
        "models lose on the data of others; the aggregation loss is what the global model loses "
        "against the mean of the clients' models. Values are signed, the grey line marks zero: "
        "below it, averaging the models helps.",
        panels.grid(flat, 2 if len(rows) == 1 else 4, seeds, drawn(facets)),
    )


def by_kind(frame: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """The rows of each split and scope, which leave the index."""
    levels = ["split", "scope"]
    parts = {(str(key[0]), str(key[1])): part for key, part in frame.groupby(level=levels)}
    return {kind: part.reset_index(levels, drop=True) for kind, part in parts.items()}


def where(kinds: Sequence[tuple[str, str]]) -> str:
    """Splits and scopes in words: the data that losses are over, and whose."""
    scopes = {"cohort": "the clients of the round", "population": "all clients"}
    known = [f"{SPLITS.get(s, s)} ({scopes.get(c, c)})" for s, c in dict.fromkeys(kinds)]
    return " and ".join(known)
