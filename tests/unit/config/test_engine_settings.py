"""Settings of section engine that are no more, and those that are checked by what runs them."""

from __future__ import annotations

import pytest

from fedsim.config.resolve import from_flags, load_config
from fedsim.config.sections import SHORTHANDS
from fedsim.core.errors import ConfigError


def test_fast_is_two_settings():
    [(key, meant)] = SHORTHANDS.items()
    settings = from_flags({key: ("--fast", True)})
    assert {name: setting.value for name, setting in settings.items()} == meant
    config = load_config(overrides=settings)
    assert (config.engine.precision, config.engine.deterministic) == ("bf16", False)
    both = {"engine.precision": ("--precision", "tf32"), key: ("--fast", True)}
    with pytest.raises(
        ConfigError, match=r"^--fast: engine\.precision is also given by --precision"
    ):
        from_flags(both)
    assert from_flags({key: ("--fast", None)}) == {}
