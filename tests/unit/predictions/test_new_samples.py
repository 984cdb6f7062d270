"""``fedsim predict --rows``: rows of tables without labels, by what a run keeps of its training."""

from __future__ import annotations

import csv
import importlib.util
import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

import fedsim
from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError

pytestmark = pytest.mark.integration
SITES = ("north", "south", "west")
READ = {"missing": "median", "categorical": "pain=none", "missing_categories": "own"}


def write_table(folder: Path, count: int = 180, **columns: str) -> Path:
    """Patients of three hospitals on different scales, with gaps in numbers and categories."""
    draw = np.random.default_rng(0)
    rows = []
    for i in range(count):
        ill, scale = i % 2, (1, 0.133, 10)[i % 3]
        pressure = "?" if i % 7 == 3 else round(draw.normal(125 + 25 * ill, 12) * scale, 2)
        pain = "" if i % 11 == 5 else draw.choice(["none", "mild", "severe"])
        rows.append([f"p{i}", pressure, round(draw.normal(50, 9)), pain, SITES[i % 3]])
        rows[-1].append(("healthy", "ill")[ill])
    file = folder / "patients.csv"
    with file.open("w", newline="") as stream:
        header = ["patient", "pressure", "age", "pain", "hospital", "outcome"]
        csv.writer(stream).writerows([header, *rows])
    return file


COLUMNS = {"target": "outcome", "site": "hospital", "patient": "patient"}


