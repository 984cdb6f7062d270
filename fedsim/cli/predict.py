"""``fedsim predict``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from fedsim.cli import options
from fedsim.cli.common import check_new_file, on_run, write_table
from fedsim.cli.names import files, folders
from fedsim.core.terminal import echo
from fedsim.core.text import counted, few

SHOWN = 8
"""So many classes are listed with their numbers of predictions."""

predict_option = partial(click.option, cls=options.GroupedOption, group="What to predict")


@click.command(cls=options.GroupedCommand)
@on_run()
@click.argument("more", metavar="", nargs=-1, shell_complete=files)
@predict_option(
    "--images",
    metavar="DIR|FILE...",
    shell_complete=files,
    help="New images, without labels: a folder with all that is in it, or files.",
)
@predict_option(
    "--rows",
    metavar="FILE...",
    shell_complete=files,
    help="New rows of a table, or texts, without labels: CSV files with the columns of features, "
    "and of the site where each has its own scale; or a folder of them.",
)
@predict_option(
    "--client",
    type=options.number_or_name,
    metavar="K|NAME",
    help="Use this client's model: its number, or the name of its site or hospital. Of samples "
    "that clients own, only its own are predicted.",
)
@predict_option(
    "--split",
    metavar="NAME",
    help="test, val or train; own_test, own_val or own_train, which are the clients' own parts; or "
    "all, every sample of the data set.  [default: test; all with --data-dir]",
)
@predict_option(
    "--data-dir",
    metavar="NEW",
    shell_complete=folders,
    help="Read this folder in place of the run's data.dir: new data of the same kind and classes, "
    "with labels.",
)
@options.files_option("--out", metavar="FILE", required=True, help="The CSV file.")
@options.accept_option
@options.verbose_option
def predict(
    run: str, more: tuple[str, ...], images: str | None, rows: str | None, out: str, **choices: Any
) -> None:
    """Write what the final models of a run predict, sample by sample.

    RUN is the directory of a finished run, by default the newest below runs/. FILE gets a row per
    sample: label, prediction and the probability of each class, or the target and what another task
    predicts. Without --client the models are those that the run evaluates: the global one, or, with
    personalised methods, each client's own.

    With --images or --rows the run's own data need not be there. Of a class for each pixel the
    masks are written to FILE_masks/, PNG files of class indices, of new images in their size.

    \b
      fedsim predict RUN --images new_scans/ --out new.csv
      fedsim predict RUN --rows new_patients.csv --out new.csv
      fedsim predict RUN --client 2 --images a.jpg b.jpg --out two.csv
      fedsim predict RUN --client 'hospital b' --split own_test --out hospital_b.csv
      fedsim predict RUN --data-dir new_images/ --out new.csv
    """
    new = {"images": images, "rows": rows}
    given: dict[str, Any] = {name: (first, *more) for name, first in new.items() if first}
    if more and not given:
        raise click.UsageError(
            f"{more[0]!r}: files of images stand after --images, tables after --rows"
        )
    check_new_file(Path(out), "--out")
    from fedsim.predictions import masks
    from fedsim.predictions.predict import predict as predicted

    frame = predicted(run, **given, **choices)
    what = counted(len(frame), "row" if rows else "image" if images else "prediction")
    said = frame.get("prediction", frame.iloc[:, -1])
    if "mask" in frame:
        frame = masks.written(frame, Path(out))
        echo(f"{counted(len(frame), 'mask')} in {masks.folder_of(Path(out))}")
    elif "label" in frame:
        echo(f"{what}: accuracy {(frame['label'] == said).mean():.4f}")
    elif said.dtype.kind in "fi":  # of another task
        echo(f"{what}: {', '.join(frame.columns)}")
    else:
        shown = [f"{count} {name}" for name, count in said.value_counts().items()]
        echo(f"{what}: {few(shown, SHOWN, 'classes')}")
    write_table(frame, out, "table")
