"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling

# One thread for torch, here and in what tests start: small tensors gain nothing from more, and
# several test processes would fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs with Ctrl-C ignored, and so would be what tests start from one.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Together(LoadFileScheduling):
    """With several processes one has the tests of the engine, which start Ray; files stay whole."""

    def _split_scope(self, nodeid: str) -> str:
        return "engine" if nodeid.startswith("tests/engine/") else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Together:
    """Deals the tests out to the processes."""
    return Together(config, log)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of small real data sets beside the checkout; skips where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the sample data sets in {folder}, which are not here")
    return folder
