"""Frozen weights, adapters, start weights, and what methods make of a model."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedsim
from fedsim import models
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.layout import FlatModel, freeze, layout_of
from fedsim.core.types import ModelSpec
from fedsim.models import build, weights
from fedsim.models.chain import chain
from fedsim.models.frozen import frozen_tensors
from fedsim.models.probabilistic import ProbabilisticModel
from fedsim.models.trainable import Lora, parse
from fedsim.models.vision import SplitModel
from fedsim.training.assemble import prepare
from tests import decomposing

CPU = torch.device("cpu")
HEAD = ["head.bias", "head.weight"]


class Patches(nn.Module):
    """A vision transformer's features: patches of 4x4 pixels, two layers with fused qkv."""

    def __init__(self, in_channels, image_size):
        super().__init__()
        self.patches = nn.Conv2d(in_channels, 8, 4, 4)
        self.position = nn.Parameter(torch.randn(1, (image_size // 4) ** 2, 8))
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).mean(1)


class Layer(nn.Module):
    """Attention with one linear layer for query, key and value, as in timm; then a perceptron."""

    def __init__(self):
        super().__init__()
        self.before, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.mlp = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        h = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(h)
        return x + self.mlp(x)


def vit(num_classes, in_channels, image_size):
    return SplitModel(Patches(in_channels, image_size), nn.Linear(8, num_classes))


class Encoder(nn.Module):
    """A small BERT's features: embeddings of words and places, two layers, the first token."""

    def __init__(self, vocabulary, tokens):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, 8), nn.Embedding(tokens, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(self.words(x) + self.places.weight)[:, 0]


def bert(num_classes, vocabulary, tokens):
    return SplitModel(Encoder(vocabulary, tokens), nn.Linear(8, num_classes))


VIT = ModelSpec(name=f"{__name__}:vit", num_classes=10, in_channels=1, image_size=8)
BERT = ModelSpec(
    name=f"{__name__}:bert", num_classes=3, in_channels=9, image_size=6, inputs="tokens"
)
CNN = ModelSpec(name="cnn", num_classes=10, in_channels=1, image_size=8)


def config(name, trainable, method="fedavg", **changes):
    """Three rounds of three of six clients."""
    model = {"name": name, "trainable": trainable} | changes.pop("model", {})
    train = {"rounds": 3, "sample_rate": 0.5, "batch_size": 16, "lr": 0.1} | changes.pop(
        "train", {}
    )
    data = changes.pop("data", "tests.decomposing:digits")
    return RunConfig(
        algorithm=method,
        data={"name": data, "num_clients": 6, "min_samples": 1},
        model=model,
        train=train,
        engine={"kind": "serial"},
        **changes,
    )


def names(spec, trainable):
    return {
        slot.name for slot in layout_of(models.build(replace(spec, trainable=trainable), 0)).slots
    }


# Which tensors


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("all", "all"), (" head ", "head"), ("norm", "norm"), ("lora(4)", Lora(4, 4.0)),
        ("lora(8, 16)", Lora(8, 16.0)), ("lora( 2,0.5 )", Lora(2, 0.5)),
        ("head.*, features.9.*", ("head.*", "features.9.*")),
    ],
)  # fmt: skip
def test_the_forms(text, meaning):
    assert parse(text) == meaning


@pytest.mark.parametrize(
    ("trainable", "found"),
    [
        ("head", HEAD),
        ("head.*", HEAD),
        ("features.1.weight,head.bias", ["features.1.weight", "head.bias"]),
        ("features.0.*", ["features.0.weight"]),
    ],
)
def test_only_these_tensors_are_part_of_the_vector(trainable, found):
    statistics = {f"features.1.running_{kind}" for kind in ("mean", "var")}
    expected = set(found) | (statistics if "features.1.weight" in found else set())
    assert names(CNN, trainable) == expected


def test_norm_is_the_normalisation_layers_their_statistics_and_the_head():
    whole = layout_of(models.build(CNN, 0)).slots
    assert names(CNN, "norm") == {s.name for s in whole if s.batchnorm or s.head}
    ends = ("before", "mlp.0", "norm", "head")
    found = {name.rpartition(".")[0].removeprefix("features.") for name in names(VIT, "norm")}
    assert found == {"norm", "head"} | {f"layers.{i}.{e}" for i in (0, 1) for e in ends[:2]}


