"""The options that commands share: which flag sets which key, and help in groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from fedsim.config.experiments import Settings

VERBOSE = "fedsim.verbose"
"""Key of a context's meta: whether tracebacks are shown."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Flag:
    """A flag that sets one key. ``shown`` is the default's text in the help, None without."""

    group: str
    names: tuple[str, ...]
    key: str
    metavar: str
    help: str
    shown: str | None = None


FLAGS = (
    Flag("Experiment", ("-a", "--algorithm"), "algorithm", "NAME", "The method.", "fedld"),
    Flag(
        "Experiment",
        ("--server",),
        "server",
        "NAME[,NAME]",
        "Server rule of another method; or a chain, as in fedgh,fedadam.",
    ),
    Flag(
        "Experiment",
        ("--margin",),
        "margin",
        "FORM",
        "Form of margin control, 'none' for plain cross-entropy.",
    ),
    Flag("Experiment", ("--rounds",), "train.rounds", "N", "Number of rounds.", "100"),
    Flag(
        "Experiment", ("--seed",), "seed", "N", "Seed of start weights, cohorts and batches.", "0"
    ),
    Flag("Data and model", ("-d", "--dataset"), "data.name", "NAME", "The data set.", "digits"),
    Flag("Data and model", ("--data-dir",), "data.dir", "DIR", "The folder with its files."),
    Flag(
        "Data and model",
        ("--model",),
        "model.name",
        "NAME",
        "The network; each data set has a default.",
    ),
    Flag("Clients", ("--clients",), "data.num_clients", "K", "Number of clients.", "50"),
    Flag(
        "Clients",
        ("--sample-rate",),
        "train.sample_rate",
        "RATE",
        "Share of the clients drawn in each round.",
        "0.1",
    ),
    Flag(
        "Clients",
        ("--partition",),
        "data.partition",
        "NAME",
        "How clients own the images; each data set has a default.",
    ),
    Flag(
        "Clients",
        ("--alpha",),
        "data.alpha",
        "A",
        "Dirichlet concentration; smaller is more heterogeneous.",
        "0.5",
    ),
    Flag(
        "Clients",
        ("--feature-shift",),
        "data.feature_shift",
        "KIND",
        "Clients' images differ: blur, noise, contrast, colour, intensity, rotation.",
        "none",
    ),
    Flag(
        "Clients",
        ("--feature-strength",),
        "data.feature_strength",
        "S",
        "Of the last client's shift, up to 1; client 0 has none.",
        "1",
    ),
    Flag(
        "Clients",
        ("--correlation",),
        "data.correlation",
        "RHO",
        "Of mark and disease in the data set shortcut, 0 to 1.",
        "0.9",
    ),
    Flag(
        "Evaluation",
        ("--decompose-every",),
        "evaluation.decompose_every",
        "K",
        "Split the loss into local, shift and aggregation loss every K rounds; 0: never.",
        "0",
    ),
    Flag(
        "Evaluation",
        ("--decompose-split",),
        "evaluation.decompose_split",
        "train|val|test|common_test",
        "On the clients' own parts, or on the common test part.",
        "train",
    ),
    Flag(
        "Evaluation",
        ("--decompose-scope",),
        "evaluation.decompose_scope",
        "cohort|population",
        "On the data of the round's clients, or of all.",
        "cohort",
    ),
    Flag(
        "Evaluation",
        ("--decompose-max-samples",),
        "evaluation.decompose_max_samples",
        "N",
        "Images of a client at most, drawn once for the run; without it all.",
    ),
    Flag(
        "Evaluation",
        ("--loss-matrix/--no-loss-matrix",),
        "evaluation.loss_matrix",
        "",
        "Also write every model's loss on every client's data.",
    ),
    Flag(
        "Evaluation",
        ("--evaluate-clients-every",),
        "evaluation.clients_every",
        "K",
        "Evaluate on each client's own data every K rounds; 0: never.",
        "0",
    ),
    Flag(
        "Evaluation",
        ("--cosines/--no-cosines",),
        "evaluation.cosines",
        "",
        "Write the cosines between the updates of each round, and their spectrum.",
    ),
    Flag(
        "Evaluation",
        ("--target-accuracy",),
        "evaluation.target_accuracy",
        "A",
        "Of the test part, up to 1; summary.csv says when it was first reached.",
    ),
    Flag("Engine", ("--engine",), "engine.kind", "ray|serial", "Ray, or one process.", "ray"),
    Flag(
        "Engine",
        ("--actors",),
        "engine.actors",
        "auto|per-client|N",
        "Worker processes that hold the clients.",
        "auto",
    ),
    Flag(
        "Engine",
        ("--gpus-per-client",),
        "engine.gpus_per_client",
        "F",
        "Fraction of a GPU for each client, 0 for none.",
    ),
    Flag(
        "Engine",
        ("--cpus-per-client",),
        "engine.cpus_per_client",
        "F",
        "CPU cores for each client.",
        "1",
    ),
    Flag("Engine", ("--address",), "engine.address", "ADDR", "Join this Ray cluster, or local."),
    Flag(
        "Engine",
        ("--client-timeout",),
        "engine.client_timeout",
        "SECONDS",
        "When a client's work counts as lost; by default after 60 s or ten medians.",
    ),
    Flag("Engine", ("--max-retries",), "engine.max_retries", "N", "For lost work.", "3"),
    Flag(
        "Engine",
        ("--on-client-failure",),
        "engine.on_client_failure",
        "raise|drop",
        "A client that fails ends the run, or is left out of its round.",
        "raise",
    ),
    Flag(
        "Engine",
        ("--checkpoint-every",),
        "engine.checkpoint_every",
        "N",
        "Rounds from one checkpoint to the next, 0 for none.",
        "1",
    ),
    Flag(
        "Engine",
        ("--aggregation-shards",),
        "engine.aggregation_shards",
        "N|auto",
        "Ranges of parameters summed up on several nodes.",
        "1",
    ),
    Flag(
        "Engine",
        ("--working-dir",),
        "engine.working_dir",
        "DIR",
        "Folder with your own modules, shipped to the workers.",
    ),
    Flag(
        "Engine",
        ("--fast/--no-fast",),
        "engine.fast",
        "",
        "On a GPU: bfloat16, TF32, channels last, autotuned kernels; bits may differ.",
    ),
)


