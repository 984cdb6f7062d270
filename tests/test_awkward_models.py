"""Models that keep, replace or draw something in ``forward``: as plain PyTorch, or refused.

``tests/awkward_models.py`` says of each what is expected. Rounds in memory by default; whole runs,
their resumption, predictions, and Ray are slow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedsim
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.core.layout import layout_of
from fedsim.engine.ray.pool import Session
from fedsim.identity import sources
from fedsim.testing.rounds import Round, difference, results, rounds
from fedsim.training.assemble import prepare
from tests.awkward_models import EQUAL, MODELS, REFUSED
from tests.engine.chaos import SHARE
from tests.oracles.plain import Federation, Samples
from tests.rounding import of_update, rounding, sgd_operations
from tests.stopping import Stop, Stopper

pytestmark = pytest.mark.integration

ROUNDS, EPOCHS, BATCH = 2, 3, 200
SGD = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}
LAYERS, WIDTH = 3, 170
"""Of the models: layers, and the terms of a layer's longest sum, the samples of a client."""
OPERATIONS = sgd_operations(ROUNDS * EPOCHS, LAYERS, WIDTH)
WHOLE = ("BufferReplaced", "CountsInEvaluation", "DroppedCache", "MonteCarlo", "RandomInEvaluation")
"""Models of which whole runs are no slow tests."""
PARTICULAR = (
    *("Ema", "IntegerInPlace", "NotPersistent", "ActNorm"),
    *("Unused", "Tied", "InTurns", "Experts"),
    *("GradientHook", "DroppedCache", "ShapeCache", "NotCopied", "FrozenBatchNorm"),
    *("Lstm", "Checkpointed"),
)
"""Models that always equal plain PyTorch, and of which rounds in memory are no slow tests."""


def marked(slow: Callable[[str], bool]) -> list[Any]:
    """All models, of which some are slow tests."""
    return [pytest.param(name, marks=[pytest.mark.slow] * slow(name)) for name in MODELS]


def ordinary(name: str) -> bool:
    return MODELS[name].expected == EQUAL and name not in PARTICULAR


@pytest.fixture(autouse=True, scope="module")
def _parsed_once():
    """The source of the models, which is a third of the time of a run that names one of them."""
    parse = sources._imported
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_imported", functools.cache(lambda *file: [*parse(*file)]))
        yield


SERIAL, BLOCKS = {"kind": "serial"}, {"kind": "serial", "client_batch": 4}
TESTED = 60
"""Test samples of rounds in memory."""


def settings(name: str, **engine: Any) -> RunConfig:
    return RunConfig(
        algorithm="fedavg",
        data={"num_clients": 4, "test_fraction": 0.7},
        model={"name": f"tests.awkward_models:{name}"},
        train={"rounds": ROUNDS, "sample_rate": 1.0, "local_epochs": EPOCHS, "batch_size": 2000}
        | SGD,
        evaluation={"every": ROUNDS, "batch_size": BATCH, "decompose_every": ROUNDS},
        engine=engine,
    )


class Plain(NamedTuple):
    """What plain PyTorch gets.

    ``initial`` is everything that a fresh module's state dict has, by name.
    """

    initial: dict[str, torch.Tensor]
    start: dict[str, torch.Tensor]
    final: dict[str, torch.Tensor]
    local_loss: float
    shift_loss: float
    test_loss: float
    test_accuracy: float

    def check_state(self, actual: dict[str, torch.Tensor]) -> None:
        """Every tensor of a final model: averaged ones up to rounding, the others as at first."""
        for name, tensor in actual.items():
            if name not in self.final:
                assert torch.equal(tensor, self.initial[name]), f"{name} is not as it was"
                continue
            wanted, begun = self.final[name], self.start[name]
            moved = float((wanted - begun).abs().max()) if begun.numel() else 0.0
            size = float(begun.abs().max()) if begun.numel() else 0.0
            most = of_update(torch.float32, moved, size, ROUNDS * EPOCHS, OPERATIONS)
            off = float((tensor - wanted).abs().max()) if begun.numel() else 0.0
            assert off <= most, f"{name} is off by {off:.2g}, {off / most:.3g} tolerances"

    def check_losses(self, row: dict[str, Any], terms: dict[str, Any]) -> None:
        """The last rows of rounds.csv and decomposition.csv."""
        most = rounding(torch.float32, OPERATIONS)
        for key in ("local_loss", "shift_loss", "test_loss"):
            actual, wanted = float({**row, **terms}[key]), getattr(self, key)
            off = abs(actual - wanted) / max(self.test_loss, 1)
            assert off <= most, f"{key} {actual:.6f}, not {wanted:.6f}: {off / most:.3g} tolerances"
        assert float(row["test_accuracy"]) == pytest.approx(self.test_accuracy, abs=1.01 / TESTED)


@functools.cache
def data() -> tuple[list[Samples], Samples]:
    """The clients' training samples, and those that are tested."""
    setup = prepare(settings("Unused", kind="serial"))
    x = (torch.from_numpy(setup.dataset.x) / 255 - 0.5) / 0.5
    y = torch.from_numpy(setup.dataset.y)
    return [(x[i], y[i]) for i in setup.partition.train], (
        x[setup.dataset.test],
        y[setup.dataset.test],
    )