@pytest.mark.parametrize(
    ("spec", "trainable", "message"),
    [
        (
            CNN,
            "features.99.*",
            r"no tensor of the model is called features\.99\.\* \(did.* and 14 more",
        ),
        (replace(CNN, name="mlp", norm="batch"), "norm", r"no normalisation layers"),
        (replace(CNN, name="logistic"), "lora(2)", r"no linear or attention layer beside its head"),
        (replace(CNN, name=f"{__name__}:bare"), "head", r"no module 'head'"),
    ],
)
def test_what_a_model_does_not_have_is_refused_by_name(spec, trainable, message):
    with pytest.raises(ConfigError, match=message):
        models.build(replace(spec, trainable=trainable), 0)


def bare(num_classes, in_channels, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))


def test_frozen_batchnorm_stays_in_evaluation_mode():
    flat = FlatModel(models.build(replace(CNN, trainable="features.1.*,head.*"), 0), CPU)
    for train in (True, False, True):
        flat.mode(train)
        modes = [m.training for m in flat.model.modules() if isinstance(m, nn.BatchNorm2d)]
        assert modes == [train, False, False]
    assert [type(m) for m in flat.norms] == [nn.BatchNorm2d]


class WithInstanceNorm(nn.Module):
    """A convolution, instance normalisation with running statistics, and a head."""

    def __init__(self):
        super().__init__()
        norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Flatten())
        self.head = nn.Linear(4 * 36, 10)

    def forward(self, x):
        return self.head(self.features(x))


@pytest.mark.parametrize("kind", ["batch", "instance"])
def test_no_forward_pass_and_no_load_writes_to_frozen_statistics(kind):
    model = WithInstanceNorm() if kind == "instance" else models.build(CNN, 0)
    freeze(model, frozen_tensors(model, replace(CNN, trainable="head")))
    given = {name: np.copy(array) for name, array in FlatModel(model, CPU).frozen.items()}
    flat = FlatModel(copy.deepcopy(model), CPU, frozen=given)
    means = [array for name, array in given.items() if name.endswith("running_mean")]
    assert means
    for mean in means:
        mean[:] = 0.25
    before = {name: np.copy(array) for name, array in given.items()}
    for train in (True, False):
        flat.mode(train)
        flat.model(torch.rand(3, 1, 8, 8))
        flat.load(flat.flat.clone())
    assert all(np.array_equal(given[name], array) for name, array in before.items())


# Adapters


@pytest.mark.parametrize("spec", [VIT, BERT], ids=["vit", "bert"])
def test_adapters_change_nothing_at_the_start_and_have_the_standard_scale(spec):
    plain, model = models.build(spec, 0), models.build(replace(spec, trainable="lora(3)"), 0)
    x = torch.rand(2, 1, 8, 8) if spec is VIT else torch.randint(0, 9, (2, 6))
    assert torch.equal(model.eval()(x), plain.eval()(x))
    a = [p for name, p in model.named_parameters() if name.endswith("lora_A")]
    b = [p for name, p in model.named_parameters() if name.endswith("lora_B")]
    assert len(a) == len(b) == 8  # attention in and out, two layers of the perceptron, twice
    assert all(not p.any() for p in b)
    for p in a:  # kaiming_uniform_(a=sqrt(5)) is uniform within 1 / sqrt(inputs)
        bound = p.shape[1] ** -0.5
        assert p.shape[0] == 3
        assert 0.5 * bound < p.abs().max() <= bound


def test_an_adapter_adds_alpha_by_rank_times_b_a():
    model = models.build(replace(VIT, trainable="lora(2, 6)"), 0)
    layer = model.features.layers[0].qkv
    with torch.no_grad():
        layer.lora_B.fill_(0.5)
        expected = layer._parameters["weight"] + 3 * (layer.lora_B @ layer.lora_A)
    assert torch.equal(layer.weight, expected)
    x = torch.rand(4, 8)
    assert torch.equal(layer(x), nn.functional.linear(x, expected, layer.bias))


