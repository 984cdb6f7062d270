"""What the commands have in common: a signal during imports."""

from __future__ import annotations

import signal

import pytest

from fedsim.cli.common import importing
from fedsim.core.errors import Interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_for_the_end_of_the_imports(number):
    """Raised within them it left the lock of logging taken, and Ray's start waited for ever."""
    before, done = signal.getsignal(number), False
    with pytest.raises(Interrupted), importing():
        signal.raise_signal(number)
        done = True
    assert done
    assert signal.getsignal(number) is before


def test_the_second_signal_does_not_wait():
    with pytest.raises(Interrupted) as raised, importing():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert raised.traceback[-1].name == "received"
