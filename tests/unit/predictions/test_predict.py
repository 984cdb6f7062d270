"""``fedsim predict``: what is counted from the predictions is what the tables of the run say."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from PIL import Image

import fedsim
from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.storage.run_dir import RunStore
from tests.decomposing import config, digits
from tests.texts import MODELS
from tests.unit.data.conftest import write_users

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
    result = scores(frame)
    assert result.index.tolist() == table["client_id"].tolist()
    assert result["size"].tolist() == table["num_samples"].tolist()
    assert result["mean"].tolist() == table["accuracy"].tolist()


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
    result = pd.read_csv(files[0], keep_default_na=False, na_values=[""])
    columns = ["sample", "client_id", "label", "prediction"]
    columns += [f"probability_{k}" for k in range(3)]
    assert result.columns.tolist() == [*columns, "label_name", "prediction_name", "file"]
    assert (result[columns].to_numpy() == frame[columns].to_numpy(dtype=float)).all()
    names = [CLASSES[label] for label in result["label"]]
    assert result["label_name"].tolist() == names
    assert result["label_name"][result["label"] == 0].tolist()[0] == "=healthy, or so"
    assert result["file"].tolist() == [f"images/{i}.png" for i in result["sample"]]
    accuracy = store.rounds["test_accuracy"].iloc[-1]
    assert done.output.splitlines() == [
        f"{len(frame)} predictions: accuracy {accuracy:.4f}",
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


# new texts, and classes by their names


WORDS = ("good", "bad", "fine", "dull", "warm", "cold", "rain")


def tweets(folder: Path, users: dict[str, list[str]]) -> Path:
    """A folder of sent140; positive is what has an even number of letters."""
    result = {
        user: ([["", "", "", "", text] for text in texts], [len(text) % 2 for text in texts])
        for user, texts in users.items()
    }
    write_users(folder / "train", "a.json", result)
    write_users(folder / "test", "a.json", {u: (x[:1], y[:1]) for u, (x, y) in result.items()})
    return folder


def on_texts(folder: Path, data: str = "sent140", **sections: Any) -> RunConfig:
    return RunConfig(
        algorithm="fedavg",
        data={"name": data, "dir": str(folder), "min_samples": 1, "partition": "natural"},
        model={"name": MODELS["moods"]},
        train={"rounds": 1, "sample_rate": 1.0, "batch_size": 4, "lr": 0.1},
        evaluation={"batch_size": 1},  # the last bits of a row depend on the others in its batch
        engine={"kind": "serial"},
        **sections,
    )


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    draw = np.random.default_rng(0)
    return {f"u{i}": [" ".join(draw.choice(WORDS, 4)) for _ in range(6)] for i in range(3)}


@pytest.fixture(scope="module")
def moods(texts: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    folder = tmp_path_factory.mktemp("texts")
    return fedsim.run(on_texts(tweets(folder / "data", texts)), folder / "run")


def chances(frame: pd.DataFrame) -> list[list[float]]:
    return frame[["probability_0", "probability_1"]].to_numpy().tolist()


def test_new_texts_are_read_with_the_vocabulary_of_the_run(moods, texts, tmp_path):
    """Though the same words would have other numbers in these; unknown words are one."""
    own = chances(fedsim.predict(moods.path, split="all"))[: 3 * 6]
    more = {"u8": ["snow snow snow snow", *reversed(WORDS)], "u9": ["wind wind wind wind"]}
    new = tweets(tmp_path / "new", {"u1": texts["u1"]} | more)
    result = chances(fedsim.predict(moods.path, data_dir=new))
    assert result[:6] == own[6:12]
    assert result[6] == result[-1]


def test_texts_without_labels_are_rows_of_a_table(moods, texts, tmp_path):
    own = chances(fedsim.predict(moods.path, split="all"))[6:12]
    pd.DataFrame({"text": texts["u1"], "n": 1}).to_csv(tmp_path / "new.csv", index=False)
    frame = fedsim.predict(moods.path, rows=tmp_path / "new.csv")
    assert frame.columns.tolist()[:2] == ["row", "prediction"]
    assert frame.iloc[:, 2:].to_numpy().tolist() == own


def test_texts_with_other_words_are_not_the_data_of_the_run(texts, tmp_path):
    """Though every client has as many samples with the same labels."""
    store = fedsim.run(on_texts(tweets(tmp_path / "data", texts)), tmp_path / "run")
    other = {user: [text.replace("rain", "snow") for text in own] for user, own in texts.items()}
    tweets(tmp_path / "data", other)
    with pytest.raises(DataError, match=r"vocabulary\.json: the data now give another vocabulary"):
        fedsim.predict(store.path)


@pytest.mark.parametrize("content", ["", '{"a": 1}'])
def test_a_damaged_vocabulary_is_refused(content, moods, texts, tmp_path):
    broken = shutil.copytree(moods.path, tmp_path / "run")
    (broken / "vocabulary.json").write_text(content)
    new = tweets(tmp_path / "new", {"u1": texts["u1"]})
    with pytest.raises(ConfigError, match=r"vocabulary\.json: damaged: "):
        fedsim.predict(broken, data_dir=new)


def test_classes_are_found_by_name(runs, tmp_path):
    """In another order; one that the run does not know is refused."""
    order, out = (CLASSES[2], CLASSES[0], CLASSES[1]), tmp_path / "p.csv"
    new = write_images(tmp_path / "new", count=6, classes=order)
    done = command(runs["fedavg"].path, "--data-dir", new, "--out", out)
    assert done.exit_code == 0, done.output
    assert "the classes have the numbers of the run, by name: " in done.output
    frame = pd.read_csv(out)
    assert frame["label_name"].tolist() == [*order] * 2
    assert frame["label"].tolist() == [2, 0, 1] * 2
    same = fedsim.predict(runs["fedavg"].path, data_dir=write_images(tmp_path / "same", count=6))
    assert frame["prediction_name"].tolist() == same["prediction_name"].tolist()

    out.unlink()
    (new / "classes.txt").write_text("\n".join((order[0], "other", order[2])))
    done = command(runs["fedavg"].path, "--data-dir", new, "--out", out)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "unknown to the run: other (a folder of images can list" in done.stderr
    assert not out.exists()


# new images without labels


@pytest.fixture(scope="module")
def alone(runs, tmp_path_factory):
    """Copies of two runs that cannot find their images."""
    folder = tmp_path_factory.mktemp("alone")
    for method in ("fedavg", "fedbn"):
        run = shutil.copytree(runs[method].path, folder / method)
        config = run / "config.yaml"
        config.write_text(re.sub(r"\n  dir: .*", "\n  dir: nowhere", config.read_text()))
    return folder


@pytest.fixture
def scans(tmp_path):
    """New images: another size and shape, grey, capitals and blanks in names, a folder in it."""
    folder = tmp_path / "new scans"
    (folder / "more").mkdir(parents=True)
    rng = np.random.default_rng(1)
    for i, name in enumerate(("\u00e4 1.JPG", "b.png", "more/c.tif", "=d.bmp")):
        pixels = rng.integers(0, 255, (20 + 3 * i, 31, 3)).astype(np.uint8)
        Image.fromarray(pixels if i != 1 else pixels[..., 0]).save(folder / name)
    (folder / "notes.txt").write_text("no image")
    return folder


@pytest.mark.parametrize(("method", "client"), [("fedavg", ()), ("fedbn", ("--client", "1"))])
def test_they_get_what_predict_says_of_the_same_images_with_labels(
    method, client, alone, runs, scans, tmp_path
):
    out = tmp_path / "new.csv"
    done = command(alone / method, *client, "--images", scans, "--out", out)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("4 images: ")
    assert "accuracy" not in done.output
    with out.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["file", "prediction", *(f"probability_{name}" for name in CLASSES)]
    names = ["=d.bmp", "b.png", "more/c.tif", "\u00e4 1.JPG"]
    assert [row[0] for row in rows[1:]] == [str(scans / name) for name in names]

    (scans / "classes.txt").write_text("\n".join(CLASSES))
    (scans / "labels.csv").write_text("filename,label\n" + "".join(f"{n},0\n" for n in names))
    split = {} if client else {"split": "all"}
    reference = fedsim.predict(
        runs[method].path, data_dir=scans, client=int(client[1]) if client else None, **split
    )
    assert reference["prediction_name"].tolist() == [row[1] for row in rows[1:]]
    expected = reference[[f"probability_{k}" for k in range(3)]].to_numpy()
    np.testing.assert_allclose([list(map(float, row[2:])) for row in rows[1:]], expected, rtol=1e-5)


def test_what_cannot_be_predicted_is_refused(alone, scans, tmp_path):
    out = ("--out", tmp_path / "o.csv")
    run = alone / "fedavg"
    (tmp_path / "empty").mkdir()
    for args, message in (
        ((run, "--images", tmp_path / "no", *out), "no: there is no such file or folder"),
        ((run, "--images", tmp_path / "empty", *out), "empty: no image in this folder (.png, .jpg"),
        ((run, "--images", scans / "notes.txt", *out), "notes.txt: truncated or not an image"),
        ((run, "--images", scans, "--split", "test", *out), "--images does not go with --split"),
        ((run, scans, *out), "files of images stand after --images"),
        ((run, "--images", scans, "--client", "3", *out), "--client 3: the run has the clients 0"),
        (
            (run, "--images", scans, "--client", "hospital bb", *out),
            "--client hospital bb: the clients of the run, 0 to 2, have other names (did you mean "
            "'hospital b'?)",
        ),
        ((tmp_path, "--images", scans, *out), "holds no run (no config.yaml)"),
        (
            (alone / "fedbn", "--images", scans, *out),
            "fedbn each client has a model of its own; choose one by --client K, 0 to 2",
        ),
    ):
        done = command(*args)
        assert (done.exit_code in (1, 2), done.stdout) == (True, ""), done.output
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "o.csv").exists()


def test_a_network_for_grey_images_takes_the_luma_of_colours(tmp_path):
    fedsim.run(config(evaluation={"decompose_every": 0, "loss_matrix": False}), tmp_path / "run")
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3)).astype(np.uint8)
    luma = np.rint(pixels.astype(np.float64) @ [0.299, 0.587, 0.114]).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "colour.png")
    Image.fromarray(luma).save(tmp_path / "grey.png")
    images = ("--images", tmp_path / "colour.png", tmp_path / "grey.png")
    done = command(tmp_path / "run", *images, "--out", tmp_path / "o.csv")
    assert done.exit_code == 0, done.output
    result = pd.read_csv(tmp_path / "o.csv").iloc[:, 2:].to_numpy()
    np.testing.assert_array_equal(result[0], result[1])


def test_python_predicts_images_too(alone, scans):
    files = sorted(scans.glob("*.png"))
    assert fedsim.predict(alone / "fedavg", images=files)["file"].tolist() == [*map(str, files)]
    with pytest.raises(ConfigError, match="--images does not go with --split or --data-dir"):
        fedsim.predict(alone / "fedavg", images=scans, split="test")
