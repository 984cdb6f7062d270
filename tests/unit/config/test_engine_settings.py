"""Settings of section engine that are no more, and those that are checked by what runs them."""

from __future__ import annotations

import pytest
import yaml

from fedsim.config.resolve import from_flags, load_config, to_yaml
from fedsim.config.run import RunConfig
from fedsim.config.sections import SHORTHANDS, EngineConfig
from fedsim.core.errors import ConfigError

REMOVED = "engine.client_resources"


def test_a_removed_key_is_accepted_at_its_old_default(tmp_path):
    plain = RunConfig(engine={"actors": 3})
    written = yaml.safe_load(to_yaml(plain))
    assert "client_resources" not in written["engine"]
    written["engine"]["client_resources"] = None
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(written))
    assert load_config(file=file) == plain
    assert load_config(file=file, overrides=from_flags({}, [f"{REMOVED}=null"])) == plain
    assert EngineConfig(client_resources=None) == EngineConfig()


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


@pytest.mark.parametrize("written", [False, "false", None])
def test_a_run_without_fast_goes_on(written):
    assert RunConfig(engine={"fast": written}) == RunConfig()


def test_fast_in_a_file_says_which_settings_it_was():
    with pytest.raises(
        ConfigError, match=r"^engine\.fast: True given, .*engine\.precision=bf16 and"
    ):
        RunConfig(engine={"fast": True})


def test_a_removed_key_with_a_value_is_refused_with_place_and_reason(tmp_path):
    file = tmp_path / "e.yaml"
    file.write_text("engine:\n  client_resources: shares.csv\n")
    reason = (
        r"'shares\.csv' given, but clients cannot ask for different resources.*; allowed is null$"
    )
    for origin, given in (
        (rf"^\S*e\.yaml:2 \({REMOVED}\): ", {"file": file}),
        (rf"^--set {REMOVED}: ", {"overrides": from_flags({}, [f"{REMOVED}=shares.csv"])}),
    ):
        with pytest.raises(ConfigError, match=origin + reason):
            load_config(**given)
    with pytest.raises(ConfigError, match=f"^{REMOVED}: {reason}"):
        RunConfig(engine={"client_resources": "shares.csv"})
