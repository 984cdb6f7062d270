"""A section that names a part and has its settings: an attack, a compressor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import model_validator

from fedsim.config.section import Section
from fedsim.core.errors import nearest
from fedsim.core.registry import Registry
from fedsim.core.settings import InvalidSetting, checked

T = TypeVar("T")


class PartSection(Section):
    """Names a part of ``registry``; keys but those in ``common`` are settings of some parts."""

    registry: ClassVar[Registry]
    common: ClassVar[tuple[str, ...]] = ()
    name: str | None

    @property
    def changed(self) -> dict[str, Any]:
        """The keys that have not their defaults."""
        return {key: v for key, v in self if v != type(self).model_fields[key].default}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the part among these; for others the part has defaults of its own."""
        return {k: v for k, v in self.changed.items() if k != "name" and k not in self.common}

    def make(self, kind: type[T], first: Iterable[Any], options: Mapping[str, Any]) -> T:
        """The part that is named, with the options in a section of its name; a ``kind``."""
        name = self.name or ""
        declared = self.registry.parameters(name)
        settings = {key: value for key, value in self.settings.items() if key in declared}
        return self.registry.build(name, kind, first, {**settings, **options.get(name, {})})

    @model_validator(mode="after")
    def _known(self) -> PartSection:
        name, names = self.name, self.registry.names()
        if name == type(self).model_fields["name"].default:
            for key, value in self.changed.items():
                reason = f"{value!r} given; give {self.prefix}name too"
                raise InvalidSetting(f"{self.prefix}{key}", reason)
            return self
        if name not in names and ":" not in (name or ""):
            raise InvalidSetting(
                f"{self.prefix}name",
                f"{name!r} given; must be one of {', '.join(names)}, or FILE.py:function"
                f"{nearest(str(name), names)}",
            )
        declared = self.registry.parameters(str(name)) if self.settings else {}
        for key, value in self.settings.items():
            if key not in declared and value != "none":
                users = [other for other in names if key in self.registry.parameters(other)]
                reason = f"{value!r} given; {name} has none; only {', '.join(users)}"
                raise InvalidSetting(f"{self.prefix}{key}", reason)
            if key in declared:
                checked(self.prefix.removesuffix("."), {key: declared[key]}, {key: value})
        return self
