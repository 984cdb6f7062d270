"""The diagram of mean ranks with critical differences (Demšar, 2006, figure 1)."""

from __future__ import annotations

import math
import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..labels import title_of
from ..paired import SIGNIFICANT
from ..ranks import Ranks, lacking_words
from ..words import say, sentences
from . import style
from .grid import NOTE, WIDTH

LETTER = 0.09
"""Width of a character of a label in inches."""
LONGEST = 38
"""Longer labels are shortened."""
ROW, STEP = 0.27, 0.13
"""Heights in inches of a label, and of a bar."""
AXIS = 0.85
"""Height of the axis below the upper edge in inches."""


def figure(ranks: Ranks) -> Figure:
    """Mean ranks on an axis, the best on the left; bars join methods that do not differ.

    The lines from labels to ranks never cross, so that one colour serves any number of methods.
    """
    labels, means = ranks.labels, ranks.means.tolist()
    names = [style.short(title_of(label), LONGEST) for label in labels]
    side = 0.85 + LETTER * max(map(len, names))
    width = max(WIDTH, 4.2 + 2 * side)
    bars, half = _levels(ranks.cliques), (len(labels) + 1) // 2
    first_row = AXIS + 0.25 + STEP * (2 + max((level for *_, level in bars), default=-1))
    note = textwrap.wrap(_note(ranks), int(width * 15))
    below = first_row + ROW * half
    height = below + 0.17 * len(note) + 0.15
    scale = (width - 2 * side) / max(1, len(labels) - 1)
    with style.look():
        fig = Figure(figsize=(width, height))
        fig.set_layout_engine("none")
        axes = fig.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()

        def x(rank: float) -> float:
            return side + scale * (rank - 1)

        _axis(axes, ranks, side, scale)
        for first, last, level in bars:
            y = AXIS + 0.17 + STEP * level
            ends = [x(means[first]) - 0.05, x(means[last]) + 0.05]
            axes.plot(ends, [y, y], color=style.BLACK, linewidth=3.2, solid_capstyle="butt")
        for i, (name, mean) in enumerate(zip(names, means, strict=True)):
            left = i < half
            y = first_row + ROW * (i if left else len(labels) - 1 - i)
            end = side - 0.15 if left else width - side + 0.15
            axes.plot([x(mean), x(mean), end], [AXIS, y, y], color=NOTE, linewidth=0.9, zorder=1.5)
            shown = f"{name}  {mean:.2f} " if left else f" {mean:.2f}  {name}"
            axes.text(end, y, shown, ha="right" if left else "left", va="center", fontsize=10)
        axes.text(0.15, below, "\n".join(note), fontsize=9, color=NOTE, va="top")
    return fig


def _axis(axes: Axes, ranks: Ranks, start: float, scale: float) -> None:
    """The line of ranks with its ticks, and above it the critical difference as a length."""
    most = len(ranks.labels) - 1
    axes.plot([start, start + scale * most], [AXIS, AXIS], color=style.BLACK, linewidth=1)
    for rank in range(0, most + 1, math.ceil((most + 1) / 12)):
        at = start + scale * rank
        axes.plot([at, at], [AXIS - 0.07, AXIS], color=style.BLACK, linewidth=1)
        axes.text(at, AXIS - 0.17, str(rank + 1), ha="center", va="center", fontsize=10)
    axes.text(start - 0.1, AXIS - 0.17, "mean rank", ha="right", va="center", fontsize=10)
    end = start + scale * min(ranks.difference, most)
    axes.plot([start, end], [0.4, 0.4], "|-", color=NOTE, linewidth=1.4, markersize=7)
    shown = f"critical difference {ranks.difference:.2f}"
    shown += " (longer than the axis)" * (ranks.difference > most)
    axes.text(start, 0.25, shown, ha="left", va="center", fontsize=10, color=NOTE)


def _levels(cliques: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Each clique with the lowest level at which its bar touches no other one."""
    placed: list[tuple[int, int, int]] = []
    for first, last in cliques:
        taken = {level for start, end, level in placed if first <= end and start <= last}
        level = next(level for level in range(len(cliques)) if level not in taken)
        placed.append((first, last, level))
    return placed


def _note(ranks: Ranks) -> str:
    key = "found" if ranks.p < SIGNIFICANT else "none"
    return sentences(
        say("ranks.note", score=ranks.title, blocks=len(ranks.ranks)),
        say(f"ranks.{key}_note", level=SIGNIFICANT),
        lacking_words(ranks),
    )
