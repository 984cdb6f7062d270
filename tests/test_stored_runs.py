"""Runs that released versions stored are read, compared, tabulated, resumed and started from.

``python -m tests.stored`` stores them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

import fedsim
from fedsim.cli import main
from fedsim.config.resolve import from_flags, load_config, resolve
from fedsim.core.errors import ConfigError
from fedsim.identity import resume
from fedsim.training.assemble import prepare
from tests.stored import COMMAND, FOLDER

pytestmark = pytest.mark.integration

STORED = sorted(file.stem for file in FOLDER.glob("*.zip"))
WANTED = {
    "algorithm": "fedprox",
    "data": {"num_clients": 2},
    "model": {"name": "logistic"},
    "train": {"sample_rate": 1.0, "rounds": 2},
    "engine": {"kind": "serial"},
}
"""What COMMAND asks for."""


def wanted(**more: object) -> fedsim.RunConfig:
    return fedsim.RunConfig(**WANTED | more)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all stored runs."""
    folder = tmp_path_factory.mktemp("stored")
    for name in STORED:
        shutil.unpack_archive(FOLDER / f"{name}.zip", folder / name)
    return folder


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run by this version, and one with another seed."""
    folder = tmp_path_factory.mktemp("today")
    for seed in (0, 1):
        fedsim.run(wanted(seed=seed), folder / str(seed))
    return folder


def command(*args: object) -> Result:
    result = CliRunner().invoke(main, list(map(str, args)))
    assert result.exit_code == 0, result.output
    return result


def test_the_command_is_the_configuration() -> None:
    assert "0.1.0" in STORED
    keys = {"engine": "engine.kind", "dataset": "data.name", "model": "model.name"}
    keys |= {"clients": "data.num_clients", "rounds": "train.rounds", "algorithm": "algorithm"}
    keys["sample-rate"] = "train.sample_rate"
    flags = [flag.removeprefix("--") for flag in COMMAND[1::2]]
    given = {keys[flag]: (flag, value) for flag, value in zip(flags, COMMAND[2::2], strict=True)}
    assert resolve(from_flags(given)) == wanted()


@pytest.mark.parametrize("name", STORED)
def test_a_stored_run_is_listed_and_shown(name: str, stored: Path) -> None:
    found = json.loads(command("runs", stored / name, "--format", "json").stdout)
    listed = {Path(run["path"]).name: run for run in found}
    assert listed["finished"]["state"] == "finished"
    rounds = pd.read_csv(stored / name / "finished" / "rounds.csv")
    assert listed["finished"]["final_test_accuracy"] == rounds["test_accuracy"].iloc[-1]
    assert listed["interrupted"]["state"] == "interrupted"
    shown = json.loads(command("show", stored / name / "finished", "--format", "json").stdout)
    changed = {key: value["value"] for key, value in shown["changed"].items()}
    assert changed == {
        "algorithm": "fedprox", "data.num_clients": 2, "model.name": "logistic",
        "train.rounds": 2, "train.sample_rate": 1.0, "engine.kind": "serial",
    }  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_a_stored_run_counts_as_finished_where_its_settings_are_wanted(
    name: str, stored: Path, tmp_path: Path
) -> None:
    run = stored / name / "finished"
    assert resume.is_complete(wanted(), run)
    with pytest.raises(ConfigError, match=r"finished with another model\.trainable \('all'"):
        resume.is_complete(wanted(model=WANTED["model"] | {"trainable": "head"}), run)
    grid = tmp_path / "grid.yaml"
    grid.write_text(yaml.safe_dump(WANTED | {"grid": {"seed": [0]}}), encoding="utf-8")
    shutil.copytree(run, tmp_path / "sweep" / "seed=0")
    before = {
        path: path.read_bytes() for path in (tmp_path / "sweep").rglob("*.*") if path.is_file()
    }
    told = command("sweep", grid, "--out", tmp_path / "sweep")
    assert "finished before" in told.output
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize("name", STORED)
def test_a_stored_run_is_compared_with_one_of_today(name: str, stored: Path, today: Path) -> None:
    found = json.loads(
        command("show", stored / name / "finished", today / "0", "--format", "json").stdout
    )
    assert not {
        key for key in found["settings"] if key.split(".")[0] in fedsim.RunConfig.model_fields
    }
    old, new = (results["test_accuracy"]["final"] for results in found["results"])
    assert old == pytest.approx(new, abs=0.02)  # other processors round differently


@pytest.mark.parametrize("name", STORED)
def test_a_stored_run_is_a_seed_beside_one_of_today(name: str, stored: Path, today: Path) -> None:
    table = command("table", stored / name / "finished", today / "1", "--at", "final").stdout
    (row,) = [line for line in table.splitlines() if line.startswith("| FedProx")]
    assert "| 2 |" in row


@pytest.mark.parametrize("name", STORED)
def test_an_interrupted_stored_run_goes_on(name: str, stored: Path, tmp_path: Path) -> None:
    run = shutil.copytree(stored / name / "interrupted", tmp_path / "run")
    found = fedsim.resume(run, progress=False).read("rounds")
    expected = pd.read_csv(stored / name / "finished" / "rounds.csv")
    assert list(found) == list(expected)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-4, check_dtype=False)


@pytest.mark.parametrize("name", STORED)
def test_a_stored_model_predicts_and_is_a_start(name: str, stored: Path) -> None:
    run = stored / name / "finished"
    rows = fedsim.predict(run)
    last = pd.read_csv(run / "rounds.csv")["test_accuracy"].iloc[-1]
    assert (rows["label"] == rows["prediction"]).mean() == pytest.approx(last, abs=0.01)
    setup = prepare(wanted(model=WANTED["model"] | {"weights": str(run)}))
    assert not setup.start.drawn
    assert not np.array_equal(setup.initial, prepare(wanted()).initial)


@pytest.mark.parametrize("name", STORED)
def test_the_configuration_of_a_stored_run_repeats_it(name: str, stored: Path) -> None:
    file = stored / name / "finished" / "config.yaml"
    config = load_config(file=file)
    assert config.data.group == "none"
    assert resume.difference(config, yaml.safe_load(file.read_text())) is None
