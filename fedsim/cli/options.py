"""The options that commands share: which flag sets which key, and help in groups."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from fedsim.cli.names import files, folders, key_or_value, named, value_of

VERBOSE = "fedsim.verbose"
"""Key of a context's meta: whether tracebacks are shown."""

F = TypeVar("F", bound=Callable[..., Any])


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
            if record is not None and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "group", "Other"), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


@dataclass(frozen=True)
class Flag:
    """A flag that sets a key, whose description, default and choices are its help.

    Args:
        key: dotted, see :mod:`fedsim.config.sections`.
        names: such as ``("-a", "--algorithm")``.
        metavar: of its value in the help; None: by the key's type.
    """

    key: str
    names: tuple[str, ...]
    metavar: str | None = None

    @property
    def name(self) -> str:
        """The name of the parameter."""
        return self.key.replace(".", "__")

    def option(
        self, group: str, *, show_default: bool = True, default: str | None = None
    ) -> GroupedOption:
        """The option, under a heading of the help; ``default`` takes the place of the key's."""
        from fedsim.config.sections import RENAMED, fields

        names = [*self.names, self.name]
        if self.key in RENAMED:
            older = f"Older name of --set {RENAMED[self.key]}={self.metavar}."
            return GroupedOption(names, group=group, metavar=self.metavar, help=older)
        field = fields()[self.key]
        shown = default or (field.default if show_default else None)
        text = " ".join((field.description or "").split())
        if self.metavar and get_origin(field.annotation) is Literal:
            text += f" One of {', '.join(get_args(field.annotation))}."
        if isinstance(shown, str | int | float) and shown is not False:
            text += f"  [{shown:g}]" if isinstance(shown, float) else f"  [{shown}]"
        switch = field.annotation is bool
        return GroupedOption(
            names,
            group=group,
            default=None,
            is_flag=switch,
            metavar=None if switch else self.metavar or _metavar(field.annotation),
            help=text,
            shell_complete=None if switch else value_of(self.key, field.annotation),
        )


def _metavar(kind: Any) -> str:
    """``a|b`` for choices, N for whole numbers, X for others."""
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    kinds = get_args(kind) or (kind,)
    return "N" if int in kinds else "X" if float in kinds else "NAME"


FLAGS: Mapping[str, tuple[Flag, ...]] = {
    "Experiment": (
        Flag("algorithm", ("-a", "--algorithm")),
        Flag("server", ("--server",), "NAME[,NAME]"),
        Flag("margin", ("--margin",), "FORM"),
        Flag("train.rounds", ("--rounds",)),
        Flag("train.patience", ("--patience",)),
        Flag("seed", ("--seed",)),
    ),
    "Data and model": (
        Flag("data.name", ("-d", "--dataset")),
        Flag("data.dir", ("--data-dir",), "DIR"),
        Flag("model.name", ("--model",)),
    ),
    "Clients": (
        Flag("data.num_clients", ("--clients",), "K"),
        Flag("train.sample_rate", ("--sample-rate",), "RATE"),
        Flag("data.partition", ("--partition",)),
        Flag("data.alpha", ("--alpha",), "A"),
        Flag("data.group", ("--group",), "none|patient"),
        Flag("data.feature_shift", ("--feature-shift",), "KIND"),
        Flag("data.feature_strength", ("--feature-strength",), "S"),
        Flag("data.correlation", ("--correlation",), "RHO"),
    ),
    "Evaluation": (
        Flag("evaluation.decompose_every", ("--decompose-every",), "K"),
        Flag("evaluation.decompose_split", ("--decompose-split",)),
        Flag("evaluation.decompose_scope", ("--decompose-scope",)),
        Flag("evaluation.decompose_max_samples", ("--decompose-max-samples",)),
        Flag("evaluation.loss_matrix", ("--loss-matrix/--no-loss-matrix",)),
        Flag("evaluation.clients_every", ("--evaluate-clients-every",), "K"),
        Flag("evaluation.cosines", ("--cosines/--no-cosines",)),
        Flag("evaluation.target_accuracy", ("--target-accuracy",), "A"),
    ),
    "Engine": (
        Flag("engine.kind", ("--engine",), "ray|serial"),
        Flag("engine.actors", ("--actors",), "auto|per-client|N"),
        Flag("engine.client_batch", ("--client-batch",), "N|auto"),
        Flag("engine.gpus_per_client", ("--gpus-per-client",), "F"),
        Flag("engine.cpus_per_client", ("--cpus-per-client",), "F"),
        Flag("engine.address", ("--address",), "ADDR"),
        Flag("engine.client_timeout", ("--client-timeout",), "SECONDS"),
        Flag("engine.max_retries", ("--max-retries",)),
        Flag("engine.on_client_failure", ("--on-client-failure",)),
        Flag("engine.checkpoint_every", ("--checkpoint-every",)),
        Flag("engine.aggregation_shards", ("--aggregation-shards",), "N|auto"),
        Flag("engine.working_dir", ("--working-dir",), "DIR"),
        Flag("engine.fast", ("--fast/--no-fast",)),
    ),
}
"""By heading of the help."""


