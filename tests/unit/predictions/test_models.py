"""The models that a run leaves: they load as they are, and are the ones that were scored."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import fedsim
from fedsim import models
from fedsim.cli import main
from fedsim.core.types import Slot
from fedsim.models.vision import SplitModel
from fedsim.storage import final_models
from fedsim.training.assemble import prepare
from tests.commands import clean_environment
from tests.decomposing import config
from tests.rounding import rounding
from tests.unit.predictions.test_predict import on_images, write_images

pytestmark = pytest.mark.integration


class Odd(SplitModel):
    """A model with BatchNorm, tied weights, and integer, boolean and temporary buffers."""

    def __init__(self, num_classes: int, pixels: int) -> None:
        body = [nn.Flatten(), nn.Linear(pixels, 8), nn.BatchNorm1d(8), nn.ReLU()]
        super().__init__(nn.Sequential(*body), nn.Linear(8, num_classes))
        self.also_head = nn.Linear(8, num_classes, bias=False)
        self.also_head.weight = self.head.weight
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("seen", torch.tensor([True, False]))
        self.register_buffer("scratch", torch.ones(3), persistent=False)


def odd(num_classes, in_channels, image_size):
    return Odd(num_classes, in_channels * image_size**2)


def done(path, method="fedbn", **changes):
    """A run on 300 digits, whose clients have test samples of their own beside the common ones."""
    changes.setdefault("model", {"name": "cnn"})
    evaluation = {"decompose_every": 0, "loss_matrix": False, "clients_every": 1}
    evaluation |= changes.pop("evaluation", {})
    settings = config(method, evaluation=evaluation, **changes)
    return settings, fedsim.run(settings, path)


def metadata(path):
    with safe_open(path, framework="np") as file:
        return file.metadata()


def logits_of(model, setup, index):
    """Plain PyTorch in float32."""
    x = torch.from_numpy(setup.dataset.x[index]).float() / 255
    with torch.no_grad():
        return model.eval()((x - 0.5) / 0.5)


def own_tensors(path, client):
    """What belongs to a client, as the documentation reads it."""
    prefix = f"{client}/"
    result = load_file(path / "clients.safetensors").items()
    return {name.removeprefix(prefix): t for name, t in result if name.startswith(prefix)}


@pytest.mark.parametrize("name", ["cnn", "mlp", f"{__name__}:odd"])
def test_the_global_model_loads_strictly_and_is_the_one_that_was_scored(name, tmp_path):
    settings, store = done(tmp_path / "run", "fedavg", model={"name": name})
    setup = prepare(settings)
    model = models.build(setup.model, seed=99)
    model.load_state_dict(load_file(store.path / "model.safetensors"), strict=True)
    test = setup.dataset.test
    right = logits_of(model, setup, test).argmax(1).numpy() == setup.dataset.y[test]
    assert right.mean() == store.rounds["test_accuracy"].iloc[-1]
    said = metadata(store.path / "model.safetensors")
    assert {key: said[key] for key in ("format", "algorithm", "round", "scored")} == {
        "format": "pt", "algorithm": "fedavg", "round": "2", "scored": "yes"
    }  # fmt: skip
    assert json.loads(said["model"])["name"] == name
    assert json.loads(said["classes"]) == [str(label) for label in range(10)]
    assert not (store.path / "clients.safetensors").exists()


def test_counters_have_the_value_that_every_forward_pass_saw(tmp_path):
    _, store = done(tmp_path / "run", "fedavg", model={"name": f"{__name__}:odd"})
    result = load_file(store.path / "model.safetensors")
    assert result["features.2.num_batches_tracked"] == 0
    assert result["count"] == 7
    assert result["seen"].tolist() == [True, False]
    assert torch.equal(result["also_head.weight"], result["head.weight"])
    assert "scratch" not in result


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedbn", "fedpac", "pfedla"])
def test_each_clients_model_is_the_one_that_was_scored(method, tmp_path):
    settings, store = done(tmp_path / "run", method)
    setup = prepare(settings)
    model = models.build(setup.model, seed=99)
    shared = load_file(store.path / "model.safetensors")
    personal = {slot.name for slot in setup.layout.slots if setup.algorithm.personal(slot)}
    table = store.read("evaluations").query("round == 2 and group.isna()")
    rows = table.set_index(["client_id", "split"])
    trained = set(store.clients["client_id"]) if method != "pfedla" else set(range(6))
    for client in range(6):
        own = own_tensors(store.path, client)
        assert own.keys() == (personal if client in trained else set())
        model.load_state_dict(shared | own, strict=True)
        loaded, test = fedsim.load_model(store.path, client=client), setup.dataset.test
        assert torch.equal(logits_of(loaded, setup, test), logits_of(model, setup, test))
        index = {"test": setup.dataset.test, "own_test": setup.partition.test[client]}
        for split, samples in index.items():
            logits = logits_of(model, setup, samples)
            labels = torch.from_numpy(setup.dataset.y[samples])
            row = rows.loc[client, split]
            assert row["num_samples"] == len(samples)
            assert row["accuracy"] == (logits.argmax(1) == labels).double().mean().item()
            loss = functional.cross_entropy(logits.double(), labels).item()
            assert row["loss"] == pytest.approx(loss, abs=1e-6)
    scored = metadata(store.path / "model.safetensors")["scored"]
    assert scored == "no: personalised models were scored, see clients.safetensors"
    said = metadata(store.path / "clients.safetensors")
    assert (said["scored"], said["round"]) == ("yes", "2")
    assert said["clients"].startswith(f"{len(trained)} of 6; ")


@pytest.mark.slow
def test_the_bytes_are_the_same_in_every_process(tmp_path):
    """The library itself writes metadata in an order that differs between processes."""
    code = (
        "import sys, numpy as np; from pathlib import Path;"
        "from fedsim.storage import final_models;"
        "words = {c: c * 3 for c in 'abcdefgh'};"
        "arrays = {'w': np.ones((2, 3), np.float32), 'n': np.array(3)};"
        "Path(sys.argv[1]).mkdir();"
        "final_models.save_model(Path(sys.argv[1]), arrays, words)"
    )
    written = []
    for name in ("one", "two", "three"):
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / name)], check=True, env=clean_environment()
        )
        written.append((tmp_path / name / "model.safetensors").read_bytes())
    assert written[0] == written[1] == written[2]
    result = load_file(tmp_path / "one" / "model.safetensors")
    assert result["w"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert result["n"] == 3


SLOTS = (Slot(name="a", shape=(2, 2), start=0, stop=4), Slot(name="s", shape=(), start=6, stop=7))
PARAMS = np.arange(8, dtype=np.float32)


def test_client_states_as_tensors(tmp_path):
    states = {
        c: {"personal": np.full(5, c, np.float32), "other": np.zeros(3)} for c in (11, 3, 200)
    }
    states[7] = {"other": np.zeros(3)}  # nothing of the model: what the global one has
    final_models.save_clients(tmp_path, PARAMS, SLOTS, states, {"scored": "yes"})
    result = load_file(tmp_path / "clients.safetensors")
    assert result.keys() == {f"{c}/{name}" for c in states for name in "as"}
    assert result["200/a"].tolist() == [[200, 200], [200, 200]]
    assert (result["3/s"], result["7/s"]) == (3, 6)
    assert result["7/a"].tolist() == [[0, 1], [2, 3]]
    back = final_models.ClientTensors(tmp_path, SLOTS)
    assert list(back) == [3, 7, 11, 200]
    assert back[11]["personal"].tolist() == [11] * 5
    assert 5 not in back


def test_the_noise_of_a_probabilistic_model_is_that_of_the_run(tmp_path):
    settings, store = done(tmp_path / "run", "fedsr", seed=5)
    setup = prepare(settings)
    test = setup.dataset.test
    right = logits_of(fedsim.load_model(store.path), setup, test).argmax(1).numpy()
    accuracy = (right == setup.dataset.y[test]).mean()
    assert accuracy == store.rounds["test_accuracy"].iloc[-1]


# exported files


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
    arguments = () if client is None else ("--client", client)
    done = invoke("export", runs / run, *arguments, "--to", form, "--out", out)
    assert done.exit_code == 0, done.output
    network = {"torch": "model.pt2", "onnx": "model.onnx"}[form]
    assert sorted(file.name for file in out.iterdir()) == [network, "preprocessing.json"]
    expected = json.loads((out / "preprocessing.json").read_text())
    shape = (5, expected["channels"], expected["size"], expected["size"])
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
    assert wanted.shape == (5, len(expected["classes"]))
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
