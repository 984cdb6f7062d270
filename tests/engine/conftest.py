"""One Ray for the tests of the engine, and the bytes of runs that nothing disturbs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedsim
from fedsim.config.sections import EngineConfig
from fedsim.engine.ray.pool import Session
from tests.engine import chaos


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that share one Ray come first, so that those with their own stop it once."""
    places = [i for i, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    own = [items[i] for i in places]
    own.sort(key=lambda item: "shared_ray" not in getattr(item, "fixturenames", ()))
    for i, item in zip(places, own, strict=True):
        items[i] = item


class SharedRay:
    """A session on a Ray that starts when it is first asked for, and again once it was stopped."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def session(self) -> Session:
        self._session = self._session or Session(EngineConfig())
        return self._session

    def stop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


@pytest.fixture(scope="package")
def orders() -> Iterator[Path]:
    """The folder of orders, known to all processes of the Rays of this package."""
    # a short path: Ray's sockets must stay below 108 characters
    with (
        tempfile.TemporaryDirectory(prefix="fs", dir="/tmp") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        (Path(folder) / "ray").mkdir()
        (Path(folder) / "orders").mkdir()
        patch.setenv(chaos.FOLDER, f"{folder}/orders")
        yield Path(folder) / "orders"


@pytest.fixture(scope="package")
def the_ray(orders: Path) -> Iterator[SharedRay]:
    """What the next two fixtures start and stop."""
    ray = SharedRay()
    yield ray
    ray.stop()


@pytest.fixture
def shared_ray(the_ray: SharedRay) -> Session:
    """The session on the package's Ray, with the actors that earlier tests left warm."""
    return the_ray.session()


@pytest.fixture(scope="module")
def no_ray(the_ray: SharedRay) -> None:
    """This process is connected to no Ray; the module starts its own."""
    the_ray.stop()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """The bytes of each method's run in one process, computed when first asked for."""
    known: dict[str, dict[str, bytes]] = {}

    def of(method: str) -> dict[str, bytes]:
        if method not in known:
            out = tmp_path_factory.mktemp(method) / "run"
            known[method] = chaos.bytes_of(fedsim.run(chaos.config(method, kind="serial"), out))
        return known[method]

    return of
