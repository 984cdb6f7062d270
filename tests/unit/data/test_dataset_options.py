"""Options of data sets: declared by the reader's signature, and the keys they had before."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner

from fedsim import RunConfig, data
from fedsim.cli import main
from fedsim.config import experiments
from fedsim.config.resolve import from_flags, resolve, to_yaml
from fedsim.core.errors import ConfigError
from fedsim.data import readers

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
        ("synthetic.beta=1", r"synthetic.beta: only data set synthetic is drawn with"),
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
