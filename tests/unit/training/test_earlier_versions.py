"""A key that a run lacks has the value that its version had: the default, or what is marked."""

from __future__ import annotations

import json
import shutil
import types
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from pydantic import Field

from analysis import AnalysisError
from analysis.runs import group, summaries
from fedsim.cli import main
from fedsim.config import earlier, experiments
from fedsim.config.experiments import Setting
from fedsim.config.resolve import load_config, resolve, to_dict
from fedsim.config.run import RunConfig
from fedsim.config.section import Section
from fedsim.config.sections import fields
from fedsim.core.settings import Before
from fedsim.training.resume import PLACEMENT, decisive, difference, upgraded
from fedsim.training.summary import settings_of
from tests.unit.analysis.run_files import groups_of, run_of

METHODS = {"fedprox": "mu", "fedadam": "eta"}
WANTED = RunConfig(algorithm="fedprox", server="fedadam")
FILLED = WANTED.resolved(num_clients=50, partition="dirichlet", model="cnn")
OPTIONS = [f"{name}.{leaf}" for name in METHODS for leaf in FILLED.hyperparameters[name]]
KEYS = [key for key in fields() if key not in ("algorithm", "server")] + OPTIONS
"""All keys of all sections, and those of two methods."""
FREE = {"label", *(f"engine.{leaf}" for leaf in PLACEMENT)}


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """A configuration by dotted key."""
    found = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found


ALL = flat(to_dict(FILLED))


def without(key: str) -> dict[str, Any]:
    """The settings in a config.yaml of a version that did not have the key."""
    return {name: value for name, value in ALL.items() if name != key}


