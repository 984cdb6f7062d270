"""What every section of a configuration is, and what a key says beside its value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedsim.core.errors import nearest
from fedsim.core.reading import URL
from fedsim.core.settings import InvalidSetting, first_problem

Role = Literal["result", "neutral", "placement", "device"]
"""result: results depend on the key; neutral: but for last bits none does; placement: it may change
when a run is resumed, and changes nothing; device: it may change, the kind of device must not."""


def unknown_key(key: str, names: Iterable[str], keys: Iterable[str]) -> str:
    """Why the dotted ``key`` is refused, with the one of ``names``, or else of the ``keys`` of all
    sections, that is probably meant."""
    names = tuple(names)
    section, dot, leaf = key.rpartition(".")
    meant = [k for k in names if dot and k.startswith(f"{section}.") and leaf in k[len(section) :]]
    if len(meant) != 1 or len(leaf) < 4:
        meant = [k for k in keys if k.rpartition(".")[2] == leaf]
        meant = meant or [k for k in names if k.endswith(f".{key}")]
    hint = f" (did you mean {meant[0]!r}?)" if meant else nearest(key, names)
    return f"unknown key {key!r}{hint}"


@dataclass(frozen=True)
class Key:
    """What flags, resuming, replays, estimates and tables know of a key; it annotates the field.

    Args:
        flag: its names on the command line, such as ``-a --algorithm``; empty: --set alone.
        metavar: of the flag's value; empty: by the type.
        common: whether the help of ``fedsim run`` lists the flag.
        names: the kind of ``fedsim list`` that has its values.
        path: what the value may be, relative to where a run was started.
        role: what depends on it.
        only_with: other keys without which it has no effect, each with the values that count,
            ``train.selection=size|fixed``, or alone, where anything but the default counts.
        column: its column in summary.csv where that has another name; None: it has none.
        column_with: leaf of the section; where that has its default, there is no column.
        shape: whether a round may take longer with another value.
        of_ray: whether it says how Ray is used.
    """

    flag: str = ""
    metavar: str = ""
    common: bool = False
    names: str = ""
    path: Literal["", "dir", "file"] = ""
    role: Role = "result"
    only_with: tuple[str, ...] = ()
    column: str | None = ""
    column_with: str = ""
    shape: bool = True
    of_ray: bool = False


Common = partial(Key, common=True)
Neutral = partial(Key, role="neutral")
Placement = partial(Key, role="placement")


class Section(BaseModel):
    """A frozen group of settings; unknown keys, NaN and truth values for numbers are refused.

    The keys of a section ``only_with`` another key have no effect without it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )
    prefix: ClassVar[str] = ""
    only_with: ClassVar[str] = ""

    @field_validator("*", mode="before")
    @classmethod
    def _of_the_right_kind(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("must not be true or false")
        if isinstance(value, str) and URL.match(value):
            raise ValueError("must be a path on this machine: mount the storage, or copy from it")
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _one_line(cls, values: Any, handler: ModelWrapValidatorHandler[Section]) -> Section:
        try:
            return handler(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = cls.prefix + str(first["loc"][0] if first["loc"] else "")
            unknown = first["type"] == "extra_forbidden"
            reason = cls.unknown(key) if unknown else first_problem(error)
            raise InvalidSetting(key, reason) from None

    @classmethod
    def unknown(cls, key: str) -> str:
        """Why the dotted ``key`` is refused, with the nearest key that exists."""
        return unknown_key(key, [cls.prefix + leaf for leaf in cls.model_fields], ())