@pytest.mark.parametrize("spec", [VIT, BERT], ids=["vit", "bert"])
def test_adapters_count_in_training_and_in_the_fused_kernels_of_the_evaluation(spec, tmp_path):
    """In evaluation nn.TransformerEncoderLayer takes weights of its layers without calling them."""
    trained = replace(spec, trainable="lora(2, 4)")
    model = models.build(trained, 0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("lora_B"):
                p.normal_()
    save_file(
        {k: v.contiguous() for k, v in model.state_dict().items()},
        tmp_path / "w.safetensors",
        {"model": json.dumps({"trainable": "lora(2, 4)"})},
    )
    plain = models.build(replace(spec, weights=str(tmp_path / "w.safetensors")), 1)
    x = torch.rand(2, 1, 8, 8) if spec is VIT else torch.randint(0, 9, (2, 6))
    start = models.build(spec, 0).eval()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            ours, merged, before = (m.eval()(x) for m in (model, plain, start))
        torch.testing.assert_close(ours, merged, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(ours, before, atol=1e-2)


# Runs

CASES = {
    "vit": (f"{__name__}:vit", "tests.decomposing:digits", "lora(2, 4)"),
    "bert": (f"{__name__}:bert", "tests.texts:moods", "lora(2)"),
    "cnn": ("cnn", "tests.decomposing:digits", "norm"),
}


def run_of(case, path, method="fedavg", **changes):
    model, data, trainable = CASES[case]
    settings = config(model, trainable, method, data=data, **changes)
    return settings, fedsim.run(settings, path)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("case", CASES)
def test_what_is_frozen_neither_moves_nor_travels(case, tmp_path):
    settings, store = run_of(case, tmp_path / "run")
    setup = prepare(settings)
    final = load_file(store.path / "model.safetensors")
    start = decomposing.named_tensors(setup.initial, setup.layout)
    assert final.keys() >= setup.frozen.keys() | start.keys()
    for name, array in setup.frozen.items():
        assert final[name].numpy().tobytes() == array.tobytes(), name
    assert all(not np.array_equal(final[name].numpy(), v) for name, v in start.items())
    sent = sum(s.stop - s.start for s in setup.layout.slots)
    assert (store.rounds["uplink_bytes"] == 4 * sent * store.rounds["cohort_size"]).all()
    assert (store.rounds["downlink_bytes"] == 4 * sent * store.rounds["cohort_size"]).all()
    if case != "cnn":
        new = [n for n in start if n.endswith(("lora_A", "lora_B")) or n in HEAD]
        assert sent == sum(final[name].numel() for name in new)
    model = models.build(setup.model, 5)
    model.load_state_dict(final, strict=True)
    index = setup.dataset.test
    frame = fedsim.predict(store.path)
    right = (frame["label"] == frame["prediction"]).mean()
    assert right == store.rounds["test_accuracy"].iloc[-1]
    assert len(frame) == len(index)


@pytest.mark.parametrize(
    ("method", "trainable", "message"),
    [
        ("moon", "head", r"features\(x\) and a linear head .* one of them frozen"),
        ("fedpac", "features.*", r"features\(x\) and a linear head .* frozen \(model\.trainable\)"),
        ("matched_mean", "head", r"matched_mean permutes channels .* model\.trainable must be all"),
        ("matched_mean", "lora(2)", r"matched_mean: a chain of linear"),
        ("fedbn", "head", r"clients keep to themselves .* no such tensor is trained"),
    ],
)
def test_methods_that_need_what_is_frozen_refuse_it(method, trainable, message):
    with pytest.raises(ConfigError, match=message):
        prepare(config("mlp", trainable, method))


def test_clients_with_frozen_tensors_are_not_stacked():
    settings = config("mlp", "head", train={"sample_rate": 1.0})
    for batch in (3, "auto"):
        engine = settings.engine.model_copy(update={"client_batch": batch})
        changed = settings.model_copy(update={"engine": engine})
        if batch == "auto":
            assert prepare(changed).stacking is None
        else:
            with pytest.raises(ConfigError, match="parameters that are not trained"):
                prepare(changed)


class Stop(fedsim.Callback):
    def on_round_end(self, round, rows):
        raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.integration
def test_a_resumed_run_has_the_same_bytes_and_other_frozen_weights_are_refused(tmp_path):
    weights = tmp_path / "w.safetensors"
    save_file(models.build(VIT, 7).state_dict(), weights)
    model = {"weights": str(weights)}
    _, whole = run_of("vit", tmp_path / "whole", model=model)
    with pytest.raises(KeyboardInterrupt):
        fedsim.run(config(*CASES["vit"][::2], model=model), tmp_path / "half", callbacks=[Stop()])
    save_file(models.build(VIT, 8).state_dict(), weights)
    with pytest.raises(
        DataError, match=r"trainable=lora\(2, 4\): the frozen weights have changed since"
    ):
        fedsim.resume(tmp_path / "half")
    save_file(models.build(VIT, 7).state_dict(), weights)
    fedsim.resume(tmp_path / "half")
    for name in ("rounds.csv", "clients.csv", "model.safetensors"):
        assert (tmp_path / "half" / name).read_bytes() == (whole.path / name).read_bytes(), name


def parity(folder):
    """The same digits in two classes, even and odd."""
    found = decomposing.digits(folder)
    return replace(found, y=found.y % 2, class_names=("even", "odd"))


def turned(folder):
    """The same two classes in another order."""
    found = parity(folder)
    return replace(found, y=1 - found.y, class_names=("odd", "even"))


def headless(num_classes, in_channels, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))


def two_classes(data="parity", model=None, **changes):
    """Two rounds; ``data`` is a function of this file, or of tests.decomposing."""
    name = f"tests.decomposing:{data}" if data == "digits" else f"{__name__}:{data}"
    evaluation = {"decompose_every": 0, "loss_matrix": False}
    model = {"name": "cnn"} | (model or {})
    return decomposing.config(data={"name": name}, model=model, evaluation=evaluation, **changes)


class Introduction(fedsim.Callback):
    def on_run_start(self, info):
        self.notes = info.notes


@pytest.mark.slow
@pytest.mark.integration
def test_another_number_of_classes_draws_the_head_anew_and_says_so(tmp_path):
    first = fedsim.run(two_classes("digits"), tmp_path / "first").path
    settings, seen = two_classes(model={"weights": str(first)}), Introduction()
    second = fedsim.run(settings, tmp_path / "second", callbacks=[seen])
    assert seen.notes == (
        "head.weight and head.bias initialised at random: model.weights has no head of this shape",
    )
    assert json.loads((second.path / "env.json").read_text())["head_drawn_anew"] == HEAD
    given, setup = load_file(first / "model.safetensors"), prepare(settings)
    alone = prepare(two_classes())
    for slot in setup.layout.slots:
        known = alone.initial[slot.where] if slot.head else given[slot.name].numpy().ravel()
        assert np.array_equal(setup.initial[slot.where], known), slot.name


ORDER = "class 0 is 'even' in the weights' data and 'odd' in these"


@pytest.mark.slow
@pytest.mark.integration
def test_the_same_classes_in_another_order_draw_the_head_anew_and_say_so(tmp_path):
    """The head of the first run would be wrong on every sample."""
    logistic = {"name": "logistic"}
    first = fedsim.run(two_classes(model=logistic), tmp_path / "first").path
    model, seen = logistic | {"weights": str(first)}, Introduction()
    second = fedsim.run(two_classes("turned", model), tmp_path / "second", callbacks=[seen])
    assert seen.notes == (f"head.weight and head.bias initialised at random: {ORDER}",)
    assert json.loads((second.path / "env.json").read_text())["head_drawn_anew"] == HEAD
    anew = prepare(two_classes("turned", logistic)).initial
    assert np.array_equal(prepare(two_classes("turned", model)).initial, anew)
    taken = prepare(two_classes("parity", model))
    assert taken.start == weights.Loaded()
    assert not np.array_equal(taken.initial, anew)
    torch.save(load_file(first / "model.safetensors"), tmp_path / "w.pt")  # says no classes
    given = logistic | {"weights": str(tmp_path / "w.pt")}
    assert np.array_equal(prepare(two_classes("turned", given)).initial, taken.initial)


@pytest.mark.integration
def test_other_classes_without_a_head_to_draw_are_refused(tmp_path):
    own = {"name": f"{__name__}:headless"}
    run = fedsim.run(two_classes(model=own), tmp_path / "run").path
    model = own | {"weights": str(run)}
    assert prepare(two_classes(model=model)).start == weights.Loaded()
    with pytest.raises(ConfigError) as refused:
        prepare(two_classes("turned", model))
    assert ORDER in str(refused.value)
    assert "no module 'head' to be initialised anew" in str(refused.value)


def numbered(classes, channels, size):
    model = nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, classes))
    model.register_buffer("order", torch.arange(3))
    return model