@functools.cache
def plain(name: str, tested: int) -> Plain:
    """Plain PyTorch's numbers, with so many of the test samples."""
    clients, test = data()
    make = functools.partial(MODELS[name], 10, 1, 8)
    federation = Federation(make=make, clients=clients, epochs=EPOCHS, **SGD)
    state = start = federation.start()
    for _ in range(ROUNDS):
        state, locals_ = federation.round(state)
    everybody = torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])
    sizes = [len(y) for _, y in clients]
    local = shift = 0.0
    for k, own in enumerate(locals_):
        losses, _ = federation.evaluate(own, everybody, BATCH)
        here = float(losses.split(sizes)[k].mean())
        local += sizes[k] / sum(sizes) * here
        shift += sizes[k] / sum(sizes) * (float(losses.mean()) - here)
    losses, right = federation.evaluate(state, tuple(t[:tested] for t in test), BATCH)
    return Plain(
        initial=dict(make().state_dict()),
        start=start,
        final=state,
        local_loss=local,
        shift_loss=shift,
        test_loss=float(losses.mean()),
        test_accuracy=float(right.double().mean()),
    )


def refusal(make: Callable[[], Any], names: tuple[str, ...] = ()) -> Any:
    """What ``make`` returns; None where it refuses the model before anything starts.

    The message is one line with one of the names.
    """
    try:
        return make()
    except ConfigError as error:
        raised = error
    assert raised.exit_status == 2
    message = str(raised)
    assert "\n" not in message
    assert not names or any(name in message for name in names), message
    return None


@functools.cache
def serial(name: str) -> list[Round] | None:
    """The rounds in memory, clients one by one; None where the model is refused."""
    return refusal(lambda: rounds(settings(name, **SERIAL)), MODELS[name].names)


def same(wanted: list[Round], actual: list[Round]) -> None:
    contents = [[r.content() for r in some] for some in (wanted, actual)]
    if (found := difference(*contents, "the other run")) is not None:
        pytest.fail(found)


def check(name: str, made: list[Round]) -> None:
    """Rounds in memory against plain PyTorch."""
    wanted, last = plain(name, TESTED), made[-1]
    layout = layout_of(MODELS[name](10, 1, 8))
    vector = torch.from_numpy(last.after.params.copy())
    wanted.check_state({s.name: vector[s.where].view(s.shape) for s in layout.slots})
    wanted.check_losses(last.row, last.tables["decomposition"][0])


@pytest.mark.parametrize("name", marked(ordinary))
def test_clients_one_by_one_equal_plain_pytorch(name):
    """Or are refused, where that may be."""
    expected, made = MODELS[name].expected, serial(name)
    if made is None:
        assert "refused" in expected, "is refused"
    else:
        assert expected != REFUSED, "is not refused"
        if "equal" in expected:
            check(name, made)


@pytest.mark.parametrize("name", marked(lambda name: MODELS[name].expected == EQUAL))
def test_a_round_follows_from_the_state_before_it_alone(name):
    whole = serial(name)
    if whole is not None:
        same(whole[1:], rounds(settings(name, **SERIAL), start=whole[0].after, first=1))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", marked(ordinary))
def test_blocks_equal_plain_pytorch(name):
    """Or are refused; random numbers need only be drawn again."""
    make = functools.partial(rounds, settings(name, **BLOCKS))
    blocks = refusal(make)
    if blocks is None:
        return
    assert serial(name) is not None, "refused where clients train one by one"
    if "equal" in MODELS[name].expected:
        check(name, blocks)
    else:
        same(blocks, make())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model's run in one process, made when it is first asked for; skips what is refused."""

    @functools.cache
    def of(name: str) -> fedsim.RunStore | None:
        out = tmp_path_factory.mktemp(name) / "run"
        return refusal(lambda: fedsim.run(settings(name, **SERIAL), out), MODELS[name].names)

    def store(name: str) -> fedsim.RunStore:
        made = of(name)
        if made is None:
            pytest.skip("refused")
        return made

    return store


@pytest.mark.parametrize("name", marked(lambda _: True))
def test_runs_equal_plain_pytorch(name, run):
    store = run(name)
    if "equal" in MODELS[name].expected:
        wanted = plain(name, len(data()[1][1]))
        wanted.check_state(load_file(store.path / "model.safetensors"))
        (terms,) = store.read("decomposition").to_dict("records")
        wanted.check_losses(store.read("rounds").to_dict("records")[-1], terms)


@pytest.mark.parametrize("name", marked(lambda name: name not in WHOLE))
def test_a_resumed_run_has_the_same_bytes(name, run, tmp_path):
    wanted = results(run(name))
    with pytest.raises(Stop):
        fedsim.run(settings(name, **SERIAL), tmp_path / "run", [Stopper(1)])
    assert changed(wanted, results(fedsim.resume(tmp_path / "run"))) == []


@pytest.mark.parametrize("name", marked(lambda name: name not in WHOLE))
def test_predictions_have_the_scores_of_the_run(name, run):
    store = run(name)
    frame = fedsim.predict(store.path)
    last = store.read("rounds").to_dict("records")[-1]
    own = frame[[f"probability_{c}" for c in range(10)]].to_numpy()
    own = own[np.arange(len(frame)), frame["label"]]
    assert (frame["label"] == frame["prediction"]).mean() == last["test_accuracy"]
    assert -np.log(own).mean() == pytest.approx(last["test_loss"], rel=1e-6)


@pytest.fixture(scope="module")
def session():
    """One Ray, whose actors stay."""
    with closing(Session(EngineConfig())) as session:
        yield session


@pytest.mark.ray
@pytest.mark.parametrize("name", marked(lambda _: True))
def test_ray_has_the_same_bytes(name, run, session, tmp_path):
    wanted = results(run(name))
    config = settings(name, kind="ray", actors=2, **SHARE)
    store = fedsim.run(config, tmp_path / "run", session=session)
    assert changed(wanted, results(store)) == []


def changed(wanted: dict[str, bytes], actual: dict[str, bytes]) -> list[str]:
    """The files that differ."""
    return [file for file, content in wanted.items() if actual[file] != content]
