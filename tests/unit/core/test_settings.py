"""Typed keyword parameters as settings."""

from __future__ import annotations

import inspect
from typing import Annotated

import pytest
from pydantic import Field

from fedsim.core.settings import InvalidSetting, checked


def test_a_type_that_cannot_be_a_key_is_checked_as_well():
    def build(mu: Annotated[float, Field(ge=0), ["no key"]] = 1.0, steps: int = 2): ...

    declared = inspect.signature(build, eval_str=True).parameters
    assert checked("mine", declared, {"mu": "0.5", "steps": 3.0}) == {"mu": 0.5, "steps": 3}
    for name, value in (("mu", -1), ("steps", 1.5)):
        with pytest.raises(InvalidSetting, match=rf"^mine\.{name}: "):
            checked("mine", declared, {name: value})