def test_integers_of_a_file_that_are_not_the_models_are_refused(tmp_path):
    own = {"name": f"{__name__}:numbered"}
    spec = prepare(two_classes(model=own)).model
    tensors = models.build(spec, 0).state_dict()
    torch.save(tensors, tmp_path / "w.pt")
    weights_of = own | {"weights": str(tmp_path / "w.pt")}
    assert prepare(two_classes(model=weights_of)).start == weights.Loaded()
    torch.save(tensors | {"order": torch.tensor([2, 1, 0])}, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match="only float tensors are loaded: order"):
        prepare(two_classes(model=weights_of))


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("algorithm", "trainable"), [("local", "all"), ("pfedla", "all"), ("fedbn", "features.1.*")]
)
def test_a_run_that_trained_models_of_clients_only_is_refused(algorithm, trainable, tmp_path):
    model, train = {"trainable": trainable}, {"sample_rate": 1.0}
    settings = two_classes("digits", model, method=algorithm, train=train)
    run = fedsim.run(settings, tmp_path / "run").path
    for path in (run, run / "model.safetensors"):
        with pytest.raises(ConfigError) as refused:
            prepare(two_classes("digits", {"weights": str(path)}))
        assert str(refused.value).startswith(
            f"model.weights={path}: model.safetensors of this run of {algorithm} holds the "
            "untrained start, since all tensors that train are the clients' own"
        )
    client = fedsim.load_model(run, client=0).state_dict()
    torch.save(client, tmp_path / "client.pt")
    setup = prepare(two_classes("digits", {"weights": str(tmp_path / "client.pt")}))
    found = decomposing.named_tensors(setup.initial, setup.layout)
    assert all(np.array_equal(found[name], client[name].numpy()) for name in found)
    assert not np.array_equal(setup.initial, prepare(two_classes("digits")).initial)


