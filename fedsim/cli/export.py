"""``fedsim export``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import click

from fedsim.cli import options
from fedsim.cli.common import on_run
from fedsim.core.terminal import echo

export_option = partial(click.option, cls=options.GroupedOption, group="What to export")


@click.command(cls=options.GroupedCommand)
@on_run()
@export_option(
    "--to",
    "form",
    type=click.Choice(["torch", "onnx"]),
    default="torch",
    show_default=True,
    help="model.pt2 for torch.export.load, or model.onnx (extra 'export').",
)
@export_option(
    "--client",
    type=options.number_or_name,
    metavar="K|NAME",
    help="Write this client's model: its number, or the name of its site or hospital; unset: the "
    "global model.",
)
@options.out_option(required=True, help="Directory for the files; new or empty.")
@options.accept_option
@options.verbose_option
def export(
    run: str,
    form: Literal["torch", "onnx"],
    client: int | str | None,
    out: str,
    accept_changed_code: bool,
) -> None:
    """Write a run's model so that it loads without fedsim.

    RUN is the directory of a finished run on images or tables, by default the newest below runs/.
    DIR gets the network and preprocessing.json: of images size, channels, mean, standard deviation,
    classes; of tables columns, categories, scales and what fills gaps, with preprocess.py for it.

    \b
      fedsim export RUN --out model/
      fedsim export RUN --to onnx --client 2 --out model/
    """
    from fedsim.predictions.export import export as write

    for file in write(Path(run), form, Path(out), client, accept_changed_code=accept_changed_code):
        echo(f"file  {file}")
