"""``fedsim partition``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedsim.cli import picture
from fedsim.cli.configuration import configuration
from fedsim.cli.options import (
    GroupedCommand,
    GroupedOption,
    out_option,
    settings_options,
    verbose_option,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from fedsim.contracts import I64, Dataset, Partition


@click.command(cls=GroupedCommand)
@settings_options()
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
    preset: str | None, config: str | None, out: str | None, plot: str | None, **values: Any
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
    from fedsim import shares
    from fedsim.data import users
    from fedsim.tables import show

    settings = configuration(preset, config, values)
    if out:
        check_new(Path(out))
        draw = figure()
    if plot:
        picture.check(Path(plot))
    dataset, split, kind = shares.load(settings)
    title = (
        f"{dataset.name}, {kind}: {sum(map(len, split.train))} training samples of "
        f"{dataset.num_classes} classes on {split.num_clients} clients"
    )
    click.echo(title)
    if gone := users.left_out(dataset):
        click.echo(f"left out: {gone} users with fewer than data.min_samples training samples")
    show(class_table(dataset, split))
    if out:
        write(dataset, split, Path(out), draw)
        click.echo(f"files: {out}/partition.csv, {out}/split.csv, {out}/partition.png")
    if plot:
        shift = settings.data.feature_shift
        note = "Training images" + (f", feature shift {shift}" if shift != "none" else "")
        picture.save(dataset, split, title, note, Path(plot))
        click.echo(f"picture: {plot}")


FILES = ("partition.csv", "split.csv", "partition.png")


def check_new(folder: Path) -> None:
    """Refuses to write over files.

    Raises:
        ConfigError: one of the files is there, or the path is no directory.
    """
    from fedsim.errors import ConfigError

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


def figure() -> Callable[[pd.DataFrame], Figure]:
    """The function that draws the picture, from the package ``analysis`` beside fedsim.

    Raises:
        ConfigError: another package of that name, such as one of the user's, is found first.
    """
    try:
        from analysis.partition import figure as drawing
    except ImportError as error:
        raise picture.foreign("--out", error) from error
    return drawing


def write(
    dataset: Dataset, split: Partition, folder: Path, draw: Callable[[pd.DataFrame], Figure]
) -> None:
    """Writes the table, the picture and the reusable split."""
    import pandas as pd

    from fedsim.data import partitions

    folder.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(partitions.table(dataset, split))
    frame.to_csv(folder / "partition.csv", index=False, lineterminator="\n")
    partitions.write(split, dataset, folder / "split.csv")
    draw(frame).savefig(folder / "partition.png", dpi=150, bbox_inches="tight")
