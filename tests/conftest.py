"""Which tests are quick, how tests are dealt out to processes, and fixtures for every test."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling

# One thread for torch, here and in what tests start: small tensors gain nothing from more, and
# several test processes would fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs with Ctrl-C ignored, and so would be what tests start from one.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
NOT_QUICK = ("ray", "integration", "slow", "nightly", "gpu")
NUMERIC = (
    *("algorithms/test_[!c]*", "test_stored_runs.py"),
    "test_awkward_models.py",
    *("unit/client/*", "unit/core/*", "unit/metrics/*", "unit/models/*", "unit/server/*"),
    *("unit/training/test_driver.py", "unit/training/test_evaluate.py"),
    *("unit/training/test_stacking.py", "unit/predictions/test_predict.py"),
    "unit/identity/test_resume.py",
)
"""Files whose tests compare numbers that the processor's kernels round."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the bytecode of what is collected, though the environment may say not to.

    Else every process compiles fedsim and rewrites the tests anew, a third of the collection.
    """
    with mock.patch.object(sys, "dont_write_bytecode", False):
        return (yield)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the quick tests; of several processes each begins with what takes longest.

    Nightly tests run where ``-m`` names them, and with no other selection.
    """
    if "nightly" not in config.option.markexpr:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if item not in nightly]
    for item in items:
        if not any(item.get_closest_marker(name) for name in NOT_QUICK):
            item.add_marker("quick")
        if is_numeric(item.path):
            item.add_marker("numeric")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (not starts_ray(item.nodeid), is_quick(item)))


def is_quick(item: pytest.Item) -> bool:
    """Whether ``-m quick`` selects a test."""
    return item.get_closest_marker("quick") is not None


@cache
def is_numeric(file: Path) -> bool:
    """Whether :data:`NUMERIC` names a test file."""
    return any(file.relative_to(ROOT / "tests").match(pattern) for pattern in NUMERIC)


@cache
def starts_ray(file: str) -> bool:
    """Whether a test file, or that of a test, has tests that are marked ``ray``."""
    if "::" in file:
        return starts_ray(file.partition("::")[0])
    return "mark.ray" in (ROOT / file).read_text()


class OneRay(LoadFileScheduling):
    """Deals out whole files; those that start Ray all go to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return "ray" if starts_ray(nodeid) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneRay:
    """Deals out the files in the order in which they were collected, see above."""
    config.option.loadscopereorder = False
    return OneRay(config, log)


def refused(*_: object) -> None:
    """In place of the training of a quick test."""
    pytest.fail("this test trains: mark it, or its module, pytest.mark.integration")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keeps the promise that quick tests train nothing."""
    if not is_quick(item):
        return (yield)
    serial = importlib.import_module("fedsim.engine.serial")
    with mock.patch.object(serial.SerialExecutor, "run", refused):
        return (yield)


@pytest.fixture(autouse=True)
def _ray_only_where_asked(request: pytest.FixtureRequest) -> Generator[None]:
    """A test that is not marked ``ray`` starts no Ray in its own process, which takes seconds."""
    ray = sys.modules.get("ray")
    if ray is None or request.node.get_closest_marker("ray"):
        yield
        return
    with mock.patch.object(
        ray, "init", side_effect=RuntimeError("Ray in a test without it")
    ) as init:
        yield
    assert not init.called, "this test starts Ray: mark it pytest.mark.ray, or give --engine serial"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of small real data sets beside the checkout; skips where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the sample data sets in {folder}, which are not here")
    return folder
