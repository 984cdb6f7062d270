"""``fedsim predict RUN --images``: new images without labels."""

from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from PIL import Image

import fedsim
from fedsim.cli import main
from fedsim.core.errors import ConfigError
from tests.decomposing import config
from tests.unit.predictions.test_predict import CLASSES, on_images, write_images

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of FedAvg and one of FedBN on the images of three hospitals, which are then gone."""
    folder = tmp_path_factory.mktemp("runs")
    images = write_images(folder / "scans")
    for method in ("fedavg", "fedbn"):
        fedsim.run(on_images(images, method), folder / method)
    images.rename(folder / "moved")
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


def predict(run, *args):
    return CliRunner().invoke(main, ["predict", str(run), *map(str, args)])


@pytest.mark.parametrize(("method", "client"), [("fedavg", ()), ("fedbn", ("--client", "1"))])
def test_they_get_what_predict_says_of_the_same_images_with_labels(
    method, client, runs, scans, tmp_path
):
    out = tmp_path / "new.csv"
    done = predict(runs / method, *client, "--images", scans, "--out", out)
    assert done.exit_code == 0, done.output
    whose = "client 1's model" if client else "the global model"
    assert done.stdout.startswith(f"4 images, predicted by {whose}: ")
    assert "accuracy" not in done.output
    with out.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["file", "prediction", *(f"probability_{name}" for name in CLASSES)]
    names = ["=d.bmp", "b.png", "more/c.tif", "\u00e4 1.JPG"]
    assert [row[0] for row in rows[1:]] == [str(scans / name) for name in names]

    (scans / "classes.txt").write_text("\n".join(CLASSES))
    (scans / "labels.csv").write_text("filename,label\n" + "".join(f"{n},0\n" for n in names))
    split = {} if client else {"split": "all"}
    known = fedsim.predict(
        runs / method, data_dir=scans, client=int(client[1]) if client else None, **split
    )
    assert known["prediction_name"].tolist() == [row[1] for row in rows[1:]]
    expected = known[[f"probability_{k}" for k in range(3)]].to_numpy()
    np.testing.assert_allclose([list(map(float, row[2:])) for row in rows[1:]], expected, rtol=1e-5)


def test_what_cannot_be_predicted_is_refused(runs, scans, tmp_path):
    out = ("--out", tmp_path / "o.csv")
    run = runs / "fedavg"
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    for name in "ab":
        (tmp_path / "damaged" / f"{name}.png").write_bytes(b"no image")
    (tmp_path / "damaged" / "c.png").write_bytes((scans / "b.png").read_bytes())
    hospitals = "0 to 2 (0 hospital a, 1 hospital b, 2 hospital c)"
    for args, message in (
        ((run, "--images", tmp_path / "no", *out), "no: there is no such file or folder"),
        ((run, "--images", tmp_path / "empty", *out), "empty: no image in this folder (.png, .jpg"),
        ((run, "--images", tmp_path / "damaged", *out), "error: 2 of 3 images: "),
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
            (runs / "fedbn", "--images", scans, *out),
            f"fedbn each client has a model of its own; choose one by --client K, {hospitals}",
        ),
    ):
        done = predict(*args)
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
    done = predict(tmp_path / "run", *images, "--out", tmp_path / "o.csv")
    assert done.exit_code == 0, done.output
    found = pd.read_csv(tmp_path / "o.csv").iloc[:, 2:].to_numpy()
    np.testing.assert_array_equal(found[0], found[1])


def test_python_predicts_images_too(runs, scans, tmp_path):
    out = tmp_path / "new.csv"
    assert predict(runs / "fedavg", "--images", scans, "--out", out).exit_code == 0
    found, written = fedsim.predict(runs / "fedavg", images=scans), pd.read_csv(out)
    assert list(found) == list(written)
    assert found["prediction"].tolist() == written["prediction"].tolist()
    np.testing.assert_allclose(found.iloc[:, 2:], written.iloc[:, 2:], rtol=1e-6)
    files = sorted(scans.glob("*.png"))
    assert fedsim.predict(runs / "fedavg", images=files)["file"].tolist() == [*map(str, files)]
    with pytest.raises(ConfigError, match="images: does not go with split or data_dir"):
        fedsim.predict(runs / "fedavg", images=scans, split="test")
