"""``fedsim predict``: what is counted from the predictions is what the tables of the run say."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from PIL import Image

import fedsim
from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from tests.decomposing import config, digits

pytestmark = pytest.mark.integration

CLASSES = ("=healthy, or so", 'grade "1"', "-severe;\u00fc")
"""Names that CSV files and spreadsheets could take for something else."""
SIZE = 12


def write_images(folder, count=135, sites=3, classes=CLASSES, size=SIZE, seed=0):
    """A folder of images of patients at some sites; each class has another brightness."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    rows = [("filename", "label", "site", "patient")]
    for i in range(count):
        label, site = i % len(classes), i // len(classes) % sites
        pixels = rng.integers(0, 120, (size, size, 3)) + 45 * label
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "images" / f"{i}.png")
        rows.append((f"{i}.png", label, f"hospital {'abc'[site]}", f"{site}-{i // 18}"))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    (folder / "classes.txt").write_text("\n".join(classes) + "\n")
    return folder


def on_images(folder, method, **changes):
    """Three hospitals, of which two take part in each of two rounds; each one owns test images."""
    sections = {
        "data": {"name": "folder", "dir": str(folder), "partition": "by_site", "image_size": SIZE},
        "model": {"name": "cnn"},
        "train": {"rounds": 2, "sample_rate": 0.7, "batch_size": 8, "lr": 0.05},
        "evaluation": {"batch_size": 16, "clients_every": 1},
        "engine": {"kind": "serial"},
    }
    for key, value in changes.items():
        sections[key] = sections[key] | value if key in sections else value
    return RunConfig(algorithm=method, **sections)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("data") / "scans")


@pytest.fixture(scope="module")
def runs(images, tmp_path_factory):
    """A run of each of some methods on the hospitals' images."""
    folder = tmp_path_factory.mktemp("runs")
    return {m: fedsim.run(on_images(images, m), folder / m) for m in ("fedavg", "fedbn", "fedpac")}


@pytest.fixture(scope="module")
def common(tmp_path_factory):
    """A run of FedBN with a common test part and a common validation part."""
    data = {"val_fraction": 0.2, "client_val_fraction": 0.0, "client_test_fraction": 0.0}
    settings = config(
        "fedbn", data=data | {"name": "digits"}, evaluation={"decompose_every": 0} | NO_MATRIX
    )
    return fedsim.run(settings, tmp_path_factory.mktemp("common") / "run")


NO_MATRIX = {"loss_matrix": False}


def scores(frame):
    """Samples and accuracy of each client in predictions."""
    right = frame["label"] == frame["prediction"]
    return right.groupby(frame["client_id"]).agg(["size", "mean"])


def check_evaluations(store, frame, split):
    """The predictions give the rows of evaluations.csv after the last round, exactly."""
    table = store.read("evaluations")
    table = table[(table["round"] == 2) & (table["split"] == split) & table["group"].isna()]
    found = scores(frame)
    assert found.index.tolist() == table["client_id"].tolist()
    assert found["size"].tolist() == table["num_samples"].tolist()
    assert found["mean"].tolist() == table["accuracy"].tolist()


@pytest.mark.parametrize("split", ["test", "own_test", "own_train"])
@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedpac"])
def test_each_hospitals_model_on_its_own_patients_is_what_evaluations_csv_says(method, split, runs):
    store = runs[method]
    frame = fedsim.predict(store.path, split=split)
    if method != "fedavg" or split != "test":  # where test samples are pooled it has no such rows
        check_evaluations(store, frame, split)
    each = [fedsim.predict(store.path, client=c, split=split) for c in range(3)]
    pd.testing.assert_frame_equal(pd.concat(each, ignore_index=True), frame)
    if split == "test":
        right = (frame["label"] == frame["prediction"]).mean()
        assert right == store.rounds["test_accuracy"].iloc[-1]


