"""The options that commands share: flags of settings, made from their keys, and help in groups."""

import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click

from fedsim.cli.names import files, folders, keys, named, value_of
from fedsim.core.terminal import echo

if TYPE_CHECKING:
    from fedsim.config.experiments import Settings as Settings

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


FAST = (
    "On a GPU: --precision bf16 and kernels whose bits may differ from run to run "
    "(engine.deterministic=false)."
)
"""Help of --fast, which sets several keys."""
HEADINGS = {"": "Experiment", "train": "Training"}
"""Headings of the help that are not the name of the keys' section."""


@cache
def flag_names() -> Mapping[str, tuple[str, ...]]:
    """The flags of each key that has any, as its field declares them."""
    from fedsim.config.keys import KEYS

    declared = {key: tuple(entry.flag.split()) for key, entry in KEYS.items() if entry.flag}
    return declared | {"engine.fast": ("--fast",)}


def flag_option(
    key: str, names: tuple[str, ...], *, show_default: bool = True, default: str | None = None
) -> GroupedOption:
    """The option that sets a key, whose description and ``default`` are its help."""
    from fedsim.config.keys import KEYS
    from fedsim.config.sections import fields

    section = key.rpartition(".")[0]
    if key == "engine.fast":
        heading = HEADINGS.get("engine", "Engine")
        return GroupedOption([*names, "engine__fast"], group=heading, is_flag=True, help=FAST)
    field, metavar = fields()[key], KEYS[key].metavar
    shown = default or (field.default if show_default else None)
    text = re.sub("`+", "'", " ".join((field.description or "").split()))
    if metavar and get_origin(field.annotation) is Literal:
        text += f" One of {', '.join(get_args(field.annotation))}."
    if isinstance(shown, str | int | float) and shown is not False:
        text += f"  [default: {f'{shown:g}' if isinstance(shown, float) else shown}]"
    switch = field.annotation is bool
    return GroupedOption(
        [*names, key.replace(".", "__")],
        group=HEADINGS.get(section, section.capitalize()),
        default=None,
        is_flag=switch,
        metavar=None if switch else metavar or _metavar(field.annotation),
        help=text,
        shell_complete=None if switch else value_of(key),
    )


def _metavar(kind: Any) -> str:
    """``a|b`` for choices, N for whole numbers, X for others."""
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    kinds = get_args(kind) or (kind,)
    return "N" if int in kinds else "X" if float in kinds else "NAME"


OTHERS = "More flags, all accepted here: 'fedsim run --help-all'."
"""Below the help of a command that does not show all flags."""
OF_SEVERAL_RUNS: Mapping[str, str] = {
    "engine.kind": "serial where the machine has no GPU and the runs fill it, else ray"
}
"""Defaults of commands that do several runs, see :func:`fedsim.studies.capacity.with_engine`."""


def common(key: str) -> bool:
    """Whether the help of ``fedsim run`` lists the flag of a key."""
    from fedsim.config.keys import KEYS

    return key in KEYS and KEYS[key].common


def changeable(key: str) -> bool:
    """Whether a flag may be given anew for a run that has begun, since it changes no result."""
    from fedsim.config.keys import FREE

    return key in FREE and key.startswith("engine.")


