"""The figure of who helped and who hurt, from an influence.csv."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import influence


def row(round: int, client: int, shapley: float, alone: float = 0.1, **more: Any) -> dict[str, Any]:
    return {
        "round": round, "client_id": client, "name": "", "metric": "val_loss", "total": 1.0,
        "leave_one_out": alone, "shapley": shapley, "shapley_error": 0.0, **more,
    }  # fmt: skip


ROWS = pd.DataFrame(
    [
        row(1, 0, 0.5, shapley_error=0.3),
        row(2, 0, -0.1, shapley_error=0.4),
        row(1, 1, -0.2, -0.3, name="north"),
        row(3, 2, 0.9, name="a hospital with a very long name indeed", attacker=1),
    ]
)


def test_sums_by_hand() -> None:
    # client 0: 0.5 - 0.1 = 0.4, with an error of sqrt(0.3^2 + 0.4^2) = 0.5
    sums = influence.summed(ROWS)
    assert list(sums["client_id"]) == [2, 0, 1]
    assert list(sums["rounds"]) == [1, 2, 1]
    np.testing.assert_allclose(sums["shapley"], [0.9, 0.4, -0.2])
    np.testing.assert_allclose(sums["shapley_error"], [0, 0.5, 0], atol=1e-15)
    np.testing.assert_allclose(sums["leave_one_out"], [0.1, 0.2, -0.3])


def test_bars_are_the_sums_and_colours_their_signs() -> None:
    fig = influence.figure(ROWS)
    bars, by_round, _ = fig.axes
    widths = {round(p.get_y() + p.get_height() / 2): p.get_width() for p in bars.patches}
    assert widths == pytest.approx({0: 0.9, 1: 0.4, 2: -0.2})
    colours = {p.get_width() > 0: p.get_facecolor() for p in bars.patches}
    assert colours[True] != colours[False]
    dots = next(line for line in bars.lines if line.get_marker() == "o")
    np.testing.assert_allclose(dots.get_xdata(), [0.1, 0.2, -0.3])
    assert bars.get_ylim()[0] > bars.get_ylim()[1]  # who helped most stands on top
    cells = by_round.collections[0].get_array()
    assert cells is not None
    expected = [[np.nan, np.nan, 0.9], [0.5, -0.1, np.nan], [-0.2, np.nan, np.nan]]
    np.testing.assert_allclose(np.ma.filled(cells, np.nan), expected)
    labels = [text.get_text() for text in bars.get_yticklabels()]
    assert labels == ["a hospital with a very … (attacker)", "client 0", "north"]
    low, high = by_round.collections[0].get_clim()
    assert low == -high  # white is 0


def test_without_shapley_values_the_bars_are_leave_one_out() -> None:
    fig = influence.figure(ROWS.assign(shapley=np.nan, shapley_error=np.nan))
    widths = sorted(p.get_width() for p in fig.axes[0].patches)
    assert widths == pytest.approx([-0.3, 0.1, 0.2])
    assert not [line for line in fig.axes[0].lines if line.get_marker() == "o"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_it_is_written_the_same_every_time(tmp_path: Path, suffix: str) -> None:
    first, again = (tmp_path / f"{name}{suffix}" for name in ("first", "again"))
    influence.draw(ROWS, first)
    influence.draw(ROWS, again)
    assert first.read_bytes() == again.read_bytes()
