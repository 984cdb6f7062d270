"""Options of data sets: declared by the reader's signature, and the keys they had before."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner

from fedsim import RunConfig, algorithms, data, resume, run
from fedsim.cli import main
from fedsim.config import earlier, experiments
from fedsim.config.resolve import from_flags, resolve, to_yaml
from fedsim.core.errors import ConfigError
from fedsim.data import readers
from fedsim.storage.checkpoint import decode_record, encode_record
from fedsim.training.resume import can_resume, is_complete

STRIPES = '''
"""Stripes of two directions."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.data.dataset import DatasetInfo, Raw, Request


def stripes(
    request: Request,
    *,
    period: Annotated[int, Field(ge=2)] = 4,
    noise: Annotated[float, Field(ge=0)] = 10.0,
) -> Raw:
    """Stripes, one class for each direction."""
    draw = np.random.default_rng(request.seed)
    y = np.arange(200) % 2
    ramp = np.broadcast_to(200.0 * (np.arange(12) % period >= period / 2), (200, 12, 12))
    x = np.where(y[:, None, None] == 1, ramp, ramp.transpose(0, 2, 1))
    x = np.clip(x + noise * draw.standard_normal(x.shape), 0, 255)
    return Raw(
        source="stripes",
        x=x.astype(np.uint8)[:, None],
        y=y,
        class_names=("rows", "columns"),
        mean=(0.5,),
        std=(0.5,),
    )


