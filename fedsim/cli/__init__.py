"""The command line. Commands import what they need when they run, so that help is instant.

Exit status: 0 done, 1 failed, 2 usage or configuration, 130 or 143 interrupted (Ctrl-C, SIGTERM).
Every error is one line on stderr; notes follow, one line each, such as a checkpoint that could not
be written. ``--verbose`` or ``FEDSIM_DEBUG=1`` also shows the traceback.
"""

import sys
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import click

from fedsim.cli.common import (
    error_status,
    error_text,
    reader_is_gone,
    show_error,
    show_log,
    show_notes,
    show_traceback,
)
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
from fedsim.core.errors import ConfigError, EngineLostError
from fedsim.core.reading import ON_DISK, URL
from fedsim.core.terminal import check_text, echo
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

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs a command and leaves the process with its exit status."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        given = sys.argv[1:] if args is None else list(args)
        try:
            for before, word in pairwise(["", *given]):
                check_text(word, "argument")
                joined = word.partition("=") if word.startswith("--") else (before, "", word)
                if URL.match(joined[2]):
                    where = joined[0] if joined[0].startswith("-") else "argument"
                    raise ConfigError(f"{where}: {joined[2]!r} given; {ON_DISK}")
            status = super().main(args, prog_name, complete_var, False, **extra)
        except ConfigError as error:
            show_error(str(error))
            status = error.exit_status
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
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except EngineLostError as error:  # it was said when it happened
            show_traceback(ctx, error)
            show_notes(error)
            ctx.exit(error.exit_status)
        except BrokenPipeError as error:
            if reader_is_gone():
                raise  # click ends the command without a word
            self._fail(ctx, error)
        except Exception as error:  # noqa: BLE001 - the last place that can say what happened
            self._fail(ctx, error)

    def _fail(self, ctx: click.Context, error: Exception) -> None:
        """Says what happened and ends the command."""
        show_traceback(ctx, error)
        show_error(error_text(error))
        show_notes(error)
        ctx.exit(error_status(error))


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
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ConfigError(
            "the working folder was removed meanwhile: change to one that exists (cd)"
        ) from None


for command in chain(*GROUPS.values()):
    main.add_command(command)
