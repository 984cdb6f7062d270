"""Tasks of several versions of the model on Ray: the bytes of one process, early, late or lost."""

from __future__ import annotations

from collections import deque

import pytest

import fedsim
from fedsim.engine.ray import dispatch
from fedsim.testing.rounds import results
from tests.engine import chaos
from tests.engine.chaos import SHARE
from tests.stopping import Stop, Stopper
from tests.test_seams import BUFFERED

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def config(method: str = "fedavg", *, rounds: int = 8, norm: str = "batch", **engine: object):
    """A buffered run of the small network with the hooks of :mod:`tests.engine.chaos`."""
    return fedsim.RunConfig(
        algorithm=method,
        data={"num_clients": 12},
        model={"name": "tests.engine.chaos:model"},
        train=BUFFERED["train"] | {"rounds": rounds, "momentum": 0.0},
        clock=BUFFERED["clock"],
        engine=SHARE | engine,
    )


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory):
    """The bytes of a run in one process."""
    out = tmp_path_factory.mktemp("serial") / "run"
    return results(fedsim.run(config(kind="serial"), out, progress=False))


@pytest.mark.parametrize("client_batch", [1, 3])
def test_work_done_early_has_the_same_bytes(tmp_path, shared_ray, monkeypatch, client_batch):
    taken, early = [], dispatch.Dispatcher.early
    hand_out = dispatch.Dispatcher._hand_out

    def early_first(own, waiting):
        hand_out(own, deque(c for c in own._early.values() if not own._is_begun(c)))
        hand_out(own, waiting)

    monkeypatch.setattr(
        dispatch.Dispatcher,
        "early",
        lambda own, block: taken.append(early(own, block)) or taken[-1],
    )
    monkeypatch.setattr(dispatch.Dispatcher, "_hand_out", early_first)
    given = config(client_batch=client_batch)
    store = fedsim.run(given, tmp_path / "ray", (), shared_ray, progress=False)
    assert sum(call is not None for call in taken) > 5
    serial = config(client_batch=client_batch, kind="serial")
    assert results(store) == results(fedsim.run(serial, tmp_path / "serial", progress=False))


@pytest.mark.parametrize("moment", ["train", "return"])
def test_lost_work_of_any_version_is_done_again(moment, tmp_path, shared_ray, wanted, orders):
    class Kill(fedsim.Callback):
        def on_round_end(self, round, rows):
            if round in (2, 4):
                chaos.order(orders, moment, "SIGKILL")

    store = fedsim.run(config(), tmp_path / "run", [Kill()], shared_ray, progress=False)
    assert results(store) == wanted
    assert len(store.read("errors"))


def test_it_resumes_on_ray(tmp_path, shared_ray, wanted):
    with pytest.raises(Stop):
        fedsim.run(config(), tmp_path / "run", [Stopper(3)], shared_ray, progress=False)
    store = fedsim.resume(tmp_path / "run", session=shared_ray, progress=False)
    assert results(store) == wanted


@pytest.mark.parametrize("actors", [1, 2])
@pytest.mark.parametrize(("buffer", "mixing"), [(2, None), (1, 0.6)])
def test_fedbuff_and_fedasync_have_the_bytes_of_one_process(
    buffer, mixing, actors, tmp_path, shared_ray
):
    def run(out, session, **engine):
        given = fedsim.RunConfig(
            algorithm="fedavg",
            data={"num_clients": 12},
            train={"rounds": 6},
            clock=BUFFERED["clock"] | {"mode": "async"},
            async_={"buffer": buffer, "concurrency": 5, "mixing": mixing},
            engine=engine,
        )
        return results(fedsim.run(given, tmp_path / out, (), session, progress=False))

    assert run("ray", shared_ray, **SHARE, actors=actors) == run("serial", None, kind="serial")


@pytest.mark.parametrize("seam", ["sign_flip", "power_of_choice"])
def test_a_seam_has_the_bytes_of_one_process(seam, tmp_path, shared_ray):
    schedule = {"schedule": f"tests.seams:{seam}"} if seam == "power_of_choice" else {}
    method = "fedavg" if schedule else f"tests.seams:{seam}"

    def run(out, session, **engine):
        given = fedsim.RunConfig(
            algorithm=method,
            data={"num_clients": 8},
            train={"rounds": 4, "sample_rate": 0.5} | schedule,
            engine=engine,
        )
        return results(fedsim.run(given, tmp_path / out, (), session, progress=False))

    assert run("ray", shared_ray, **SHARE) == run("serial", None, kind="serial")
