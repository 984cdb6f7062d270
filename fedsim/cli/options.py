"""The options that commands share: which flag sets which key, and help in groups."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click

from fedsim.cli.names import files, folders, key_or_value, named, value_of
from fedsim.core.terminal import echo

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

VERBOSE = "fedsim.verbose"
"""Key of a context's meta: whether tracebacks are shown."""
HELP_ALL = "fedsim.help_all"
"""Key of a context's meta: whether the help lists all options."""

F = TypeVar("F", bound=Callable[..., Any])


class GroupedOption(click.Option):
    """An option that knows the heading it stands under in the help."""

    def __init__(self, *args: Any, group: str = "Other", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.group = group

    def make_metavar(self, ctx: click.Context) -> str:
        """``a|b`` for choices, as flags of settings have it."""
        return self.metavar or super().make_metavar(ctx).strip("[]")

    def get_help_extra(self, ctx: click.Context) -> "OptionHelpExtra":
        """Without the range, which the error names where a value is out of it."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class GroupedCommand(click.Command):
    """A command whose options are listed under headings."""

    def listed(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters that the help lists."""
        return self.get_params(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options, group by group in the order of their definition, Other last."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.listed(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "group", "Other"), []).append(record)
        for heading in sorted(groups, key=lambda heading: heading == "Other"):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


@dataclass(frozen=True)
class Flag:
    """A flag that sets a key, whose description, default and choices are its help.

    Args:
        key: dotted, see :mod:`fedsim.config.sections`.
        names: such as ``("-a", "--algorithm")``.
        metavar: of its value in the help; None: by the key's type.
        switch: what the switch does, where the key has no text: an option of a data set, or one of
            :data:`~fedsim.config.sections.SHORTHANDS`.
    """

    key: str
    names: tuple[str, ...]
    metavar: str | None = None
    switch: str = ""

    @property
    def name(self) -> str:
        """The name of the parameter."""
        return self.key.replace(".", "__")

    def option(
        self, group: str, *, show_default: bool = True, default: str | None = None
    ) -> GroupedOption:
        """The option, under a heading of the help; ``default`` takes the place of the key's."""
        from fedsim.config.sections import fields

        names = [*self.names, self.name]
        if self.switch:
            return GroupedOption(names, group=group, default=None, is_flag=True, help=self.switch)
        field = fields()[self.key]
        shown = default or (field.default if show_default else None)
        text = re.sub("`+", "'", " ".join((field.description or "").split()))
        if self.metavar and get_origin(field.annotation) is Literal:
            text += f" One of {', '.join(get_args(field.annotation))}."
        if isinstance(shown, str | int | float) and shown is not False:
            number = f"{shown:g}" if isinstance(shown, float) else shown
            text += f"  [default: {number}]"
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
        Flag("label", ("--label",)),
    ),
    "Data": (
        Flag("data.name", ("-d", "--dataset")),
        Flag("data.dir", ("--data-dir",), "DIR"),
        Flag(
            "folder.strict_labels",
            ("--strict-labels/--no-strict-labels",),
            switch="Refuse labels that look like typing errors, and classes with one image, in a "
            "folder of images.",
        ),
        Flag("data.val_fraction", ("--val-fraction",), "F"),
        Flag("data.seed", ("--data-seed",)),
    ),
    "Model": (
        Flag("model.name", ("--model",)),
        Flag("model.pretrained", ("--pretrained/--no-pretrained",)),
        Flag("model.weights", ("--weights",), "FILE|RUN"),
    ),
    "Local training": (
        Flag("train.local_epochs", ("--local-epochs", "--epochs")),
        Flag("train.batch_size", ("--batch-size",)),
        Flag("train.optimizer", ("--optimizer",)),
        Flag("train.lr", ("--lr",)),
        Flag("train.lr_schedule", ("--lr-schedule",), "NAME"),
        Flag("train.momentum", ("--momentum",)),
        Flag("train.weight_decay", ("--weight-decay",)),
    ),
    "Clients": (
        Flag("data.num_clients", ("--clients",), "K"),
        Flag("train.sample_rate", ("--sample-rate",), "RATE"),
        Flag("train.secure_aggregation", ("--secure-aggregation/--no-secure-aggregation",)),
        Flag("data.partition", ("--partition",)),
        Flag("data.alpha", ("--alpha",), "A"),
        Flag("data.group", ("--group",), "none|patient"),
        Flag("data.feature_shift", ("--feature-shift",), "KIND"),
        Flag("data.feature_strength", ("--feature-strength",), "S"),
    ),
    "Evaluation": (
        Flag("evaluation.every", ("--evaluate-every",)),
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
        Flag("engine.precision", ("--precision",)),
        Flag(
            "engine.fast",
            ("--fast",),
            switch="On a GPU: --precision bf16 and kernels whose bits may differ from run to run "
            "(engine.deterministic=false).",
        ),
    ),
}
"""By heading of the help."""


