"""``fedsim list``."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from fedsim.cli.names import CATALOGUES
from fedsim.cli.options import format_option, verbose_option
from fedsim.core.terminal import echo


@click.command("list")
@click.argument(
    "kind",
    required=False,
    type=click.Choice(list(CATALOGUES)),
    metavar="[" + "|".join(CATALOGUES) + "]",
)
@format_option
@verbose_option
def listing(kind: str | None, form: str) -> None:
    """List the names that an experiment can use.

    Without a kind: what lists there are.

    An algorithm, a data set, a model, a partition, an attack, a compressor or a selection may also
    be a function of your own, module:function or FILE.py:function.

    \b
      fedsim list algorithms
      fedsim list datasets --format json
    """
    from fedsim.display.tables import show

    if kind is None:
        rows = [{"kind": name, "names": len(make())} for name, make in CATALOGUES.items()]
    else:
        rows = CATALOGUES[kind]()
    if form == "json":
        echo(json.dumps(rows, indent=2))
        return
    show([{k: _cell(value) for k, value in row.items() if k != "source"} for row in rows])


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return "-" if value is None else str(value)
