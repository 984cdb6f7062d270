"""What the commands have in common: a signal during imports."""

from __future__ import annotations

import signal

import pytest

from fedsim.cli.common import importing
from fedsim.core.errors import Interrupted


def imported(signals: list[int], done: list[int]) -> None:
    """Imports during which these signals come; ``done`` are those after which they went on."""
    with importing():
        for number in signals:
            signal.raise_signal(number)
            done.append(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_for_the_end_of_the_imports(number):
    """Raised within them it left the lock of logging taken, and Ray's start waited for ever."""
    before, done = signal.getsignal(number), []
    with pytest.raises(Interrupted):
        imported([number], done)
    assert done == [number]
    assert signal.getsignal(number) is before


def test_the_second_signal_does_not_wait():
    done = []
    with pytest.raises(Interrupted):
        imported([signal.SIGINT, signal.SIGINT, signal.SIGINT], done)
    assert done == [signal.SIGINT]