@pytest.mark.parametrize("split", ["test", "val"])
def test_on_a_common_part_every_client_has_a_say(split, common):
    frame = fedsim.predict(common.path, split=split)
    check_evaluations(common, frame, split)
    assert frame["client_id"].unique().tolist() == list(range(6)), "also those that never trained"
    right = (frame["label"] == frame["prediction"]).mean()
    assert right == pytest.approx(common.rounds[f"{split}_accuracy"].iloc[-1], abs=1e-12)
    one = fedsim.predict(common.path, client=4, split=split)
    pd.testing.assert_frame_equal(one, frame[frame["client_id"] == 4].reset_index(drop=True))


def command(*arguments):
    return CliRunner().invoke(main, ["predict", *map(str, arguments)])


def test_the_file_is_the_same_every_time_and_reads_back(runs, tmp_path):
    store = runs["fedpac"]
    files = [tmp_path / name for name in ("one.csv", "two.csv")]
    before = {p: p.stat().st_mtime_ns for p in store.path.rglob("*")}
    for file in files:
        done = command(store.path, "--out", file)
        assert done.exit_code == 0, done.output
    assert {p: p.stat().st_mtime_ns for p in store.path.rglob("*")} == before
    assert files[0].read_bytes() == files[1].read_bytes()
    frame = fedsim.predict(store.path)
    found = pd.read_csv(files[0], keep_default_na=False, na_values=[""])
    columns = ["sample", "client_id", "label", "prediction"]
    columns += [f"probability_{k}" for k in range(3)]
    assert found.columns.tolist() == [*columns, "label_name", "prediction_name", "file"]
    assert (found[columns].to_numpy() == frame[columns].to_numpy(dtype=float)).all()
    names = [CLASSES[label] for label in found["label"]]
    assert found["label_name"].tolist() == names
    assert found["label_name"][found["label"] == 0].tolist()[0] == "=healthy, or so"
    assert found["file"].tolist() == [f"images/{i}.png" for i in found["sample"]]
    accuracy = store.rounds["test_accuracy"].iloc[-1]
    assert done.output.splitlines() == [
        f"{len(frame)} predictions of each client's own model: accuracy {accuracy:.4f}",
        f"file  {files[1]}",
    ]


def test_new_images_are_all_predicted(runs, images, tmp_path):
    """Also a single one, whose classes the run knows from classes.txt."""
    store = runs["fedbn"]
    own = fedsim.predict(store.path, client=1, split="all")
    same = fedsim.predict(store.path, client=1, data_dir=images)
    pd.testing.assert_frame_equal(same, own)
    new = write_images(tmp_path / "new", count=1, seed=7)
    frame = fedsim.predict(store.path, data_dir=new)
    assert frame["client_id"].tolist() == [0, 1, 2]
    assert frame["sample"].tolist() == [0, 0, 0]
    frame = fedsim.predict(runs["fedavg"].path, data_dir=new)
    assert frame["client_id"].isna().all()
    assert len(frame) == 1


@pytest.mark.slow
def test_held_out_clients_predict_only_where_they_are_named(images, tmp_path):
    settings = on_images(images, "fedbn", data={"heldout_clients": 1}, train={"rounds": 1})
    store = fedsim.run(settings, tmp_path / "run")
    (out,) = json.loads((store.path / "env.json").read_text())["heldout_clients"]
    new = write_images(tmp_path / "new", count=1, seed=7)
    for given in ({}, {"data_dir": new}):
        others = fedsim.predict(store.path, split="all", **given)["client_id"].unique().tolist()
        assert others == [c for c in range(3) if c != out]
        named = fedsim.predict(store.path, client=out, split="all", **given)
        assert named["client_id"].unique().tolist() == [out]


@pytest.mark.parametrize("column", ["label", "filename"])
def test_data_that_changed_are_not_those_of_the_run(column, runs, images, tmp_path):
    """Though every client has as many samples as before."""
    changed = shutil.copytree(images, tmp_path / "changed")
    table = pd.read_csv(changed / "labels.csv")
    first, second = 0, table.index[table["label"] == 1][0]
    table.loc[[first, second], column] = table.loc[[second, first], column].to_numpy()
    table.to_csv(changed / "labels.csv", index=False)
    with pytest.raises(DataError, match=r"split\.csv: .* are not the data of the run"):
        fedsim.predict(runs["fedbn"].path, split="own_train", data_dir=changed)