class SettingsCommand(GroupedCommand):
    """A command with flags for settings, by heading; making them takes imports. It ``takes`` the
    flags of some keys, and ``more`` of its own; the help lists those ``shown``, with ``defaults``
    in words where the command's own differ from those of the key."""

    def __init__(
        self,
        *args: Any,
        takes: Callable[[str], bool] | None = None,
        more: Mapping[str, str] | None = None,
        shown: Callable[[str], bool] | None = None,
        show_defaults: bool = True,
        defaults: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.epilog = OTHERS if shown else None
        self.takes, self.more, self.shown = takes, more or {}, shown
        self.show_defaults, self.defaults = show_defaults, defaults or {}

    @cached_property
    def flags(self) -> Mapping[str, tuple[str, ...]]:
        """The names of its flags, by key."""
        names = flag_names().items()
        taken = {key: flags for key, flags in names if self.takes is None or self.takes(key)}
        return taken | {key: (name,) for key, name in self.more.items()}

    @cached_property
    def setting_options(self) -> Mapping[str, GroupedOption]:
        """The options of the flags, by key."""
        shown, words, flags = self.show_defaults, self.defaults, self.flags.items()
        return {k: flag_option(k, f, show_default=shown, default=words.get(k)) for k, f in flags}

    def listed(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters that the help lists."""
        if ctx.meta.get(HELP_ALL) or self.shown is None:
            return self.get_params(ctx)
        options = self.setting_options.items()
        return [*super().get_params(ctx), *(option for key, option in options if self.shown(key))]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters, then the flags."""
        return [*super().get_params(ctx), *self.setting_options.values()]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes where the other flags are listed."""
        if not ctx.meta.get(HELP_ALL):
            super().format_epilog(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses; parameter ``flags`` is then what the flags and ``--set`` give, as settings."""
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise self._with_hint(error) from None
        if ctx.resilient_parsing:  # a shell asks what could follow
            return rest
        from fedsim.config.resolve import from_flags

        values = {
            key: (_shown_name(names), ctx.params.pop(key.replace(".", "__")))
            for key, names in self.flags.items()
        }
        ctx.params["flags"] = from_flags(values, ctx.params.pop("sets"))
        return rest

    def _with_hint(self, error: click.NoSuchOption) -> click.NoSuchOption:
        """The error, with the flag or ``--set KEY`` of the key that has this name."""
        from fedsim.config.sections import fields

        name = error.option_name.lstrip("-").replace("-", "_")
        key = next((key for key in fields() if key.rpartition(".")[2] == name), None)
        if key is None or (key not in self.flags and self.takes):
            return error
        meant = _shown_name(self.flags[key]) if key in self.flags else f"--set {key}=..."
        message = f"No such option {error.option_name!r}. Did you mean {meant!r}?"
        return click.NoSuchOption(error.option_name, message, ctx=error.ctx)


def _shown_name(names: tuple[str, ...]) -> str:
    """The flag as messages name it: the last one, of a switch the first half."""
    return names[-1].partition("/")[0]


files_option = partial(click.option, cls=GroupedOption, group="Files and settings")
"""An option under the heading Files and settings."""
several_option = partial(click.option, cls=GroupedOption, group="Runs")
"""An option under the heading Runs: which are done, and how many at once."""
out_option = partial(files_option, "--out", metavar="DIR", shell_complete=folders)
set_option = partial(
    click.option,
    "--set",
    "sets",
    cls=GroupedOption,
    metavar="KEY=VALUE",
    multiple=True,
    shell_complete=keys,
)
set_any_option = set_option(
    group="Files and settings",
    help="Set any key: train.lr=0.05, fedprox.mu=0.1, model.pretrained=true. Repeatable.",
)


def preset_options(function: F) -> F:
    """``--preset`` and ``--config``."""
    config = "Read settings from a YAML file, such as a run's config.yaml."
    preset = "Start from a named experiment, one of 'fedsim list presets'."
    file = files_option("-c", "--config", metavar="FILE", help=config, shell_complete=files)
    name = files_option("--preset", metavar="NAME", help=preset, shell_complete=named("presets"))
    return name(file(function))


TRACKERS = ("tensorboard", "wandb", "mlflow")
"""The names in :data:`fedsim.display.trackers.TRACKERS`."""
track_option = files_option(
    "--track",
    type=click.Choice(TRACKERS),
    multiple=True,
    help="Also write for TensorBoard, Weights & Biases (offline) or MLflow, to a folder of this "
    "name in the run directory. Repeatable; needs the extra 'track'.",
)
accept_option = several_option(
    "--accept-changed-code",
    is_flag=True,
    help="Go on although the source of a function of your own (module:function), or of what it "
    "imports from its folder, has changed since the run began.",
)


class WordOrNumber(click.ParamType[Any]):
    """A word such as ``auto``, or a whole number from 1 with a few digits."""

    def __init__(self, word: str, digits: int) -> None:
        self.word, self.digits, self.name = word, digits, f"{word}|N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int:
        """The value; refuses anything else."""
        if value != self.word and not re.fullmatch(
            rf"[1-9][0-9]{{0,{self.digits - 1}}}", str(value)
        ):
            self.fail(f"{value!r} given; must be {self.word} or a whole number from 1", param, ctx)
        return self.word if value == self.word else int(value)


def number_or_name(text: str) -> int | str:
    """A client: the number where the text is one, else the name."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text


parallel_option = several_option(
    "--parallel",
    type=WordOrNumber("auto", 5),
    default="auto",
    metavar="auto|N",
    help="Number of runs executed at once; auto: as many as fit into cores, memory and GPUs.  "
    "[default: auto]",
)
format_option = click.option(
    "--format",
    "form",
    metavar="table|json",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A table to read, or JSON for programs.",
)


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
verbose_option = click.option(
    "--verbose",
    is_flag=True,
    expose_value=False,
    cls=GroupedOption,
    help="Show tracebacks of errors.",
    callback=_remember_verbose,
)
