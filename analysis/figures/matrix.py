"""A table of methods by columns as a heat map: the rules of a study by its attacks."""

from __future__ import annotations

import textwrap

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ..formats import NumberFormat
from ..tables.layout import COLLAPSE, EMPTY, WORST, Table, means_of, unit_of, worst
from ..words import say, sentences
from . import grid, style


def figure(table: Table, unit: NumberFormat, lowest: bool = False) -> Figure:
    """A cell for each mean, with its interval, as in the table; white where there is none. Dark is
    better; ``lowest`` says that this is lower."""
    means = unit.factor * means_of(table)
    heads = [head.partition(" (")[0] for head in table.head[1:]]
    if heads[-1] == WORST:
        means[WORST] = worst(means, lowest)
    values = means.to_numpy()
    finite = values[np.isfinite(values)]
    norm = Normalize(*((finite.min(), finite.max()) if len(finite) else (0, 1)))
    shades = 1 - norm(values) if lowest else norm(values)
    texts = {
        place: (_lines(table.rows[place[0]][place[1] + 1]), bool(shade > 0.55))
        for place, shade in np.ndenumerate(shades)
    }
    with style.look():
        height = 0.62 * len(values) + 1.3
        fig = Figure(figsize=(max(grid.WIDTH, 1.35 * values.shape[1] + 2.6), height))
        axes = fig.subplots()
        cmap = "Blues_r" if lowest else "Blues"
        image = grid.heat_cells(axes, values, texts, 9, norm=norm, cmap=cmap, linewidth=0.8)
        axes.set_xticks(range(len(heads)), [style.wrapped(head, 1.3) for head in heads])
        axes.set_yticks(range(len(values)), [style.short(row[0], 38) for row in table.rows])
        axes.set_ylim(len(values) - 0.5, -0.5)
        axes.xaxis.tick_top()
        if heads[-1] == WORST:
            axes.axvline(len(heads) - 1.5, color="white", linewidth=6)
        fig.colorbar(image, ax=axes, pad=0.015).outline.set_visible(False)
        counts = (cell.estimate.n for cell in table.cells)
        note = sentences(
            f"{table.title}. {grid.unit_note(counts, unit_of(table.cells), '±')}.",
            say("tables.worst") * (WORST in heads),
            f"{COLLAPSE}: a final model has collapsed." * any(c.collapsed for c in table.cells),
        )
        fig.supxlabel(textwrap.fill(note, 110), color=grid.NOTE, fontsize=9)
    return fig


def _lines(text: str) -> str:
    """A table's cell on two lines, the interval below the mean; nothing where it is empty."""
    mean, plus, rest = text.replace("**", "").partition(" ± ")
    return "" if mean == EMPTY else f"{mean}\n± {rest}" if plus else mean
