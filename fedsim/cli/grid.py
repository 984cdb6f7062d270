"""``fedsim grid``."""

from __future__ import annotations

from pathlib import Path

import click

from fedsim.cli.common import check_new_file
from fedsim.cli.names import folders
from fedsim.cli.options import GroupedOption, files_option, verbose_option
from fedsim.core.errors import ConfigError
from fedsim.core.plurals import counted
from fedsim.core.terminal import echo


@click.command()
@click.argument("searches", metavar="NAME=DIR...", nargs=-1, required=True, shell_complete=folders)
@files_option("--out", metavar="FILE", required=True, help="YAML file to write.")
@click.option(
    "--seeds",
    cls=GroupedOption,
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    metavar="N",
    help="Number of training seeds; they follow those that the searches have used.",
)
@verbose_option
def grid(searches: tuple[str, ...], out: str, seeds: int) -> None:
    """Write the best settings of searches as one grid.

    DIR is the directory of a search by 'fedsim tune'; its best.yaml becomes the row NAME of a file
    for 'fedsim sweep', with fresh training seeds. 'fedsim study' does all of it from one file.

    \b
      fedsim grid FedAvg=runs/tune-fedavg FedProx=runs/tune-fedprox --out compare.yaml
      fedsim sweep compare.yaml
    """
    file = Path(out)
    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {file}: must be a file named .yaml")
    check_new_file(file, "--out")
    given: dict[str, Path] = {}
    for text in searches:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder):
            raise ConfigError(f"{text}: must be NAME=DIR, such as FedAvg=runs/tune-fedavg")
        if name in given:
            raise ConfigError(f"{text}: the name {name} is given twice")
        given[name] = Path(folder)
    from fedsim.config import experiments
    from fedsim.core import files
    from fedsim.studies import grid_file

    experiments.check_names([*given], "NAME=DIR")
    files.write(file, grid_file.grid_of_searches(given, seeds).encode())
    echo(f"wrote {file}: {counted(len(given), 'row')}; run it with: fedsim sweep {file}")
