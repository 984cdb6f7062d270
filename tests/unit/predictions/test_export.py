"""``fedsim export``: what it writes loads without fedsim, and says what the model says."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fedsim
from fedsim.cli import main
from tests.commands import clean_environment
from tests.decomposing import config
from tests.rounding import rounding
from tests.unit.predictions.test_predict import on_images, write_images

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


LOADED = """
import sys
import numpy as np
sys.modules["fedsim"] = None
x = np.load("x.npy")
if sys.argv[1] == "torch":
    import torch
    with torch.no_grad():
        logits = torch.export.load("model/model.pt2").module()(torch.from_numpy(x)).numpy()
else:
    import onnxruntime
    logits = onnxruntime.InferenceSession("model/model.onnx").run(None, {"images": x})[0]
np.save("logits.npy", logits)
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["torch", "onnx"])
@pytest.mark.parametrize(("run", "client"), [("colour", 2), ("grey", None)])
def test_its_network_says_what_the_model_says(run, client, form, runs, tmp_path):
    if form == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package, reason="the extra 'export' is not installed")
    out = tmp_path / "model"
    given = () if client is None else ("--client", client)
    done = invoke("export", runs / run, *given, "--to", form, "--out", out)
    assert done.exit_code == 0, done.output
    network = {"torch": "model.pt2", "onnx": "model.onnx"}[form]
    assert sorted(file.name for file in out.iterdir()) == [network, "preprocessing.json"]
    known = json.loads((out / "preprocessing.json").read_text())
    shape = (5, known["channels"], known["size"], known["size"])
    x = np.random.default_rng(3).standard_normal(shape, np.float32)
    np.save(tmp_path / "x.npy", x)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOADED, form],
        cwd=tmp_path,
        env=clean_environment(),
        check=True,
    )
    with torch.no_grad():
        wanted = fedsim.load_model(runs / run, client=client)(torch.from_numpy(x)).numpy()
    assert wanted.shape == (5, len(known["classes"]))
    near = rounding(np.float32, 5000) * np.abs(wanted).max()  # sums of less than 5,000 terms
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), wanted, rtol=0, atol=near)


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