def another(key: str) -> Any:
    """A value of the key's type that is not the one of FILLED."""
    if key in ("data.name", "engine.actors", "evaluation.conflicts"):
        return {"data.name": "synthetic", "evaluation.conflicts": 3}.get(key, 3)
    value = ALL[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    kinds = [fields()[key].annotation] if key in fields() else []
    while kinds:
        kind = kinds.pop()
        if get_origin(kind) is Literal:
            return next(choice for choice in get_args(kind) if choice != value)
        if kind in (int, float):
            return kind(1)
        kinds += get_args(kind) if get_origin(kind) is types.UnionType else ()
    return "another"


def changed(key: str, value: Any) -> RunConfig:
    """WANTED with another value, whether or not it goes together with the others."""
    section, _, leaf = key.rpartition(".")
    if not section:
        return WANTED.model_copy(update={leaf: value})
    if section in METHODS:
        own = WANTED.hyperparameters | {section: WANTED.hyperparameters[section] | {leaf: value}}
        return WANTED.model_copy(update={"hyperparameters": own})
    return WANTED.model_copy(
        update={section: getattr(WANTED, section).model_copy(update={leaf: value})}
    )


BY_THE_DATA = ("model.name", "data.partition")
"""Keys whose default is that of the data set; every version wrote them."""


@pytest.mark.parametrize("key", KEYS)
def test_a_finished_run_without_a_key_counts_as_one_with_its_earlier_value(key):
    assert difference(WANTED, without(key)) is None
    told = difference(changed(key, another(key)), without(key))
    if key in FREE:
        assert told is None
    elif key == "data.name":
        assert told == "data.name ('digits', wanted 'synthetic')"
    else:
        known = None if key in BY_THE_DATA else earlier.values(METHODS)[key]
        assert told == f"{key} ({known!r}, wanted {another(key)!r})"


def test_the_earlier_value_is_the_default_unless_the_field_says_otherwise():
    standard = {key: field.default for key, field in fields().items()}
    marked = {"data.group": "none", "data.normalization": "dataset"}
    assert {k: v for k, v in earlier.values().items() if v != standard[k]} == marked


class Marked(Section):
    """A section with a mark."""

    rate: Annotated[float, Before(0.25)] = Field(0.5, gt=0)


def test_a_field_and_a_parameter_may_say_what_repeats_earlier_runs(monkeypatch):
    monkeypatch.setattr(earlier, "fields", lambda: {"x.rate": Marked.model_fields["rate"]})
    name = f"{__name__}:marked"
    assert earlier.values([name]) == {"x.rate": 0.25, f"{name}.rate": 0.1, f"{name}.size": 2}


def test_what_is_marked_is_a_setting_of_runs_alone():
    text = "seed: 1\ndata: {seed: 3}\n"
    settings = experiments.parse(text, "config.yaml").settings
    given = {key: setting.value for key, setting in earlier.of_its_version(settings).items()}
    marked = {"data.group": "none", "data.normalization": "dataset"}
    assert given == marked | {"seed": 1, "data.seed": 3}
    assert earlier.of_a_file(settings) == settings, "no run wrote this file"


def marked(rate: Annotated[float, Before(0.1)] = 0.5, size: int = 2) -> None:
    """Stands for the function that builds a method."""


@pytest.mark.parametrize("key", KEYS)
def test_a_run_without_a_key_goes_on_as_it_began(key):
    given = {name: Setting(value, name) for name, value in without(key).items()}
    found = resolve(earlier.of_its_version(given), build=False)
    if key in BY_THE_DATA:
        found = found.resolved(num_clients=50, partition="dirichlet", model="cnn")
    assert found == FILLED


def test_a_checkpoint_without_a_key_has_its_earlier_value():
    settings = decisive(FILLED)
    for key in ("data.group", "train.optimizer", "model.trainable", "fedprox.mu"):
        assert upgraded({k: v for k, v in settings.items() if k != key}) == settings


def folder_of(root: Path, **settings: Any) -> str:
    """A run with FILLED but for these settings; those that are None are missing."""
    values: dict[str, Any] = {}
    for key, value in (ALL | settings).items():
        section, _, leaf = key.rpartition(".")
        if key not in settings or value is not None:
            (values.setdefault(section, {}) if section else values)[leaf] = value
    root.mkdir()
    (root / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    (root / "rounds.csv").write_text("round,test_accuracy\n1,0.5\n", encoding="utf-8")
    return str(root)


@pytest.mark.parametrize(
    ("key", "value"),
    [("data.group", "patient"), ("model.trainable", "head"), ("fedprox.mu", 0.3)],
)
def test_compare_takes_a_missing_key_as_its_earlier_value(key, value, tmp_path):
    old = folder_of(tmp_path / "old", **{key: None})
    new, other = folder_of(tmp_path / "new"), folder_of(tmp_path / "other", **{key: value})
    compared = CliRunner().invoke(main, ["show", old, new])
    assert compared.output.splitlines()[1:2] == ["all are equal"]
    found = CliRunner().invoke(main, ["show", old, other, "--format", "json"])
    assert json.loads(found.stdout)["settings"] == {key: [ALL[key], value]}


def test_all_keys_that_compare_shows_are_there():
    for key in KEYS:
        given = without(key)
        filled = earlier.values(*earlier.used(given)) | given
        assert filled == ALL | dict.fromkeys({key} & set(BY_THE_DATA)), key


COLUMNS = {
    key: value
    for key, value in settings_of(FILLED).items()
    if value is not None and key not in ("data.partition", "train.lr", "server")
}
"""The columns of summary.csv that settings of a key fill, but for those of every version."""


def test_tables_take_a_missing_column_as_its_earlier_value(tmp_path):
    method = {"server": "fedadam", "train.lr": 0.01}
    runs = [run_of(tmp_path, "fedprox", seed, [0.5], **method) for seed in range(3)]
    others = {column: another(column) for column in COLUMNS}
    for run, settings in zip(runs[1:], (COLUMNS, others), strict=True):
        file = run / "summary.csv"
        pd.read_csv(file).assign(**settings).to_csv(file, index=False)
    (both,) = group(summaries(runs[:2]))
    assert len(both.runs) == 2
    table = summaries(runs)
    for column, value in COLUMNS.items():
        assert table[column].tolist() == [value, value, others[column]], column


@pytest.mark.parametrize("column", ["model.trainable", "train.optimizer", "fedprox.mu"])
def test_tables_keep_a_missing_column_apart_from_another_value(column, tmp_path):
    run_of(tmp_path, "fedprox", 0, [0.5], **{"train.lr": 0.01})
    run_of(tmp_path, "fedprox", 1, [0.5], **{"train.lr": 0.01, column: another(column)})
    with pytest.raises(AnalysisError, match=rf"differ in {column} \("):
        groups_of(tmp_path)


def test_a_method_has_no_options_of_other_methods_in_a_table(tmp_path):
    run_of(tmp_path, "fedavg", 0, [0.5], **{"train.lr": 0.01})
    run_of(tmp_path, "fedprox", 0, [0.5], **{"train.lr": 0.01, "fedprox.mu": 0.1})
    table = summaries([run.parent for run in tmp_path.rglob("summary.csv")])
    assert table.set_index("algorithm")["fedprox.mu"].isna().to_dict() == {
        "fedavg": True,
        "fedprox": False,
    }


def test_a_copy_of_a_runs_configuration_repeats_the_run(tmp_path):
    """`fedsim run --config` on the config.yaml of a run that did not know data.group."""
    file = tmp_path / "copy.yaml"
    shutil.copy(Path(folder_of(tmp_path / "old", **{"data.group": None}), "config.yaml"), file)
    assert load_config(file=file).data.group == "none"
    file.write_text("data: {num_clients: 3}\n", encoding="utf-8")
    assert load_config(file=file).data.group is None
