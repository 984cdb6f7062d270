"""The commands of ``fedsim_analysis``, which read the CSV files of finished runs."""

from pathlib import Path
from typing import Any

import click

from fedsim.cli.common import newest
from fedsim.core.analysis import analysis
from fedsim.display.descriptions import descriptions


class AnalysisCommand(click.Command):
    """A command of ``fedsim_analysis``, imported when it runs: the list of commands stays quick."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:  # fmt: skip
        """Parses the arguments of the command itself."""
        command = analysis("cli").main.commands[self.name]
        obj = descriptions() if self.name == "report" else None
        ctx: click.Context = command.make_context(info_name, args, parent, obj=obj, **extra)
        if not (ctx.params["dirs"] or ctx.resilient_parsing):
            ctx.params["dirs"] = (Path(newest("DIR", sweeps=True, searches=True)),)
        return ctx


COMMANDS = [
    AnalysisCommand(name, help=text)
    for name, text in {
        "table": "Scores or loss terms per method, with intervals and paired tests.",
        "curves": "Learning curves per method, with 95 % intervals.",
        "report": "All tables and figures of runs, on one HTML page.",
    }.items()
]
