"""What every section of a configuration is: :class:`Section`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedsim.config.hints import unknown_key
from fedsim.core.reading import ON_DISK, URL
from fedsim.core.settings import InvalidSetting, first_problem


class Section(BaseModel):
    """A frozen group of settings; unknown keys, NaN and truth values for numbers are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )
    prefix: ClassVar[str] = ""

    @field_validator("*", mode="before")
    @classmethod
    def _of_the_right_kind(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("must not be true or false")
        if isinstance(value, bytes):
            raise ValueError("must not be binary data")
        if isinstance(value, str) and URL.match(value):
            raise ValueError(ON_DISK)
        return value

    @field_validator("*")
    @classmethod
    def _of_64_bits(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, int) and value >= 2**63 and info.field_name != "seed":
            raise ValueError(f"must be less than {2**63}")
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _one_line(cls, values: Any, handler: ModelWrapValidatorHandler[Section]) -> Section:
        try:
            return handler(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = cls.prefix + str(first["loc"][0] if first["loc"] else "")
            if first["type"] == "extra_forbidden":
                raise InvalidSetting(key, cls.unknown(key)) from None
            raise InvalidSetting(key, first_problem(error)) from None

    @classmethod
    def unknown(cls, key: str) -> str:
        """Why the dotted ``key`` is refused, with the nearest key that exists."""
        from fedsim.config.sections import fields  # imports this file

        known = [cls.prefix + leaf for leaf in cls.model_fields]
        return unknown_key(key, known, fields())
