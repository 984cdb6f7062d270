"""What each site has of federation: its own model and an approach's, on the site's own samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..facets import labels_in
from ..labels import title_of
from ..report.answer import Outcome
from ..tables.sites import Sites
from ..words import say
from . import grid, style
from .grid import Drawing

MOST = 3  # a figure has at most this many approaches, the best by their mean over the sites
MOST_SITES = 30  # more sites are in the table alone
OFFSET = 0.14  # of the two dots above and below the middle of their row
GREY = "#555555"
WORDS = {"helps": "#00694E", "harms": "#A03C00"}
"""The verdicts that a row shows, and their colours."""


def drawings(of: Outcome) -> Iterator[Drawing]:
    """A figure for each setting in which sites have models of their own to compare with."""
    found = {
        setting: sites
        for setting, sites in of.sites.items()
        if of.by_site and sites.reference is not None and 0 < len(sites.names) <= MOST_SITES
    }
    for number, (setting, sites) in enumerate(found.items(), 1):
        if best := [label for label in of.best(setting) if label != sites.reference]:
            name = f"site_pairs_{number}" if len(found) > 1 else "site_pairs"
            yield _drawing(of, setting, sites, best, name)


def _drawing(of: Outcome, setting: str, sites: Sites, best: list[str], name: str) -> Drawing:
    lines = style.lines([*labels_in(of.facets), *of.labels])
    axis, shown = sites.shown.axis, best[:MOST]
    reference = title_of(sites.reference or "")
    with style.look():
        names = [sites.name(client) for client in sites.names]
        fig, places = grid.named_rows([title_of(label) for label in shown], names, axis, MOST)
        for axes, label in zip(places, shown, strict=True):
            _panel(axes, sites, label, lines[label].colour)
        looks: dict[str, dict[str, Any]] = {
            f"{reference} (alone)": {"marker": "D", "color": GREY, "markerfacecolor": "white"},
            "the approach above": {"marker": "o", "color": GREY},
        }
        handles = [Line2D([], [], linestyle="", markersize=7, **look) for look in looks.values()]
        numbers = (cell.estimate.n for cell in sites.cells)
        grid.legend(fig, handles, list(looks), grid.unit_note(numbers, of.unit, "bar"))
    return grid.drawing(
        "site_pairs", fig, name=name, title=say("site_pairs.title", setting=setting),
        score=sites.shown.name, reference=reference, lowest=sites.shown.lowest,
        unit=of.unit, few=all(sites.few(cell) for cell in sites.cells if cell.comparison),
        more=len(best) - len(shown), held_out=bool(sites.held_out),
    )  # fmt: skip


def _panel(axes: Axes, sites: Sites, label: str, colour: str) -> None:
    """A row per site: its own model above, the approach below it, and the verdict."""
    alone, other, factor = sites.of(sites.reference or ""), sites.of(label), sites.shown.unit.factor
    look: dict[str, Any] = {"capsize": 2.5, "elinewidth": 1.3}
    dots = [(alone, -OFFSET, GREY, {"fmt": "D", "markerfacecolor": "white"})]
    dots += [(other, OFFSET, colour, {"fmt": "o"})]
    for row, name in enumerate(sites.names.values()):
        pair = [cells[name] for cells in (alone, other) if name in cells]
        means = [factor * cell.estimate.mean for cell in pair]
        axes.plot(means, [row - OFFSET, row + OFFSET][: len(means)], color="#AAAAAA", lw=1.4)
        for cells, offset, shade, own in dots:
            if name in cells:
                place = row + offset
                grid.mean_dot(axes, cells[name].estimate, place, sites.shown, shade, **own, **look)
        compared = name in other and other[name].comparison
        word = sites.verdict(other[name]) if compared else ""
        if word in WORDS:
            axes.annotate(
                word, (1, row), (4, 0), xycoords=("axes fraction", "data"), fontsize=10,
                textcoords="offset points", va="center", color=WORDS[word], fontweight="bold",
            )  # fmt: skip
    axes.margins(x=0.06)
