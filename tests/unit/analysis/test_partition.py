"""Bubbles and images of a partition, by client and class."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.figures import partition
from analysis.figures.partition import figure_with_images


def frame(counts: list[list[int]]) -> pd.DataFrame:
    """Rows of a partition.csv; ``counts`` (classes, clients)."""
    rows = [
        {"client_id": client, "label": label, "train_samples": n, "test_samples": 0}
        for label, row in enumerate(counts)
        for client, n in enumerate(row)
        if n
    ]
    return pd.DataFrame(rows)


def row(channels: int = 3, labels: tuple[str, ...] = ("a", "b")) -> partition.ImageRow:
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
    rows = [row(1, ("a", "a very long name of a class", "c")), row(1, ("b",))]
    figure = figure_with_images(frame([[3, 1]]), "title", ["a"], rows, "Training images")
    axes = figure.subfigs[1].axes
    titles = [a.get_title() for a in axes]
    assert titles == ["a", "a very long…", "c", "b", "", ""]
    assert [len(a.images) for a in axes] == [1, 1, 1, 1, 0, 0]
    assert [t.get_text() for t in axes[0].texts] == ["Client 0\n2 samples"]
    assert np.asarray(axes[0].images[0].get_array()).tolist() == [[100] * 4] * 4