OF_SEVERAL_RUNS: Mapping[str, str] = {
    "engine.kind": "serial where the machine has no GPU and the runs fill it, else ray"
}
"""Defaults of commands that do several runs, see :func:`fedsim.training.slots.with_engine`."""


class SettingsCommand(GroupedCommand):
    """A command with flags for settings, by heading; making them takes imports.

    Args:
        flags: by heading.
        show_defaults: whether the help shows them.
        defaults: by key, in words, where the command's own differ from those of the key.
    """

    def __init__(
        self,
        *args: Any,
        flags: Mapping[str, tuple[Flag, ...]] = FLAGS,
        show_defaults: bool = True,
        defaults: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.flags, self.show_defaults, self.defaults = flags, show_defaults, defaults or {}

    @cached_property
    def setting_options(self) -> list[click.Parameter]:
        """The options of the flags."""
        return [
            flag.option(group, show_default=self.show_defaults, default=self.defaults.get(flag.key))
            for group, flags in self.flags.items()
            for flag in flags
        ]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The flags, then the command's other parameters."""
        return [*self.setting_options, *super().get_params(ctx)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses; parameter ``flags`` is then what the flags and ``--set`` give, as settings.

        Raises:
            ConfigError: a ``--set`` that is not key=value, or a key given twice.
        """
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:  # a shell asks what could follow
            return rest
        from fedsim.config.resolve import from_flags

        flags = [flag for group in self.flags.values() for flag in group]
        given = {f.key: (f.names[-1].partition("/")[0], ctx.params.pop(f.name)) for f in flags}
        ctx.params["flags"] = from_flags(given, ctx.params.pop("sets"))
        return rest


def set_option(group: str, text: str) -> Callable[[F], F]:
    """``--set KEY=VALUE``."""
    return click.option(
        "--set",
        "sets",
        cls=GroupedOption,
        group=group,
        metavar="KEY=VALUE",
        multiple=True,
        help=text,
        shell_complete=key_or_value,
    )


set_any_option = set_option(
    "Files", "Set any key: train.lr=0.05, fedprox.mu=0.1, model.pretrained=true. Repeatable."
)


def preset_options(function: F) -> F:
    """``--preset`` and ``--config``."""
    config = "Read settings from a YAML file, such as a run's config.yaml."
    option = partial(click.option, cls=GroupedOption, group="Files")
    function = option("-c", "--config", metavar="FILE", help=config, shell_complete=files)(function)
    return option(
        "--preset",
        metavar="NAME",
        help="Start from a named experiment.",
        shell_complete=named("presets"),
    )(function)


def out_option(text: str) -> Callable[[F], F]:
    """``--out DIR``."""
    return click.option(
        "--out",
        cls=GroupedOption,
        group="Files",
        metavar="DIR",
        help=text,
        shell_complete=folders,
    )


TRACKERS = ("tensorboard", "wandb", "mlflow")
"""The names in :data:`fedsim.training.trackers.TRACKERS`."""


def track_option(function: F) -> F:
    """``--track NAME``, repeatable."""
    return click.option(
        "--track",
        cls=GroupedOption,
        group="Files",
        type=click.Choice(TRACKERS),
        multiple=True,
        help="Also write for TensorBoard, Weights & Biases (offline) or MLflow, to a folder of "
        "this name in the run directory. Repeatable; needs the extra 'track'.",
    )(function)


accept_option = click.option(
    "--accept-changed-code",
    is_flag=True,
    cls=GroupedOption,
    group="Files",
    help="Go on although the source of a function of your own (module:function), or of what it "
    "imports from its folder, has changed since the run began. A run that "
    "is continued says so in its env.json.",
)
"""``--accept-changed-code``."""


class ParallelType(click.ParamType[Any]):
    """``auto``, or a whole number from 1."""

    name = "auto|N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Literal["auto"] | int:
        """The value; refuses anything else."""
        if value == "auto":
            return "auto"
        number = str(value)
        whole = number.isascii() and number.isdecimal() and len(number) <= MOST_DIGITS
        if not whole or int(number) < 1:
            self.fail(f"{value!r} given; must be auto or a whole number from 1", param, ctx)
        return int(number)


MOST_DIGITS = 5
"""Of --parallel; no machine drives more runs at once."""


def parallel_option(function: F) -> F:
    """``--parallel auto|N``."""
    return click.option(
        "--parallel",
        cls=GroupedOption,
        group="Engine",
        type=ParallelType(),
        default="auto",
        metavar="auto|N",
        help="Number of runs executed at once; auto: as many as fit into cores, memory and GPUs.  "
        "[auto]",
    )(function)


def format_option(function: F) -> F:
    """``--format table|json``, parameter ``form``."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="A table to read, or JSON for programs.",
    )(function)


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
