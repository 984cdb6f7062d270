"""Figures of influence, of a partition, and of curves against simulated seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import AnalysisError, influence
from analysis.figures import curves, partition
from analysis.runs import Group


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


def partition_frame(counts: list[list[int]]) -> pd.DataFrame:
    """Rows of a partition.csv; ``counts`` (classes, clients)."""
    rows = [
        {"client_id": client, "label": label, "train_samples": n, "test_samples": 0}
        for label, image_row in enumerate(counts)
        for client, n in enumerate(image_row)
        if n
    ]
    return pd.DataFrame(rows)


def image_row(channels: int = 3, labels: tuple[str, ...] = ("a", "b")) -> partition.ImageRow:
    images = np.full((len(labels), channels, 4, 4), 100, dtype=np.uint8)
    return partition.ImageRow("Client 0\n2 samples", images, labels)


def test_spread_takes_both_ends_and_no_client_twice() -> None:
    assert partition.spread(50, 10).tolist() == [0, 5, 11, 16, 22, 27, 33, 38, 44, 49]
    assert partition.spread(3, 10).tolist() == [0, 1, 2]
    assert partition.spread(1, 10).tolist() == [0]


def test_images_are_chosen_by_the_classes_shares() -> None:
    labels = np.array([1, 0] * 3 + [2] * 18)  # 3 of class 0, 3 of class 1, 18 of class 2
    taken = partition.in_proportion(labels, 8)
    assert labels[taken].tolist() == [0, 1, 2, 2, 2, 2, 2, 2]
    assert len(set(taken.tolist())) == 8
    assert sorted(partition.in_proportion(np.array([4, 2, 3]), 8).tolist()) == [0, 1, 2]


def test_images_are_shown_with_their_classes() -> None:
    rows = [image_row(1, ("a", "a very long name of a class", "c")), image_row(1, ("b",))]
    figure = partition.figure(partition_frame([[3, 1]]), ["a"], rows)
    axes = figure.subfigs[1].axes
    titles = [a.get_title() for a in axes]
    assert titles == ["a", "a very long…", "c", "b", "", ""]
    assert [len(a.images) for a in axes] == [1, 1, 1, 1, 0, 0]
    assert [t.get_text() for t in axes[0].texts] == ["Client 0\n2 samples"]
    assert np.asarray(axes[0].images[0].get_array()).tolist() == [[100] * 4] * 4


def timed(folder: Path, **rounds: str) -> Group:
    rows = []
    for seed, (name, text) in enumerate(rounds.items()):
        (folder / name).mkdir()
        (folder / name / "rounds.csv").write_text(f"round,simulated_seconds,test_accuracy\n{text}")
        rows.append({"seed": seed, "path": str(folder / name), "algorithm": "fedavg"})
    return Group("fedavg", pd.DataFrame(rows))


def test_the_newest_value_at_each_time_by_hand(tmp_path: Path) -> None:
    """Evaluated at 1, 3, 6 s and at 2, 4 s: from 2 s to 4 s; the first run changes at 3 s."""
    both = timed(tmp_path, one="1,1,0.1\n2,2,0.3\n3,3,0.6\n", two="1,2,0.2\n2,2,0.4\n3,1,0.5\n")
    found = curves.by_seconds(both, "test_accuracy")
    assert (found.index[0], found.index[-1], len(found)) == (2, 5, curves.POINTS)
    one, two = found.T.to_numpy()
    assert set(one[found.index < 3]) == {0.1}
    assert set(one[found.index >= 3]) == {0.3}
    assert (two[0], two[-1]) == (0.2, 0.5)
    figure = curves.figure([both], ["test_accuracy"], x="seconds")
    assert figure.axes[0].get_xlabel() == "Simulated seconds"


def test_a_run_without_a_clock_is_named(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="simulated_seconds is empty"):
        curves.by_seconds(timed(tmp_path, one="1,,0.1\n"), "test_accuracy")
