"""``fedsim partition``: the split as a table, as files, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedsim.cli.common import configuration
from fedsim.cli.options import (
    GroupedOption,
    SettingsCommand,
    out_option,
    preset_options,
    set_any_option,
    verbose_option,
)
from fedsim.cli.report import analysis
from fedsim.core.errors import ConfigError

if TYPE_CHECKING:
    from fedsim.config.experiments import Settings
    from fedsim.core.types import I64, Dataset, Partition


SUFFIXES = (".png", ".pdf", ".svg")
_PIXELS = 128
"""Larger images are shown at this size."""


def check_picture(file: Path) -> None:
    """Refuses a file that cannot be the picture.

    Raises:
        ConfigError: in one line.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {file}: the name must end in {', '.join(SUFFIXES)}")
    if not file.parent.is_dir():
        raise ConfigError(f"--plot {file}: there is no directory {file.parent}")
    if file.exists():
        raise ConfigError(f"--plot {file}: is already there")


def save_picture(dataset: Dataset, split: Partition, title: str, note: str, file: Path) -> None:
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

    from fedsim.data import partitions
    from fedsim.data.images import resize

    drawing = analysis("partition")
    rows = []
    shown_clients = drawing.CLIENTS if dataset.inputs == "images" else 0
    for client in drawing.spread(split.num_clients, shown_clients).tolist():
        own = split.train[client]
        shown = own[drawing.in_proportion(dataset.y[own])]
        images = resize(dataset.x[shown], min(_PIXELS, dataset.x.shape[-1]))
        name = split.names[client] if split.names else f"Client {client}"
        labels = [dataset.class_names[label] for label in dataset.y[shown].tolist()]
        rows.append(drawing.ImageRow(f"{name}\n{len(own):,} samples", images, labels))
    frame = pd.DataFrame(partitions.table(dataset, split))
    classes = ("text",) if dataset.vocabulary else dataset.class_names  # the table's label is -1
    figure = drawing.figure_with_images(frame, title, classes, rows, note)
    analysis("style").save(figure, file)


@click.command(cls=SettingsCommand)
@preset_options
@set_any_option
@out_option("Write partition.csv, split.csv and partition.png there.")
@click.option(
    "--plot",
    cls=GroupedOption,
    group="Files",
    metavar="FILE",
    help="Draw who owns what, with some images of the clients: a .png, .pdf or .svg file.",
)
@verbose_option
def partition(
    preset: str | None, config: str | None, out: str | None, plot: str | None, flags: Settings
) -> None:
    """Show who would own what, before anyone trains on it.

    Prints the training samples of each client by class. With --out DIR it also writes the table, a
    picture, and split.csv, which '--set data.partition_file=DIR/split.csv --partition files' reads.
    --plot FILE shows images as well, after their feature shift.

    \b
      fedsim partition --alpha 0.1
      fedsim partition -d retinamnist --data-dir data/ --clients 20 --out split/
      fedsim partition -d shortcut --clients 12 --plot shortcut.png
    """
    from fedsim.data import holdout
    from fedsim.training import setup
    from fedsim.training.tables import show

    settings = configuration(preset, config, flags)
    if out:
        check_new(Path(out))
    if plot:
        check_picture(Path(plot))
    dataset, split, kind = setup.load(settings)
    title = (
        f"{dataset.name}, {kind}: {sum(map(len, split.train))} training samples of "
        f"{dataset.num_classes} classes on {split.num_clients} clients"
    )
    click.echo(title)
    if gone := holdout.left_out(dataset):
        click.echo(f"left out: {gone} users with fewer than data.min_samples training samples")
    show(class_table(dataset, split))
    if out:
        write_split(dataset, split, Path(out))
        click.echo(f"files: {out}/partition.csv, {out}/split.csv, {out}/partition.png")
    if plot:
        shift = settings.data.feature_shift
        note = "Training images" + (f", feature shift {shift}" if shift != "none" else "")
        save_picture(dataset, split, title, note, Path(plot))
        click.echo(f"picture: {plot}")


FILES = ("partition.csv", "split.csv", "partition.png")


def check_new(folder: Path) -> None:
    """Refuses to write over files.

    Raises:
        ConfigError: one of the files is there, or the path is no directory.
    """
    from fedsim.core.errors import ConfigError

    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder}: is not a directory")
    for name in FILES:
        if (folder / name).exists():
            raise ConfigError(f"--out {folder}: {name} is already there")


def class_table(dataset: Dataset, split: Partition) -> list[dict[str, str]]:
    """A row per client: samples of each class (of text, none) and in all, then the sums."""
    import numpy as np

    if dataset.vocabulary:
        counts = [np.array([len(own)]) for own in split.train]
    else:
        counts = [np.bincount(dataset.y[own], minlength=dataset.num_classes) for own in split.train]
    names = split.names or ("",) * split.num_clients
    rows = [
        _row(str(client), name, own)
        for client, (name, own) in enumerate(zip(names, counts, strict=True))
    ]
    rows.append(_row("all", "", np.sum(counts, axis=0)))
    if dataset.vocabulary:
        rows = [{key: cell for key, cell in row.items() if key != "class 0"} for row in rows]
    if not split.names:
        rows = [{key: cell for key, cell in row.items() if key != "name"} for row in rows]
    return rows


def _row(client: str, name: str, counts: I64) -> dict[str, str]:
    cells = {f"class {label}": str(count) for label, count in enumerate(counts)}
    return {"client": client, "name": name, **cells, "samples": str(counts.sum())}


def write_split(dataset: Dataset, split: Partition, folder: Path) -> None:
    """Writes the table, the picture and the reusable split."""
    import pandas as pd

    from fedsim.data import partitions

    folder.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(partitions.table(dataset, split))
    frame.to_csv(folder / "partition.csv", index=False, lineterminator="\n")
    partitions.write(split, dataset, folder / "split.csv")
    figure = analysis("partition").figure(frame)
    figure.savefig(folder / "partition.png", dpi=150, bbox_inches="tight")