OTHERS = "More flags, all accepted here: 'fedsim run --help-all'."
"""Below the help of a command that does not show all flags."""
OF_SEVERAL_RUNS: Mapping[str, str] = {
    "engine.kind": "serial where the machine has no GPU and the runs fill it, else ray"
}
"""Defaults of commands that do several runs, see :func:`fedsim.studies.capacity.with_engine`."""


class SettingsCommand(GroupedCommand):
    """A command with flags for settings, by heading; making them takes imports.

    Args:
        flags: by heading.
        shown: the flags that the help lists, by heading or key, with a line about the others, which
            --help-all lists; None: all.
        rare: the command's own options that only --help-all lists, by name.
        show_defaults: whether the help shows them.
        defaults: by key, in words, where the command's own differ from those of the key.
    """

    def __init__(
        self,
        *args: Any,
        flags: Mapping[str, tuple[Flag, ...]] = FLAGS,
        shown: Collection[str] | None = None,
        rare: Collection[str] = (),
        show_defaults: bool = True,
        defaults: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.epilog = OTHERS if shown else None
        self.flags, self.rare = flags, {*rare}
        self.shown = {*flags} if shown is None else {*shown}
        self.show_defaults, self.defaults = show_defaults, defaults or {}

    @cached_property
    def setting_options(self) -> list[click.Parameter]:
        """The options of the flags."""
        options: list[click.Parameter] = []
        for group, flags in self.flags.items():
            for flag in flags:
                default = self.defaults.get(flag.key)
                options.append(flag.option(group, show_default=self.show_defaults, default=default))
        return options

    def listed(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters that the help lists."""
        if ctx.meta.get(HELP_ALL):
            return self.get_params(ctx)
        own = [each for each in super().get_params(ctx) if each.name not in self.rare]
        names = {
            flag.name
            for group, flags in self.flags.items()
            for flag in flags
            if self.shown & {group, flag.key}
        }
        return own + [option for option in self.setting_options if option.name in names]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters, then the flags."""
        return [*super().get_params(ctx), *self.setting_options]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes where the other flags are listed."""
        if not ctx.meta.get(HELP_ALL):
            super().format_epilog(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses; parameter ``flags`` is then what the flags and ``--set`` give, as settings.

        Raises:
            ConfigError: a ``--set`` that is not key=value, or a key given twice.
        """
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise self._with_hint(error) from None
        if ctx.resilient_parsing:  # a shell asks what could follow
            return rest
        from fedsim.config.resolve import from_flags

        flags = [flag for group in self.flags.values() for flag in group]
        given = {f.key: (f.names[-1].partition("/")[0], ctx.params.pop(f.name)) for f in flags}
        ctx.params["flags"] = from_flags(given, ctx.params.pop("sets"))
        return rest

    def _with_hint(self, error: click.NoSuchOption) -> click.NoSuchOption:
        """The error, with the flag or ``--set KEY`` of the key that has this name."""
        from fedsim.config.hints import known_as
        from fedsim.config.sections import fields

        key = known_as(error.option_name.lstrip("-").replace("-", "_"), fields())
        flags = [flag for group in self.flags.values() for flag in group if flag.key == key]
        if key is None or not (flags or self.flags is FLAGS):
            return error
        meant = flags[0].names[-1].partition("/")[0] if flags else f"--set {key}=..."
        message = f"No such option {error.option_name!r}. Did you mean {meant!r}?"
        return click.NoSuchOption(error.option_name, message, ctx=error.ctx)


files_option = partial(click.option, cls=GroupedOption, group="Files and settings")
"""An option under the heading Files and settings."""
several_option = partial(click.option, cls=GroupedOption, group="Runs")
"""An option under the heading Runs: which are done, and how many at once."""
out_option = partial(files_option, "--out", metavar="DIR", shell_complete=folders)
"""``--out DIR``."""
set_option = partial(
    click.option,
    "--set",
    "sets",
    cls=GroupedOption,
    metavar="KEY=VALUE",
    multiple=True,
    shell_complete=key_or_value,
)
"""``--set KEY=VALUE``."""
set_any_option = set_option(
    group="Files and settings",
    help="Set any key: train.lr=0.05, fedprox.mu=0.1, model.pretrained=true. Repeatable.",
)
"""``--set KEY=VALUE`` for every key."""


def preset_options(function: F) -> F:
    """``--preset`` and ``--config``."""
    config = "Read settings from a YAML file, such as a run's config.yaml."
    preset = "Start from a named experiment, one of 'fedsim list presets'."
    function = files_option("-c", "--config", metavar="FILE", help=config, shell_complete=files)(
        function
    )
    return files_option("--preset", metavar="NAME", help=preset, shell_complete=named("presets"))(
        function
    )


TRACKERS = ("tensorboard", "wandb", "mlflow")
"""The names in :data:`fedsim.display.trackers.TRACKERS`."""
track_option = files_option(
    "--track",
    type=click.Choice(TRACKERS),
    multiple=True,
    help="Also write for TensorBoard, Weights & Biases (offline) or MLflow, to a folder of this "
    "name in the run directory. Repeatable; needs the extra 'track'.",
)
"""``--track NAME``, repeatable."""
accept_option = several_option(
    "--accept-changed-code",
    is_flag=True,
    help="Go on although the source of a function of your own (module:function), or of what it "
    "imports from its folder, has changed since the run began. A run that "
    "is continued says so in its env.json.",
)
"""``--accept-changed-code``."""


class WordOrNumber(click.ParamType[Any]):
    """A word such as ``auto``, or a whole number from 1 with a few digits."""

    def __init__(self, word: str, digits: int) -> None:
        self.word, self.digits, self.name = word, digits, f"{word}|N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int:
        """The value; refuses anything else."""
        number = str(value)
        if number == self.word:
            return number
        whole = number.isascii() and number.isdecimal() and len(number) <= self.digits
        if not whole or int(number) < 1:
            self.fail(f"{value!r} given; must be {self.word} or a whole number from 1", param, ctx)
        return int(number)


def number_or_name(text: str) -> int | str:
    """A client: the number where the text is one, else the name."""
    try:
        return int(text)
    except ValueError:
        return text


parallel_option = several_option(
    "--parallel",
    type=WordOrNumber("auto", 5),
    default="auto",
    metavar="auto|N",
    help="Number of runs executed at once; auto: as many as fit into cores, memory and GPUs.  "
    "[default: auto]",
)
"""``--parallel auto|N``."""
format_option = click.option(
    "--format",
    "form",
    metavar="table|json",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A table to read, or JSON for programs.",
)
"""``--format table|json``, parameter ``form``."""


def _remember_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[VERBOSE] = value


def _help_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL] = True
        echo(ctx.get_help())
        ctx.exit()


help_all_option = click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    help="Show all options and exit.",
    callback=_help_all,
)
"""``--help-all``."""
verbose_option = click.option(
    "--verbose",
    is_flag=True,
    expose_value=False,
    cls=GroupedOption,
    help="Show tracebacks of errors.",
    callback=_remember_verbose,
)
"""``--verbose``: tracebacks."""