@pytest.mark.slow
def test_data_of_another_kind_are_refused(runs, tmp_path):
    new = write_images(tmp_path / "new", count=4, classes=("a", "b"))
    with pytest.raises(DataError, match=r"classes are a, b, those of the run =healthy, or so, "):
        fedsim.predict(runs["fedavg"].path, data_dir=new)
    settings = on_images(new, "fedavg", data={"name": f"{__name__}:coloured"})
    store = fedsim.run(settings, tmp_path / "run")
    file = store.path / "config.yaml"
    file.write_text(file.read_text().replace(":coloured", ":grey"))
    with pytest.raises(DataError, match="in_channels 1, the model of the run takes 3"):
        fedsim.predict(store.path, data_dir=new)


def of_channels(folder, channels):
    data = digits(folder)
    pipeline = replace(data.pipeline, mean=(0.5,) * channels, std=(0.5,) * channels)
    x = data.x.repeat(channels, axis=1)
    return replace(data, x=x, pipeline=pipeline, site=np.arange(300) % 3, site_names=tuple("abc"))


def coloured(folder):
    return of_channels(folder, 3)


def grey(folder):
    return of_channels(folder, 1)


def brighter(folder, image_size=None):
    """A loader whose constants depend on the images that it reads."""
    data = digits(folder)
    share = 0.5 if folder is None else 0.4
    return replace(data, pipeline=replace(data.pipeline, mean=(share,)))


def test_new_images_are_normalised_as_those_of_the_run(tmp_path):
    settings = config("fedavg", data={"name": f"{__name__}:brighter"})
    store = fedsim.run(settings, tmp_path / "run")
    wanted = fedsim.predict(store.path, split="all")
    pd.testing.assert_frame_equal(fedsim.predict(store.path, data_dir=tmp_path), wanted)


@pytest.mark.parametrize(
    ("line", "edited", "message"),
    [
        ("  norm: batch", "  norm: group", "(model.norm): 'group' given, but the model of the run"),
        ("  name: cnn", "  name: mlp", "(model.name): 'mlp' given, but the model of the run is of"),
        ("algorithm: fedavg", "algorithm: fedbn", "(algorithm): 'fedbn' given, but the model"),
        ("  projection: 0", "  projection: 4", "(model.projection): 4 given, but the model"),
        ("  trainable: all", "  trainable: head", "(model.trainable): 'head' given, but the"),
    ],
)
def test_another_network_in_config_yaml_is_refused(line, edited, message, runs, tmp_path):
    run = shutil.copytree(runs["fedavg"].path, tmp_path / "run")
    file = run / "config.yaml"
    assert f"{line}\n" in file.read_text()
    file.write_text(file.read_text().replace(f"{line}\n", f"{edited}\n"))
    for use in (fedsim.predict, fedsim.load_model):
        with pytest.raises(ConfigError) as refused:
            use(run)
        assert str(refused.value).startswith(f"{file} {message}")
        assert str(refused.value).endswith("as model.safetensors says; put that back")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--client", 3], "--client 3: the run has the clients 0 to 2"),
        (["--client", -1], "--client -1: the run has the clients 0 to 2"),
        (["--split", "own_val"], "--split own_val: the clients of this run own no val samples"),
        (["--split", "val"], "--split val: folder has no such part in this run"),
        (["--split", "tset"], "--split tset: there is no such split (did you mean 'test'?); "),
        (["--data-dir", "nowhere"], "data.dir nowhere: there is no such folder"),
        (["--data-dir", "/no/where"], "/no/where: there is no such folder"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(given, message, runs, tmp_path):
    done = command(runs["fedbn"].path, *given, "--out", tmp_path / "p.csv")
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
