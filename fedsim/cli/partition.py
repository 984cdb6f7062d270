"""``fedsim partition``: the split as a table, as files, and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedsim.cli import options
from fedsim.cli.common import configuration
from fedsim.core.analysis import analysis
from fedsim.core.errors import ConfigError
from fedsim.core.terminal import echo
from fedsim.core.text import counted, few

if TYPE_CHECKING:
    from fedsim.core.types import Dataset, Partition

FILES = ("partition.csv", "split.csv", "partition.png")
"""The files of ``--out DIR``."""
LONG = 16
"""Longer names of classes are cut in the table's heading."""
CLASSES_OF_TEXT = 20
"""Samples of text are counted by class in the table where there are at most so many."""
MAX_PIXELS = 128
"""Larger images are shown at this size."""
STRATUM = "stratum {}"
SITES = 12
"""So many sites are listed with their numbers of training samples."""


@click.command(cls=options.SettingsCommand, shown=lambda key: key.startswith("data."))
@options.preset_options
@options.set_any_option
@options.out_option(help="Write partition.csv, split.csv and partition.png there.")
@options.verbose_option
def partition(
    preset: str | None, config: str | None, out: str | None, flags: options.Settings
) -> None:
    """Show how a run would split the data over clients.

    Prints the training samples of each client by class. --out DIR also writes the table, a figure,
    and split.csv, which '--set data.partition_file=DIR/split.csv --partition files' reads.

    \b
      fedsim partition --alpha 0.1
      fedsim partition -d retinamnist --data-dir data/ --clients 20 --out split/
      fedsim partition -d FILE.py:function --out shares/
    """
    from fedsim.data import holdout, patients
    from fedsim.display.tables import show
    from fedsim.engine.blocks import named
    from fedsim.storage.run_dir import check_outside_runs
    from fedsim.training import loading
    from fedsim.training.malicious import malicious_clients

    settings = configuration(preset, config, flags)
    if out:
        check_outside_runs(Path(out))
        if taken := [name for name in FILES if Path(out, name).exists()]:
            raise ConfigError(f"--out {out}: {taken[0]} is already there")
    dataset, split, kind = loading.load(settings)
    malicious = malicious_clients(settings.attack, settings.data, split)
    samples = counted(sum(map(len, split.train)), "training sample")
    clients = counted(split.num_clients, "client")
    of_classes = dataset.task is None or dataset.task.cross_entropy
    of = f" of {dataset.num_classes} classes" if of_classes else ""
    echo(f"{dataset.name}, {kind}: {samples}{of} on {clients}")
    group = patients.grouping(dataset, kind, settings.data.group)
    excluded = holdout.num_left_out(dataset)
    lines = (
        patients.grouping_line(dataset, split, group),
        *dataset.remarks,
        site_line(dataset, split),
        excluded
        and f"left out: {excluded} users with fewer than data.min_samples training samples",
        holdout.held_out_line(split),
        malicious and f"malicious: {named(malicious)}",
    )
    for line in filter(None, lines):
        echo(str(line))
    show(class_table(dataset, split))
    if out:
        write_split(dataset, split, Path(out), malicious)
        echo(f"files: {out}/partition.csv, {out}/split.csv, {out}/partition.png")


def class_table(dataset: Dataset, split: Partition) -> list[dict[str, str]]:
    """One row per client, then the sums: training samples by class, or stratum, (of text by few)
    and in all."""
    import numpy as np

    names, strata = stratum_names(dataset), dataset.strata
    if strata is None or (dataset.vocabulary and len(names) > CLASSES_OF_TEXT):
        names = ()
    names = tuple(n if len(n) <= LONG else f"{n[: LONG - 3]}..." for n in names)
    heads = [f"class {n}" if n == str(c) else f"{c} {n}" for c, n in enumerate(names)]
    heads = [*names] if names and names[0] == STRATUM.format(0) else heads
    rows = []
    for client, samples in enumerate([*split.train, np.concatenate(split.train)]):
        last = client == split.num_clients
        row = {"client": "all" if last else str(client)}
        if split.names:
            row["name"] = "" if last else split.names[client]
        if strata is not None and heads:
            counts = np.bincount(strata[samples], minlength=len(heads))
            row |= {head: str(count) for head, count in zip(heads, counts, strict=True)}
        rows.append(row | {"samples": str(len(samples))})
    return rows


def stratum_names(dataset: Dataset) -> Sequence[str]:
    """By number the names of classes, or of what else samples are dealt by."""
    if dataset.task is None or dataset.task.cross_entropy or dataset.strata is None:
        return dataset.class_names
    most = max(dataset.num_classes, 1 + int(dataset.strata.max(initial=0)))
    named = most == dataset.num_classes
    return dataset.class_names if named else [*map(STRATUM.format, range(most))]


def site_line(dataset: Dataset, split: Partition) -> str:
    """The training samples of each site; empty without sites, and where these are users."""
    import numpy as np

    if dataset.site is None or dataset.sites_are_users:
        return ""
    training = np.union1d(dataset.train, np.concatenate(split.train))  # those held out, too
    counts = np.bincount(dataset.site[training], minlength=len(dataset.site_names)).tolist()
    sites = [f"{name} {n}" for name, n in zip(dataset.site_names, counts, strict=True)]
    return f"{counted(len(sites), 'site')}: {few(sites, SITES)}"


def write_split(dataset: Dataset, split: Partition, folder: Path, malicious: Sequence[int]) -> None:
    """Writes the table, the split for ``data.partition_file``, and the figure, with some images of
    up to ten clients where the samples are images."""
    import numpy as np
    import pandas as pd

    from fedsim.core import files
    from fedsim.data import partitions, splits
    from fedsim.data.images import resize
    from fedsim.storage.run_dir import csv_text

    names, strata = stratum_names(dataset), dataset.strata
    frame = pd.DataFrame(partitions.table(dataset, split, malicious=malicious))
    samples = splits.columns(dataset, split, malicious)
    drawing = analysis("figures.partition")
    rows = []
    most = drawing.CLIENTS if dataset.inputs == "images" else 0
    for client in drawing.spread(split.num_clients, most).tolist():
        owned = split.train[client]
        of = np.zeros(len(owned), np.int64) if strata is None else strata[owned]
        shown = owned[drawing.in_proportion(of)]
        images = resize(dataset.x[shown], min(MAX_PIXELS, dataset.x.shape[-1]))
        name = split.names[client] if split.names else f"Client {client}"
        labels = [""] * len(shown) if strata is None else [names[k] for k in strata[shown].tolist()]
        rows.append(drawing.ImageRow(f"{name}\n{len(owned):,} samples", images, labels))
    unlabelled = ["text" if dataset.per_token else "samples"]  # the table's label is -1
    figure = drawing.figure(frame, unlabelled if strata is None else names, rows, split.held_out)
    with files.replacing_folder(folder) as unfinished, analysis("figures.style").look():
        (unfinished / "partition.csv").write_bytes(csv_text(frame).encode())
        (unfinished / "split.csv").write_bytes(csv_text(samples).encode())
        figure.savefig(unfinished / "partition.png", dpi=150, bbox_inches="tight")
