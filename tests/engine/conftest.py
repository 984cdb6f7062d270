"""A Ray whose processes can be disturbed, and the bytes of runs that are not."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

import fedsim
from fedsim.config.sections import EngineConfig
from fedsim.engine.ray.pool import Session
from tests.engine import chaos


@pytest.fixture(scope="module")
def plain_ray():
    """One embedded Ray for the module, with a temporary directory of its own."""
    # a short path: Ray's sockets must stay below 108 characters
    with (
        tempfile.TemporaryDirectory(prefix="fs", dir="/tmp") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        with Session(EngineConfig()) as session:
            yield session


@pytest.fixture(scope="module")
def orders():
    """The folder of orders, known to all processes of the module's Ray."""
    with (
        tempfile.TemporaryDirectory(prefix="fs", dir="/tmp") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        (Path(folder) / "ray").mkdir()
        (Path(folder) / "orders").mkdir()
        patch.setenv(chaos.FOLDER, f"{folder}/orders")
        yield Path(folder) / "orders"


@pytest.fixture(scope="module")
def undisturbed(orders, tmp_path_factory):
    """The bytes of each method's run in one process, computed when first asked for."""
    known: dict[str, dict[str, bytes]] = {}

    def of(method: str) -> dict[str, bytes]:
        if method not in known:
            out = tmp_path_factory.mktemp(method) / "run"
            known[method] = chaos.bytes_of(fedsim.run(chaos.config(method, kind="serial"), out))
        return known[method]

    return of
