"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# One thread for torch, here and in what tests start: small tensors gain nothing from more, and
# several test processes would fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs with Ctrl-C ignored, and so would be what tests start from one.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before the plugin looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes: one has the tests that start Ray, a file stays together otherwise."""
    for item in items:
        together = "ray" if item.get_closest_marker("ray") else str(item.path)
        item.add_marker(pytest.mark.xdist_group(together))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of small real data sets beside the checkout; skips where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the sample data sets in {folder}, which are not here")
    return folder