DATASETS = (
    DatasetInfo(name="stripes", title="stripes", read=stripes, num_classes=2, source="generated"),
)
'''
OWN = """
import numpy as np
from fedsim.core.types import Dataset, Pipeline

def make(folder, seed=0, *, shade: int = 3, label: str):
    x = np.full((40, 1, 4, 4), shade, np.uint8)
    y = np.arange(40) % 2
    i = np.arange(40)
    pipeline = Pipeline(size=4, mean=(0.5,), std=(0.5,))
    return Dataset(name=label, x=x, y=y, class_names=("a", "b"), train=i[:30], val=i[:0],
                   test=i[30:], pipeline=pipeline)
"""
SMALL = {"rounds": 1, "sample_rate": 1.0}
OLD = {
    "data.correlation": ("shortcut", "correlation", 0.5),
    "data.samples_per_client": ("shortcut", "samples_per_client", 9),
    "data.synthetic_alpha": ("synthetic", "alpha", 1.5),
    "data.synthetic_beta": ("synthetic", "beta", 2.5),
    "data.synthetic_iid": ("synthetic", "iid", True),
}


@pytest.fixture
def stripes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A data set with two options: one more file in the folder of readers."""
    (tmp_path / "readers").mkdir()
    (tmp_path / "readers" / "stripes.py").write_text(STRIPES)
    monkeypatch.setattr(readers, "__path__", [*readers.__path__, str(tmp_path / "readers")])
    data.catalogue.cache_clear()
    yield
    data.catalogue.cache_clear()
    sys.modules.pop("fedsim.data.readers.stripes", None)


@pytest.fixture
def notices(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the logger ``fedsim`` said, as if this process had said nothing before."""
    earlier._warn.cache_clear()
    caplog.set_level(logging.WARNING, logger="fedsim")
    return lambda: caplog.messages


def cli(*arguments: str) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.integration
@pytest.mark.usefixtures("stripes")
def test_a_data_set_with_two_options_is_one_file(tmp_path: Path) -> None:
    listed = {row["name"]: row for row in json.loads(cli("list", "datasets", "--format", "json"))}
    assert listed["stripes"]["options"] == {"period": 4, "noise": 10.0}
    assert listed["digits"]["options"] == {}
    assert "period=4 noise=10.0" in cli("list", "datasets")

    arguments = ["-d", "stripes", "--set", "stripes.noise=0", "--set", "stripes.period=6"]
    arguments += ["--clients", "4", "--sample-rate", "1", "--rounds", "1", "--engine", "serial"]
    cli("run", *arguments, "--out", str(tmp_path / "r"))
    written = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    assert written["stripes"] == {"period": 6, "noise": 0.0}
    row = pd.read_csv(tmp_path / "r" / "summary.csv").iloc[0]
    assert (row["stripes.period"], row["stripes.noise"]) == (6, 0.0)
    x = data.load("stripes", noise=0, period=6).x
    assert x[0, 0, :, 0].tolist() == [0, 0, 0, 200, 200, 200] * 2  # rows
    assert x[1, 0, 0].tolist() == [0, 0, 0, 200, 200, 200] * 2  # columns


@pytest.mark.usefixtures("stripes")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("stripes.periods=4", r"unknown option 'periods' \(did you mean 'period'\?\); allowed: "),
        ("stripes.period=1", r"stripes.period: '1' given; must be greater than or equal to 2"),
        ("stripes.period=a", r"stripes.period: 'a' given; must be a valid integer"),
        ("stripes.noise=true", r"stripes.noise: 'true' given; must be a valid number"),
        ("period=5", r"unknown key 'period' \(did you mean 'stripes.period'\?\)"),
        ("digits.size=5", r"unknown option 'size'; digits has none"),
        ("shortcut.correlation=1", r"shortcut.correlation: only data set shortcut is drawn with"),
    ],
)
def test_options_are_checked_by_the_signature(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(from_flags({"data.name": ("-d", "stripes")}, [given]))


@pytest.mark.usefixtures("stripes")
def test_options_of_another_data_set_are_refused_unless_they_are_defaults() -> None:
    assert "stripes" not in RunConfig(stripes={"noise": 10}).hyperparameters
    with pytest.raises(ConfigError, match=r"stripes\.noise: only data set stripes has it"):
        RunConfig(stripes={"noise": 11})


def test_a_loader_of_the_users_has_options_of_its_own(tmp_path, monkeypatch) -> None:
    (tmp_path / "loader_with_options.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "loader_with_options:make"
    with pytest.raises(ConfigError, match=f"{name}.label: missing; {name} has no default for it"):
        RunConfig(data={"name": name})
    flags = from_flags({}, [f"data.name={name}", f"{name}.label=toy", f"{name}.shade=7"])
    config = resolve(flags)
    assert config.hyperparameters[name] == {"shade": 7, "label": "toy"}
    again = resolve(experiments.parse(to_yaml(config), "config.yaml").settings)
    assert again == config
    made = data.load(name, shade=9, label="toy")
    assert (made.name, np.unique(made.x).tolist()) == ("toy", [9])


def test_no_data_set_is_called_like_a_method_or_a_section() -> None:
    names = {info.name for info in data.catalogue()}
    assert not names & {*algorithms.names(), *RunConfig.model_fields}


@pytest.mark.parametrize("key", OLD)
def test_older_keys_work_and_say_what_replaces_them(
    key: str, notices: Callable[[], list[str]]
) -> None:
    section, leaf, value = OLD[key]
    where = {"data.name": ("-d", section)}
    new = RunConfig(data={"name": section}, **{section: {leaf: value}})
    said = f"{key} is now called {section}.{leaf}"
    assert not notices()
    assert resolve(from_flags(where, [f"{key}={value}"])) == new
    assert notices() == [said]
    earlier._warn.cache_clear()
    nested = {"name": section, key.removeprefix("data."): value}
    assert RunConfig(data=nested).hyperparameters == new.hyperparameters
    assert notices() == [said] * 2
    text = f"{{data: {{name: {section}}}, {key}: {value}}}"
    assert resolve(experiments.parse(text, "a.yaml").settings) == new
    assert notices() == [said] * 2  # once for a process


def test_a_later_layer_wins_under_either_name(notices: Callable[[], list[str]]) -> None:
    base = experiments.parse("{data.name: shortcut, shortcut.correlation: 0.7}", "base.yaml")
    found = resolve(base.settings, from_flags({"data.correlation": ("--correlation", "0.5")}))
    assert found.hyperparameters["shortcut"]["correlation"] == 0.5
    assert notices() == ["data.correlation is now called shortcut.correlation"]
    with pytest.raises(ConfigError, match=r"--set .*: data.correlation is also given by --set"):
        from_flags({}, ["shortcut.correlation=0.1", "data.correlation=0.2"])
    with pytest.raises(ConfigError, match=r"data\.correlation: given beside shortcut"):
        RunConfig(data={"name": "shortcut", "correlation": 0.5}, shortcut={"correlation": 0.5})
    with pytest.raises(ConfigError, match=r"--correlation: '2' given; must be less"):
        resolve(base.settings, from_flags({"data.correlation": ("--correlation", "2")}))


def older(path: Path, rounds: int) -> None:
    """Rewrites a run as the version before would have begun it: five keys in section data."""
    file = path / "config.yaml"
    settings = yaml.safe_load(file.read_text())
    defaults = {"shortcut": {"correlation": 0.9, "samples_per_client": 60}}
    defaults["synthetic"] = {"alpha": 0.0, "beta": 0.0, "iid": False}
    values = {name: own | settings.pop(name, {}) for name, own in defaults.items()}
    before = {key: values[section][leaf] for key, (section, leaf, _) in OLD.items()}
    settings["train"]["rounds"] = rounds
    settings["data"] |= {key.removeprefix("data."): value for key, value in before.items()}
    file.write_text(yaml.safe_dump(settings, sort_keys=False))
    for record in path.glob("checkpoints/*.json"):
        content = decode_record(record.read_bytes())
        kept = {k: v for k, v in content["settings"].items() if k not in earlier.RENAMED.values()}
        more = before | {"train.rounds": rounds}
        record.write_bytes(encode_record(content | {"settings": kept | more}))


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(("name", "told"), [("digits", False), ("shortcut", True)])
def test_runs_of_the_version_before_go_on(tmp_path, name, told, notices) -> None:
    config = RunConfig(
        data={"name": name, "num_clients": 4},
        **({"shortcut": {"correlation": 0.5, "samples_per_client": 20}} if told else {}),
        train={"rounds": 3, "sample_rate": 1.0, "batch_size": 20},
        engine={"kind": "serial"},
    )
    whole = run(config, tmp_path / "whole").path
    halves = tmp_path / "halves"
    stopped = config.model_copy(update={"train": config.train.model_copy(update={"rounds": 2})})
    run(stopped, halves)
    (halves / "summary.csv").unlink()
    older(halves, rounds=3)
    moved = list(earlier.RENAMED.items())
    assert can_resume(config, halves)
    before = len(notices())
    assert resume(halves).path == halves
    said = [n for n in notices()[before:] if "is now called" in n]
    assert said == (["; ".join(f"{k} is now called {v}" for k, v in moved[:2])] if told else [])
    for table in ("rounds.csv", "clients.csv", "classes.csv"):
        assert (halves / table).read_bytes() == (whole / table).read_bytes()
    assert is_complete(config, halves)
    changed = config.model_copy(update={"hyperparameters": {"shortcut": {"correlation": 0.6}}})
    if told:
        with pytest.raises(ConfigError, match=r"finished with another shortcut\.correlation"):
            is_complete(changed, halves)
