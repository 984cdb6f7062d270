"""``fedsim export``: what it writes runs without fedsim, and says what ``fedsim predict`` says."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from PIL import Image

import fedsim
from fedsim.cli import main
from fedsim.core.tables import csv_plain
from fedsim.testing import rounds
from tests.commands import clean_environment
from tests.decomposing import config
from tests.unit.training.test_predict import on_images, write_images

pytestmark = pytest.mark.integration


def invoke(*args):
    return CliRunner().invoke(main, list(map(str, args)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run on colour images with BatchNorm of each hospital's own, and one on grey images."""
    folder = tmp_path_factory.mktemp("runs")
    fedsim.run(on_images(write_images(folder / "scans"), "fedbn"), folder / "colour")
    fedsim.run(config(evaluation={"decompose_every": 0, "loss_matrix": False}), folder / "grey")
    return folder


@pytest.fixture
def scans(tmp_path):
    """Images of other sizes than the run's, some turned by EXIF, some grey."""
    folder = tmp_path / "scans"
    folder.mkdir()
    rng = np.random.default_rng(3)
    turned = Image.Exif()
    turned[0x0112] = 6
    for i, size in enumerate([(8, 8), (40, 31), (9, 25), (64, 17)]):
        pixels = rng.integers(0, 255, (*size, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png", exif=turned if i % 2 else None)
    Image.fromarray(pixels[..., 0]).save(folder / "grey.png")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("form", ["torch", "onnx"])
@pytest.mark.parametrize(("run", "client"), [("colour", ("--client", 2)), ("grey", ())])
def test_its_script_says_what_predict_says(run, client, form, runs, scans, tmp_path):
    if form == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package, reason="the extra 'export' is not installed")
    out = tmp_path / "model"
    done = invoke("export", runs / run, *client, "--to", form, "--out", out)
    assert done.exit_code == 0, done.output
    network = {"torch": "model.pt2", "onnx": "model.onnx"}[form]
    names = sorted(file.name for file in out.iterdir())
    assert names == sorted([network, "predict.py", "preprocessing.json"])
    files = sorted(map(str, scans.iterdir()))
    code = "import runpy, sys; sys.modules['fedsim'] = None; del sys.argv[0]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"

    def script(*images: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, out / "predict.py", *images],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    Image.fromarray(np.full((9, 9), 4000, np.uint16)).save(tmp_path / "deep.png")
    refused = script("deep.png")
    assert (refused.returncode, refused.stderr) == (
        1,
        "deep.png: needed is one image of eight bits a channel\n",
    )
    alone = script(*files)
    assert alone.returncode == 0, alone.stderr
    (tmp_path / "alone.csv").write_text(alone.stdout)
    done = invoke("predict", runs / run, *client, "--images", *files, "--out", tmp_path / "new.csv")
    assert done.exit_code == 0, done.output
    found, wanted = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("alone", "new"))
    assert found.shape == wanted.shape == (5, 2 + (3 if run == "colour" else 10))
    for column in ("file", "prediction"):
        assert (
            found[column].astype(str).tolist() == wanted[column].astype(str).map(csv_plain).tolist()
        )
    # Pillow, which the script for ONNX resizes with, rounds some pixels to their other neighbour
    tolerance = 1e-5 if form == "torch" else 1e-3
    np.testing.assert_allclose(found.iloc[:, 2:], wanted.iloc[:, 2:], rtol=0, atol=tolerance)


@pytest.mark.parametrize("args", [("export",), ("predict", "--images", ".")])
def test_clients_without_names_are_listed_by_number(args, tmp_path):
    given = rounds.config("fedbn", "cnn", train={"rounds": 1})
    run = fedsim.run(given, tmp_path / "run").path
    done = invoke(args[0], run, *args[1:], "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert done.stderr.endswith("choose one by --client K, 0 to 7\n")


def test_what_cannot_be_exported_is_refused(runs, tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "onnx" in name else find(name)
    )
    new = ("--out", tmp_path / "new")
    for args, message in (
        ((runs / "grey", "--out", tmp_path / "full"), "exists and is not an empty directory"),
        ((runs / "grey", "--client", 9, *new), "--client 9: the run has the clients 0 to 5"),
        ((runs / "colour", *new), "each client has a model of its own; choose one by --client K"),
        ((tmp_path, *new), "holds no run (no config.yaml)"),
        (
            (runs / "grey", "--to", "onnx", *new),
            "--to onnx needs the packages onnx and onnxscript: pip install 'fedsim-ray[export]'",
        ),
    ):
        done = invoke("export", *args)
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        assert message in done.stderr
    assert not (tmp_path / "new").exists()
