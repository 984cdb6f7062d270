"""Settings of section engine that are no more, and those that are checked by what runs them."""

from __future__ import annotations

import pytest
import yaml

from fedsim.config.resolve import from_flags, load_config, to_yaml
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
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