DIGITS = ModelSpec(name="cnn", num_classes=10, in_channels=1, image_size=8)


# ---- the projection head


def test_projection_head_lies_between_features_and_head() -> None:
    model, plain = build(replace(DIGITS, projection=256), 0).eval(), build(DIGITS, 0)
    x = torch.rand(3, 1, 8, 8)
    first, relu, second = model.features.projection
    assert isinstance(relu, nn.ReLU)
    hidden = torch.relu(first(model.features.backbone(x)))
    assert torch.equal(model.features(x), second(hidden))
    assert torch.equal(model(x), model.head(model.features(x)))
    assert model.features(x).shape == (3, 256)
    assert model.head.weight.shape == (10, 256)
    count = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in plain.parameters())
    assert count == 64 * 64 + 64 + 64 * 256 + 256 + (256 - 64) * 10
    backbone, features = model.features.backbone.state_dict(), plain.features.state_dict()
    assert all(torch.equal(backbone[key], features[key]) for key in features)


# ---- the Gaussian representation


def gaussian(z_dim: int | None = 6) -> ProbabilisticModel:
    model = build(DIGITS, 0, lambda made: ProbabilisticModel(made, z_dim))
    assert isinstance(model, ProbabilisticModel)
    return model


def test_evaluation_is_the_mean_of_the_predictions() -> None:
    model, x = gaussian().eval(), torch.rand(3, 1, 8, 8)
    mu, sigma = model.distribution(x)
    each = [model.head(mu + sigma * noise).softmax(dim=1) for noise in model.noise]
    assert len(each) == 20
    torch.testing.assert_close(model(x).exp(), sum(each) / 20)
    assert not torch.allclose(model(x).exp(), model.head(mu).softmax(dim=1), atol=1e-4)


# ---- chains


shared = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), r"0 is Conv2d: a convolution in 2 groups"),
        (nn.Sequential(shared, nn.ReLU(), shared), r"2 is Linear: its weight comes twice"),
        (nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), r"1 is Softmax: not one of these"),
        (nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)), r"0 is BatchNorm2d: not the one"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(2)), "1 is Flatten: it keeps several dimen"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 3)), "1 is Linear: it acts on pixels that"),
        (
            nn.Sequential(nn.Linear(8, 5), nn.Flatten(), nn.Linear(40, 3)),
            r"2 is Linear: its 40 inputs are not the 5 outputs of 0\.weight",
        ),
        (build(replace(DIGITS, name="resnet18"), 0), r"features is ResNet: not one of these"),
    ],
    ids=str,
)
def test_what_is_no_chain(model: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^algorithm x: a chain of .*; {message}") as caught:
        chain(model, "algorithm x")
    assert "\n" not in str(caught.value)
