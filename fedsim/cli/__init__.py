"""The command line. Commands import what they need when they run, so that help is instant.

Exit status: 0 done, 1 failed, 2 usage or configuration, 130 or 143 interrupted (Ctrl-C, SIGTERM).
Every error is one line on stderr, with its traceback by ``--verbose`` or ``FEDSIM_DEBUG=1``.
"""

import sys
import traceback
from collections.abc import Callable
from itertools import chain
from typing import Any

import click

from fedsim.cli.common import error_text, show_error, show_log, show_notes, tracebacks
from fedsim.cli.doctor import doctor
from fedsim.cli.export import export
from fedsim.cli.influence import influence
from fedsim.cli.listing import listing
from fedsim.cli.partition import partition
from fedsim.cli.predict import predict
from fedsim.cli.replay import replay
from fedsim.cli.report import COMMANDS
from fedsim.cli.reproduce import reproduce
from fedsim.cli.resume import resume
from fedsim.cli.run import run
from fedsim.cli.runs import runs
from fedsim.cli.show import show
from fedsim.cli.sweep import study, sweep, tune
from fedsim.cli.verify import verify
from fedsim.core.terminal import echo
from fedsim.version import __version__

HELP = """Federated learning under data heterogeneity, simulated on Ray.

Begin with 'fedsim run'; 'fedsim COMMAND --help' explains a command.
"""
GROUPS = {
    "Run": (run, resume, sweep, tune, study),
    "Look": (runs, show, *COMMANDS, partition),
    "Use": (predict, export),
    "Prove": (verify, replay, influence, reproduce),
    "Help": (listing, doctor),
}
"""The commands by heading of the help."""


class Commands(click.Group):
    """The group of commands, with errors as one line and an exit status."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Runs a command and leaves the process with its exit status."""
        parent: Callable[..., Any] = super().main
        if not standalone_mode:
            return parent(*args, standalone_mode=False, **extra)
        try:
            status = parent(*args, standalone_mode=False, **extra)
        except click.ClickException as error:
            show_error(error.format_message())
            status = error.exit_code
        except click.Abort:
            echo("interrupted", err=True)
            status = 130
        sys.exit(status if isinstance(status, int) else 0)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands by group, each with the first sentence of its help, uncut."""
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(c.name or "", c.get_short_help_str(1000)) for c in commands])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command of a context; an error becomes one line and an exit status."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click ends the command without a word where nobody reads on, as after | head
        except Exception as error:  # noqa: BLE001 - the last place that can say what happened
            if tracebacks(ctx):
                echo("".join(traceback.format_exception(error)), err=True, nl=False)
            show_error(error_text(error))
            show_notes(error)
            ctx.exit(getattr(error, "exit_status", 1))


@click.group(
    cls=Commands,
    help=HELP,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="fedsim", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """The command ``fedsim``; alone it prints its help."""
    show_log()
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())
        return


for command in chain(*GROUPS.values()):
    main.add_command(command)
