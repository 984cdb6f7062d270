"""The code of CONTRIBUTING.md, as a newcomer would copy it."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import fedsim
from fedsim.storage.run_dir import RunStore
from fedsim.testing import check_method, check_reader
from fedsim.training.rows import RoundLog
from tests.executors import check_executor
from tests.schedules import check_schedule
from tests.seams import make_executor

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCK = r"```python{}\n(.*?)```"
SECTIONS = PAGE.split("\n### ")[1:]
BLOCKS = {
    "own_" + section.partition("\n")[0].split()[-1]: block[1]
    for section in SECTIONS
    if (block := re.search(BLOCK.format(""), section, re.DOTALL))
}
TUTORIALS = {
    "own_optimiser": ("own-rule.md", "my_optimiser.py"),
    "own_set": ("own-data.md", "gratings.py"),
    "own_model": ("own-model.md", "my_models.py"),
}
"""Examples that the page links."""
for module, (page, title) in TUTORIALS.items():
    text = (ROOT / "docs" / "tutorials" / page).read_text()
    BLOCKS[module] = re.search(BLOCK.format(f' title="{title}"'), text, re.DOTALL)[1]


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    """Each block as a module outside the package, named by its section."""
    for name, block in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    for name in BLOCKS:
        sys.modules.pop(name, None)


def run(path: Path, callbacks=(), rounds: int = 2, **sections: object) -> dict[str, pd.DataFrame]:
    config = fedsim.RunConfig(
        **{"data": {"num_clients": 4}, "engine": {"kind": "serial"}} | sections,
        train={"rounds": rounds, "sample_rate": 1.0, "batch_size": 100},
    )
    store = fedsim.run(config, path, callbacks=list(callbacks))
    return {name: store.read(name) for name in ("rounds", "summary")}


def test_what_stands_in_a_file_is_defined_there():
    found = re.findall(r"`(\w+)` (?:of|in) `(fedsim/[\w/]+\.py)`", PAGE.replace("\n", " "))
    assert ("CATALOGUE", "fedsim/models/catalogue.py") in found
    for name, path in found:
        text = (ROOT / path).read_text()
        assert re.search(rf"^(?:def |class )?{name}\b", text, re.MULTILINE), f"{name} of {path}"


@pytest.mark.slow
def test_a_method_with_client_state(tmp_path):
    name = "own_method:build"
    check_method(name, cases=["builds and pickles", "another process", "blocks of clients"])
    off, on = (
        run(tmp_path / str(value), algorithm=name, **{name: {"strength": value}})
        for value in (0.0, 0.5)
    )
    assert on["summary"][f"{name}.strength"].item() == 0.5
    losses = [found["rounds"]["test_loss"].tolist() for found in (off, on)]
    assert losses[0][0] == losses[1][0]  # nothing is kept before the first round
    assert losses[0][1] != losses[1][1]


def test_the_page_is_short_and_has_every_example():
    assert len(PAGE.splitlines()) <= 320
    names = {"own_" + section.partition("\n")[0].split()[-1] for section in SECTIONS}
    assert {*BLOCKS} ^ names == {"own_optimiser", "own_executor"}  # the latter is in tests/seams.py


def test_a_server_rule():
    updates, sizes = np.random.default_rng(0).normal(size=(5, 100)), np.arange(1.0, 6.0)
    weights = sizes / np.linalg.norm(updates, axis=1) ** 0.5
    step = fedsim.aggregate(updates, sizes.astype(int), "own_rule:short", power=0.5)
    np.testing.assert_allclose(step, weights @ updates / weights.sum(), rtol=1e-9)


@pytest.mark.slow
def test_an_attack_and_a_compressor(tmp_path):
    attack = {"name": "own_attack:build", "clients": "0,1,2,3"}
    changes = {
        "fedavg": {},
        "later": {"attack": attack | {"start_round": 2}},
        "everybody": {"attack": attack, "own_attack:build": {"shift": 5}},
        "half": {"compress": {"name": "own_compressor:build"}},
    }
    tables = {n: run(tmp_path / n, model={"name": "mlp"}, **c) for n, c in changes.items()}
    rounds = {name: tables[name]["rounds"].iloc[0] for name in changes}
    assert rounds["later"]["test_loss"] == rounds["fedavg"]["test_loss"]
    assert rounds["everybody"]["update_norm"] == rounds["fedavg"]["update_norm"]
    assert rounds["everybody"]["test_loss"] > rounds["fedavg"]["test_loss"]
    assert tables["everybody"]["summary"]["own_attack:build.shift"].item() == 5
    assert 2 * rounds["half"]["uplink_bytes"] == rounds["fedavg"]["uplink_bytes"]
    code = RunStore(tmp_path / "everybody").read_environment()["code"]["attack"]
    assert list(code["files"]) == ["own_attack.py"]


@pytest.mark.slow
def test_a_server_optimiser_after_fedgh(tmp_path):
    name = "own_optimiser:build"
    found = run(tmp_path / "run", server=f"fedgh,{name}", **{name: {"most": 0.01}})
    assert (found["rounds"]["update_norm"] <= 0.01 * (1 + 1e-6)).all()


@pytest.mark.slow
def test_a_data_set_with_two_options(tmp_path, monkeypatch):
    from fedsim.data import registry

    own = importlib.import_module("own_set").DATASETS
    every = registry.catalogue()
    monkeypatch.setattr(registry, "catalogue", lambda: (*every, *own))
    options = {"width": 4, "noise": 10.0}
    check_reader("gratings", cases=["arrays and labels", "read again"], **options)
    written = run(tmp_path / "run", data={"name": "gratings", "num_clients": 4}, gratings=options)
    assert written["summary"][["gratings.width", "gratings.noise"]].iloc[0].tolist() == [4, 10.0]


@pytest.mark.slow
def test_a_schedule(tmp_path):
    check_schedule(importlib.import_module("own_schedule").Turns)
    config = fedsim.RunConfig(
        data={"num_clients": 4},
        engine={"kind": "serial"},
        train={"rounds": 2, "sample_rate": 0.5, "selection": "own_schedule:Turns"},
    )
    store = fedsim.run(config, tmp_path / "run")
    assert store.read("clients")["client_id"].tolist() == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_partition_with_an_option(tmp_path):
    name = "own_partition:halves"
    data = {"name": "digits", "num_clients": 4, "partition": name}
    summary = run(tmp_path / "run", data=data, **{name: {"share": 0.8}})["summary"]
    assert summary[[f"{name}.share", "data.partition"]].iloc[0].tolist() == [0.8, name]
    sizes = RunStore(tmp_path / "run").read("partition").groupby("client_id")["train_samples"].sum()
    assert sizes.tolist() == [575, 575, 144, 144]


def test_a_table():
    row = importlib.import_module("own_table").NormRow(round=1, norm=2.0)
    log = RoundLog(1)
    log.add(row)
    assert log.tables == {"norms": [row]}
    assert row.columns() == ("round", "norm")
    assert row.describe()["norm"] == "2-norm of the global model"


@pytest.mark.slow
def test_a_model(tmp_path):
    found = run(tmp_path / "run", model={"name": "own_model:group_cnn"})
    assert found["summary"]["model"].item() == "own_model:group_cnn"


@pytest.mark.slow
def test_a_metric_and_a_figure(tmp_path):
    (tmp_path / "classes.csv").write_text("round,label,recall\n1,0,0\n1,1,1\n2,0,0.9\n2,1,0.4\n")
    values = importlib.import_module("own_metric").g_mean(tmp_path)
    assert values.tolist() == pytest.approx([0, 0.6], rel=1e-9)
    grid = {"grid": {"algorithm": ["fedavg", "fedprox"]}, "data": {"num_clients": 4}}
    train = {"rounds": 2, "sample_rate": 1.0, "batch_size": 100}
    sweep = fedsim.sweep(grid | {"train": train, "engine": {"kind": "serial"}}, out=tmp_path / "s")
    figure = importlib.import_module("own_figure").draw(sweep.path)
    assert [len(line.get_xdata()) for line in figure.axes[0].lines] == [2, 2]
    plt.close(figure)


@pytest.mark.slow
def test_an_executor_keeps_the_contract():
    check_executor(make_executor, cases=["augmentation", "blocks of clients", "pooled data"])


@pytest.mark.slow
def test_a_callback_stops_a_run(tmp_path):
    callback = importlib.import_module("own_callback").Patience()
    callback.best = -1.0
    assert len(run(tmp_path / "run", [callback], rounds=5)["rounds"]) == 3


def test_every_file_that_the_page_names_is_there():
    for section in ("Where things are", "One round, from cohort to checkpoint"):
        text = PAGE.split(f"## {section}")[1].split("\n## ")[0]
        for name in re.findall(r"`((?:fedsim|docs|tests|storage)/[\w/.]+)`", text):
            place = ROOT / ("fedsim" if name.startswith("storage") else "") / name
            assert place.exists() or "METHOD" in name, name
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(p.parent.name for p in (ROOT / "fedsim").glob("*/__init__.py"))
    walk = PAGE.split("## One round, from cohort to checkpoint")[1].split("\n## ")[0]
    assert len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) == 10
    files = {n.removeprefix("fedsim/") for n in re.findall(r"`([\w/]+/\w+\.py)`", walk)}
    assert len(files) <= 12