class GroupedOption(click.Option):
    """An option that knows the heading it stands under in the help."""

    def __init__(self, *args: Any, group: str = "Other", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose options are listed under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options, group by group in the order of their definition."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(parameter, "group", "Other"), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def destination(key: str) -> str:
    """The parameter's name for a dotted key."""
    return key.replace(".", "__")


def flag_option(flag: Flag) -> Callable[[F], F]:
    """The option of a flag."""
    text = flag.help + (f"  [{flag.shown}]" if flag.shown else "")
    switch: dict[str, Any] = {} if flag.metavar else {"is_flag": True}
    return click.option(
        *flag.names,
        destination(flag.key),
        cls=GroupedOption,
        group=flag.group,
        default=None,
        metavar=flag.metavar or None,
        help=text,
        **switch,
    )


def settings_options(with_files: bool = True) -> Callable[[F], F]:
    """The flags that set keys, ``--set``, ``--verbose`` and, on request, --preset and --config."""
    options = [flag_option(flag) for flag in FLAGS]
    if with_files:
        options.append(
            click.option(
                "--preset",
                cls=GroupedOption,
                group="Files",
                metavar="NAME",
                help="Start from a named experiment.",
            )
        )
        options.append(
            click.option(
                "-c",
                "--config",
                cls=GroupedOption,
                group="Files",
                metavar="FILE",
                help="Read settings from a YAML file, such as a run's config.yaml.",
            )
        )
    options.append(
        click.option(
            "--set",
            "sets",
            cls=GroupedOption,
            group="Files",
            metavar="KEY=VALUE",
            multiple=True,
            help="Set any key: train.lr=0.05, fedprox.mu=0.1, model.pretrained=true. Repeatable.",
        )
    )

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def out_option(text: str) -> Callable[[F], F]:
    """``--out DIR``."""
    return click.option("--out", cls=GroupedOption, group="Files", metavar="DIR", help=text)


def verbose_option(function: F) -> F:
    """``--verbose``: tracebacks."""
    return click.option(
        "--verbose",
        is_flag=True,
        expose_value=False,
        cls=GroupedOption,
        help="Show tracebacks of errors.",
        callback=_remember_verbose,
    )(function)


def _remember_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[VERBOSE] = value


def overrides(values: Mapping[str, Any]) -> Settings:
    """What the flags of :func:`settings_options` and ``--set`` give, with their origins.

    Raises:
        ConfigError: a ``--set`` that is not key=value, or a key given twice.
    """
    from fedsim.config.resolve import from_flags

    flags = {f.key: (f.names[-1].partition("/")[0], values[destination(f.key)]) for f in FLAGS}
    return from_flags(flags, values["sets"])
