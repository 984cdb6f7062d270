"""Mean ranks with critical differences (Demšar, 2006)."""

import textwrap

from matplotlib.figure import Figure

from ..labels import title_of
from ..paired import SIGNIFICANT
from ..ranks import Ranks, lacking_words
from ..words import say, sentences
from . import grid, style


def figure(ranks: Ranks) -> Figure:
    """A dot per method, the best on top, with half the critical difference to either side."""
    key = "found" if ranks.p < SIGNIFICANT else "none"
    note = sentences(
        say("ranks.note", score=ranks.title, blocks=len(ranks.ranks)),
        say("ranks.difference_note", difference=f"{ranks.difference:.2f}"),
        say(f"ranks.{key}_note", level=SIGNIFICANT),
        lacking_words(ranks),
    )
    rows, means = range(len(ranks.labels)), ranks.means.tolist()
    with style.look():
        fig, (axes,) = grid.method_rows([""], ranks.labels, "Mean rank", 1)
        axes.set_yticks(rows, [style.short(title_of(label), 38) for label in ranks.labels])
        axes.errorbar(
            means, rows, xerr=ranks.difference / 2, fmt="o", color=style.BLUE, capsize=3,
            markersize=7, elinewidth=1.4,
        )  # fmt: skip
        for row, mean in zip(rows, means, strict=True):
            axes.annotate(
                f"{mean:.2f}", (mean, row), (0, 6), textcoords="offset points", ha="center",
                fontsize=9,
            )  # fmt: skip
        fig.supxlabel(textwrap.fill(note, 110), color=grid.NOTE, fontsize=9)
    return fig
