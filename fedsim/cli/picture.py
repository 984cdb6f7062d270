"""The picture of ``fedsim partition --plot``: who owns what, and some of the images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.errors import ConfigError

if TYPE_CHECKING:
    from fedsim.contracts import Dataset, Partition

SUFFIXES = (".png", ".pdf", ".svg")
_PIXELS = 128
"""Larger images are shown at this size."""


def check(file: Path) -> None:
    """Refuses a file that cannot be the picture, and another package in place of ``analysis``.

    Raises:
        ConfigError: in one line.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {file}: the name must end in {', '.join(SUFFIXES)}")
    if not file.parent.is_dir():
        raise ConfigError(f"--plot {file}: there is no directory {file.parent}")
    if file.exists():
        raise ConfigError(f"--plot {file}: is already there")
    try:
        import analysis.samples  # noqa: F401
    except ImportError as error:
        raise foreign("--plot", error) from error


def foreign(flag: str, error: ImportError) -> ConfigError:
    """What to say where ``analysis`` is not fedsim's, but such as one of the user's."""
    found = sys.modules.get("analysis")
    where = getattr(found, "__file__", None) or next(iter(getattr(found, "__path__", ())), None)
    return ConfigError(
        f"{flag}: the picture needs the package 'analysis' of fedsim, found is {where}: {error}"
    )


def save(dataset: Dataset, split: Partition, title: str, note: str, file: Path) -> None:
    """Draws bubbles by class and client and images of up to ten clients into ``file``.

    Of features and text only the bubbles.

    Args:
        dataset: with the samples as clients see them.
        split: who owns what.
        title: of the whole.
        note: of the images.
        file: checked by :func:`check`.
    """
    import pandas as pd

    from analysis import samples, style
    from fedsim.data import partitions
    from fedsim.data.images import resize

    rows = []
    shown_clients = samples.CLIENTS if dataset.inputs == "images" else 0
    for client in samples.spread(split.num_clients, shown_clients).tolist():
        own = split.train[client]
        shown = own[samples.in_proportion(dataset.y[own])]
        images = resize(dataset.x[shown], min(_PIXELS, dataset.x.shape[-1]))
        name = split.names[client] if split.names else f"Client {client}"
        labels = [dataset.class_names[label] for label in dataset.y[shown].tolist()]
        rows.append(samples.Row(f"{name}\n{len(own):,} samples", images, labels))
    frame = pd.DataFrame(partitions.table(dataset, split))
    classes = ("text",) if dataset.vocabulary else dataset.class_names  # the table's label is -1
    style.save(samples.figure(frame, title, classes, rows, note), file)