def run(
    file: Path, out: Path, method: str = "fedavg", columns: object = COLUMNS, **options: object
) -> Path:
    settings = {
        "data": {"name": "csv", "dir": str(file), "columns": columns},
        "csv": READ | options,
        "train": {"rounds": 2, "sample_rate": 1.0, "batch_size": 8, "lr": 0.1},
        "engine": {"kind": "serial"},
    }
    return fedsim.run(RunConfig(algorithm=method, **settings), out).path


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return write_table(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def runs(table, tmp_path_factory) -> dict[str, Path]:
    """Runs whose own table is not where it was."""
    folder = tmp_path_factory.mktemp("runs")
    gone = shutil.copy(table, folder / "gone.csv")
    methods = {"site": ("fedavg", {}), "local": ("local", {"scaling": "all"})}
    made = {name: run(gone, folder / name, m, **given) for name, (m, given) in methods.items()}
    Path(gone).unlink()
    return made


def unlabelled(table: Path, out: Path, kept=None, **changes: object) -> Path:
    """The rows ``kept`` of the table without its labels."""
    rows = pd.read_csv(table, dtype=str, keep_default_na=False).drop(columns="outcome")
    rows = rows if kept is None else rows.iloc[kept]
    rows.assign(**changes).to_csv(out, index=False)
    return out


def command(*words: object):
    return CliRunner().invoke(main, [*map(str, words)])


PROBABILITIES = {"healthy": "probability_0", "ill": "probability_1"}


@pytest.mark.parametrize("given", [{}, {"scaling": "all"}, {"scaling": "none", "missing": "mean"}])
def test_the_tables_own_test_rows_get_the_same_through_a_file(given, table, tmp_path):
    own = fedsim.predict(run(table, tmp_path / "run", **given), split="test")
    new = unlabelled(table, tmp_path / "new.csv", own["sample"])
    found = fedsim.predict(tmp_path / "run", rows=new)
    assert found["patient"].tolist() == [f"p{i}" for i in own["sample"]]
    assert found["prediction"].tolist() == own["prediction_name"].tolist()
    for name, column in PROBABILITIES.items():
        np.testing.assert_allclose(found[f"probability_{name}"], own[column], rtol=1e-6)


def test_labelled_rows_elsewhere_are_prepared_as_those_of_the_run(runs, table, tmp_path):
    """No row of the new table is for training, and one class is enough."""
    labelled = pd.read_csv(table, dtype=str, keep_default_na=False)
    labelled.loc[::3, "hospital"] = ""
    labelled[labelled["outcome"] == "ill"].to_csv(tmp_path / "new.csv", index=False)
    frame = fedsim.predict(runs["site"], data_dir=tmp_path / "new.csv")
    assert set(frame["label_name"]) == {"ill"}
    rows = fedsim.predict(runs["site"], rows=tmp_path / "new.csv")
    np.testing.assert_allclose(frame["probability_1"], rows["probability_ill"], rtol=1e-6)


def test_a_row_is_a_line_of_its_file(runs, table, tmp_path):
    """Extra columns are passed over, and columns may stand in another order."""
    a = unlabelled(table, tmp_path / "a.csv", [3, 5], note="x")
    b, out = tmp_path / "b.csv", tmp_path / "o"
    b.write_text("note,pain,pressure,patient,age,hospital\n\n,mild,9,q,60,west\n")
    done = command("predict", runs["site"], "--rows", a, b, "--out", out)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("3 rows: ")
    frame = pd.read_csv(out)
    classes = ["probability_healthy", "probability_ill"]
    assert frame.columns.tolist() == ["file", "row", "site", "patient", "prediction", *classes]
    assert frame["row"].tolist() == [2, 3, 3]
    assert [Path(file).name for file in frame["file"]] == ["a.csv", "a.csv", "b.csv"]
    assert frame["patient"].tolist() == ["p3", "p5", "q"]
    np.testing.assert_allclose(frame[classes].sum(axis=1), 1, atol=1e-12)


def test_the_site_is_that_of_the_row_or_of_the_client(runs, table, tmp_path):
    kept = [0, 3, 9]  # of north
    named = unlabelled(table, tmp_path / "named.csv", kept)
    bare = tmp_path / "bare.csv"
    pd.read_csv(named, dtype=str).drop(columns="hospital").to_csv(bare, index=False)
    with pytest.raises(DataError, match=r"scales the rows of each site .* a column 'hospital', or"):
        fedsim.predict(runs["site"], rows=bare)
    one = fedsim.predict(runs["site"], rows=named)
    two = fedsim.predict(runs["site"], rows=bare, client="north")
    pd.testing.assert_frame_equal(one[two.columns], two)
    nowhere = unlabelled(table, tmp_path / "none.csv", kept, hospital="")
    other = fedsim.predict(runs["site"], rows=nowhere)
    assert not np.allclose(one["probability_ill"], other["probability_ill"])
    alone = fedsim.predict(runs["local"], rows=bare, client="south")
    assert alone["row"].tolist() == [2, 3, 4]


def test_a_file_of_a_known_name_is_that_hospital(table, tmp_path):
    rows = pd.read_csv(table, dtype=str, keep_default_na=False)
    for site, own in rows.groupby("hospital"):
        (tmp_path / "tables").mkdir(exist_ok=True)
        own.drop(columns="hospital").to_csv(tmp_path / "tables" / f"{site}.csv", index=False)
    run(tmp_path / "tables", tmp_path / "run", columns={"target": "outcome"})
    own = fedsim.predict(tmp_path / "run", split="all")
    found = fedsim.predict(tmp_path / "run", rows=tmp_path / "tables")
    np.testing.assert_allclose(found["probability_ill"], own["probability_1"], rtol=1e-6)
    assert found["site"].unique().tolist() == sorted(SITES)
    assert (
        found["patient"].tolist() == rows.sort_values("hospital", kind="stable")["patient"].tolist()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hospital": "nroth"}, "row 2, column hospital: 'nroth' is no site of the run (did you"),
        ({"pain": "dull"}, "column pain: 'dull' is no category that the model knows; it knows"),
        ({"age": "old"}, "row 2, column age: 'old' is no finite number"),
        ({"age": None}, "needed are the columns pressure, age, pain"),
    ],
)
def test_rows_that_do_not_fit_are_named_and_nothing_is_written(
    changes, message, runs, table, tmp_path
):
    new = unlabelled(table, tmp_path / "new.csv", [3, 5])
    rows = pd.read_csv(new, dtype=str, keep_default_na=False).assign(**changes)
    rows.dropna(axis=1).to_csv(new, index=False)
    done = command("predict", runs["site"], "--rows", new, "--out", tmp_path / "o.csv")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{new}" in done.stderr
    assert message in done.stderr
    assert not (tmp_path / "o.csv").exists()


def test_a_gap_needs_what_the_run_does_with_gaps(table, tmp_path):
    whole = pd.read_csv(table, dtype=str, keep_default_na=False)
    whole = whole[(whole["pressure"] != "?") & (whole["pain"] != "")]
    whole.to_csv(tmp_path / "t.csv", index=False)
    given = {"missing_categories": "refuse"}
    refused, left_out = (
        run(tmp_path / "t.csv", tmp_path / how, missing=how, **given) for how in ("refuse", "drop")
    )
    new = unlabelled(table, tmp_path / "new.csv", [0, 3])
    with pytest.raises(DataError, match="row 3, column pressure: the value is missing, and the mo"):
        fedsim.predict(refused, rows=new)
    assert fedsim.predict(left_out, rows=new)["row"].tolist() == [2]
    with pytest.raises(DataError, match=r"row 2, column pain: the category is missing \(''\)"):
        fedsim.predict(refused, rows=unlabelled(table, new, [0], pain=""))


def test_runs_without_what_rows_need_are_refused(runs, table, tmp_path):
    new = unlabelled(table, tmp_path / "new.csv", [0])
    old = shutil.copytree(runs["site"], tmp_path / "old")
    (old / "preprocessing.json").unlink()
    with pytest.raises(ConfigError, match=r"has no preprocessing\.json: "):
        fedsim.predict(old, rows=new)
    with pytest.raises(ConfigError, match="each client has a model of its own; choose one by"):
        fedsim.predict(runs["local"], rows=new)
    with pytest.raises(ConfigError, match="--rows does not go with --split or --data-dir"):
        fedsim.predict(runs["site"], rows=new, split="test")


def test_predicting_for_the_run_itself_adds_nothing_to_an_earlier_one(table, tmp_path):
    path = run(table, tmp_path / "run")
    wanted = fedsim.predict(path)
    (path / "preprocessing.json").unlink()
    pd.testing.assert_frame_equal(fedsim.predict(path), wanted)
    assert not (path / "preprocessing.json").exists()


@pytest.mark.parametrize("form", ["torch", "onnx"])
def test_the_exported_files_say_what_predict_says(form, runs, table, tmp_path, monkeypatch):
    """By the two files beside the network, neither of which needs fedsim."""
    if form == "onnx" and not importlib.util.find_spec("onnxruntime"):
        pytest.skip("the extra 'export' is not installed")
    done = command("export", runs["site"], "--to", form, "--out", tmp_path / "model")
    assert done.exit_code == 0, done.output
    new = unlabelled(table, tmp_path / "new.csv", range(3, 60))
    script = runpy.run_path(str(tmp_path / "model" / "preprocess.py"))
    preprocessing = json.loads((tmp_path / "model" / "preprocessing.json").read_text())
    with new.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    x = script["features"](rows, preprocessing, [row["hospital"] for row in rows])
    if form == "torch":
        network = torch.export.load(str(tmp_path / "model" / "model.pt2")).module()
        logits = network(torch.from_numpy(x)).detach().numpy()
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(tmp_path / "model" / "model.onnx"))
        (logits,) = session.run(None, {"features": x})
    found = fedsim.predict(runs["site"], rows=new)
    chances = torch.softmax(torch.from_numpy(logits).double(), 1).numpy()
    columns = [f"probability_{name}" for name in preprocessing["classes"]]
    np.testing.assert_allclose(chances, found[columns], atol=1e-6)
    source = (tmp_path / "model" / "preprocess.py").read_text()
    assert "fedsim." not in source.partition('"""')[2].partition('"""')[2]
