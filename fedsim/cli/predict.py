"""``fedsim predict``."""

from __future__ import annotations

from pathlib import Path

import click

from fedsim.cli.common import make_importable
from fedsim.cli.names import folders
from fedsim.cli.options import GroupedCommand, GroupedOption, accept_option, verbose_option
from fedsim.core.errors import ConfigError
from fedsim.core.terminal import echo


@click.command(cls=GroupedCommand)
@click.argument("run", metavar="RUN", shell_complete=folders)
@click.option(
    "--client",
    cls=GroupedOption,
    group="What to predict",
    type=int,
    metavar="K",
    help="Only with client K's model; of samples that clients own, only K's.",
)
@click.option(
    "--split",
    cls=GroupedOption,
    group="What to predict",
    metavar="NAME",
    help="test, val or train; own_test, own_val or own_train, which are the clients' own parts; or "
    "all, every sample of the data set.  [test; all with --data-dir]",
)
@click.option(
    "--data-dir",
    cls=GroupedOption,
    group="What to predict",
    metavar="NEW",
    shell_complete=folders,
    help="Read this folder in place of the run's data.dir: new data of the same kind and classes, "
    "with labels.",
)
@click.option(
    "--out", cls=GroupedOption, group="Files", metavar="FILE", required=True, help="The CSV file."
)
@accept_option
@verbose_option
def predict(
    run: str,
    client: int | None,
    split: str | None,
    data_dir: str | None,
    out: str,
    accept_changed_code: bool,
) -> None:
    """Write what the final models of a run predict, sample by sample.

    RUN is the directory of a finished run. FILE gets the columns sample, client_id, label,
    prediction, a probability_K for each class K, label_name, prediction_name, and file where
    samples are files. Without --client the models are those that the run evaluates: the global
    one, or, with personalised methods, each client's own.

    \b
      fedsim predict runs/digits/fedavg/RUN --out predictions.csv
      fedsim predict RUN --client 3 --split own_test --out client3.csv
      fedsim predict RUN --data-dir new_images/ --out new.csv
    """
    from fedsim.config import experiments
    from fedsim.core import files
    from fedsim.storage.run_dir import csv_text

    check_output(Path(out))
    config = Path(run, "config.yaml")
    make_importable(experiments.read(config).settings if config.is_file() else {}, {})
    from fedsim.training.predict import prepared

    found = prepared(
        run,
        client=client,
        split=split,
        data_dir=data_dir,
        accept_changed_code=accept_changed_code,
    )
    rows = right = 0
    with (
        files.replacing(Path(out)) as unfinished,
        unfinished.open("w", encoding="utf-8", newline="") as file,
    ):
        for number, frame in enumerate(found.frames()):
            header, _, lines = csv_text(frame).partition("\n")
            file.write(f"{header}\n{lines}" if number == 0 else lines)
            rows += len(frame)
            right += int((frame["label"] == frame["prediction"]).sum())
    echo(f"{rows} predictions of {found.models}: accuracy {right / rows:.4f}")
    echo(f"file  {out}")


def check_output(file: Path) -> None:
    """Refuses a file that is there, in no directory or in that of a run, by a ConfigError."""
    from fedsim.storage.run_dir import check_outside_runs

    if file.exists():
        raise ConfigError(f"--out {file}: is already there")
    if not file.parent.is_dir():
        raise ConfigError(f"--out {file}: there is no directory {file.parent}")
    check_outside_runs(file)
