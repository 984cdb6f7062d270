"""Settings that are refused by their key, and typed keyword parameters as settings."""

import csv
import functools
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from fedsim.core.errors import ConfigError, nearest

MOST = 10**9
"""Of rounds, epochs, samples and other numbers for which nothing else sets a bound."""

Scalar = str | int | float | bool | None

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=MOST)]
CountOrNone = Annotated[int | None, Field(ge=1, le=MOST)]
CountOrZero = Annotated[int, Field(ge=0, le=MOST)]
Clients = Annotated[int, Field(ge=1, le=10**7)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Decay = Share
"""What a running mean or sum keeps in each step, such as a momentum."""
Alpha = Annotated[float, Field(gt=0, le=1e12)]
"""Concentration of a Dirichlet distribution."""
Shards = Annotated[int, Field(ge=1, le=10**9)]
"""Pieces of the sorted data that a client gets."""
Prior = Literal["uniform", "frequencies"]
Arithmetic = Literal["float32", "tf32", "bf16"]
"""Of networks on a GPU, see ``engine.precision``."""
Order = Literal["round_robin", "sequential"]
"""In which clients draw from the classes: in turn, or one after another."""


COLUMNS = ("image", "text", "label", "target", "site", "user", "patient", "split", "time", "event")
"""What a column of a data set may hold, in ``data.columns``."""


class InvalidSetting(ConfigError):
    """A setting, by its dotted key, that cannot be used: what was given and what is allowed."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key, self.reason = key, reason

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


def checked(
    section: str,
    declared: Mapping[str, Parameter],
    given: Mapping[str, object],
    what: str = "hyperparameter",
) -> dict[str, Scalar]:
    """Values for the declared keyword parameters of a function, converted to their types."""
    values: dict[str, Scalar] = {}
    for name, value in given.items():
        key = f"{section}.{name}"
        if name not in declared:
            allowed = f"allowed: {', '.join(declared)}" if declared else f"{section} has none"
            raise InvalidSetting(
                key, f"unknown {what} {name!r}{nearest(name, declared)}; {allowed}"
            )
        kind = declared[name].annotation
        if isinstance(value, bool) and kind is not bool:
            raise InvalidSetting(key, f"{value!r} given; must not be true or false")
        try:
            values[name] = _adapter(kind).validate_python(value)
        except ValidationError as error:
            raise InvalidSetting(key, first_problem(error)) from None
    for name, parameter in declared.items():
        if parameter.default is Parameter.empty and name not in values:
            raise InvalidSetting(f"{section}.{name}", f"missing; {section} has no default for it")
    return values


@functools.lru_cache(maxsize=1024)
def _adapter(kind: Any) -> TypeAdapter[Scalar]:
    """What checks values of a type."""
    return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))


def listed(text: str) -> list[str]:
    """The names in a line of CSV, stripped; one with a comma stands in quotes."""
    try:
        names, *more = csv.reader([text.strip(), ""], skipinitialspace=True)
    except csv.Error:
        more = []
    if more != [[]]:  # a quote is open, or there are several lines
        raise ValueError("must be one line of names with commas between, and quotes closed")
    return [name.strip() for name in names]


def in_line(names: Iterable[str]) -> str:
    """The line of CSV that :func:`listed` reads as these names."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()


def _line(value: object) -> object:
    line = in_line(map(str, value)) if isinstance(value, list | tuple) else value
    if isinstance(line, str):
        listed(line)
    return line


Names = Annotated[str, BeforeValidator(_line)]
"""Names in a line of CSV; in a YAML file also a list of them."""


def clients_or_number(value: object) -> float | str:
    """A number of clients, a share of them below 1, or a line of their names, see :func:`listed`.

    Names are given as a list, or as a text in brackets or without; one that is a number needs them:
    ``[3]``. A ValueError where it is none of these.
    """
    text = f"[{in_line(map(str, value))}]" if isinstance(value, list | tuple) else str(value)
    bracketed = re.fullmatch(r"\s*\[(.*)\]\s*", text, re.DOTALL)
    if bracketed is None and (number := _number(text)) is not None:
        if not 0 <= number <= 10**7 or (number >= 1 and not number.is_integer()):
            raise ValueError("must be a whole number of clients, or a share below 1")
        return number
    names = listed(bracketed[1] if bracketed else text)
    if isinstance(value, bool | None) or not names or not all(names):
        raise ValueError("must be a number of clients, a share below 1, or names, as in [va, lund]")
    line = in_line(names)
    return line if _number(line) is None else f"[{line}]"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def column_names(value: object) -> dict[str, str]:
    """The names of columns by what they hold, in the order of :data:`COLUMNS`.

    ``value`` is a line of CSV, ``label=fine_label,site=hospital``, or a mapping, in which a name
    may be None. A ValueError where it is neither, or a column holds something else.
    """
    if isinstance(value, str):
        pairs = [tuple(text.split("=", 1)) for text in listed(value)]
    else:
        pairs = list(value.items()) if isinstance(value, Mapping) else [()]
    if any(len(pair) != 2 or pair[1] == "" for pair in pairs):
        raise ValueError(
            "must be names of columns, as in label=fine_label,site=hospital, with quotes around a "
            'pair that holds a comma, "site=ward, floor"'
        )
    columns = {role: str(name) for role, name in pairs if name is not None}
    for role, _ in pairs:
        if role not in COLUMNS:
            near = nearest(str(role), COLUMNS)
            raise ValueError(f"must be of {', '.join(COLUMNS)}; {role!r} is none of them{near}")
    if len({role for role, _ in pairs}) < len(pairs):
        raise ValueError("must name each column once")
    return {role: columns[role] for role in COLUMNS if role in columns}


def client_ids(value: object, more: str = "") -> str:
    """Ids of clients, given as a list or a text, ascending: ``0,3,7``; ``more`` may stand there."""
    texts = value if isinstance(value, list | tuple) else str(value).split(",")
    try:
        ids = sorted({int(text) for text in texts})
    except (TypeError, ValueError):
        ids = []
    if not ids or ids[0] < 0:
        raise ValueError(f"must be ids of clients, separated by commas, as in 0,3,7{more}")
    return ",".join(map(str, ids))


def defaults(declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """The default of each parameter that has one."""
    return {name: p.default for name, p in declared.items() if p.default is not Parameter.empty}


def argument_texts(docstring: str) -> dict[str, str]:
    """The text of each parameter under ``Args:`` in the docstring of a function."""
    arguments = docstring.partition("Args:")[2].partition("\n\n")[0]
    matches = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", arguments, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in matches}


def first_problem(error: ValidationError) -> str:
    """The first problem that pydantic found: ``'x' given; must be a valid number``."""
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input should ")
    message = message.partition(", unable to parse")[0].partition(", unable to interpret")[0]
    message = message if message.startswith("must") else f"must {message}"
    value = first["input"]
    if not isinstance(value, str | int | float | None):
        return message
    choices = str(first.get("ctx", {}).get("expected", "")).split("'")[1::2]
    text = "null" if value is None else repr(value)
    return f"{text} given; {message}{nearest(str(value), choices)}"


def word_or_number(value: object, words: Sequence[str]) -> str | int:
    """One of the words, or a whole number from 1 to :data:`MOST`."""
    text = str(value)
    if text in words:
        return text
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 1 <= int(text) <= MOST:
        raise ValueError(f"must be {', '.join(words)} or a whole number from 1 to {MOST}")
    return int(text)


def with_folder(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Section ``data``, in which ``hf:DIR``, ``csv:FILE``, ``csv:FILE,FILE`` or ``csv:DIR`` stands
    for name and ``data.dir``."""
    kind, colon, folder = str(values.get("name")).partition(":")
    if kind not in ("hf", "csv") or not colon:
        return values
    if not folder:
        raise InvalidSetting("data.name", f"'{kind}:' given; must be hf:DIR or csv:FILE")
    if values.get("dir") not in (None, folder):
        raise InvalidSetting(
            "data.dir", f"{values['dir']!r} given beside data.name={kind}:{folder}"
        )
    return {**values, "name": kind, "dir": folder}
