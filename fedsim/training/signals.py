"""Ctrl-C and SIGTERM: they end a run between rounds or within one, never between two rows."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fedsim.core.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Which signal came last, 0 for none, and whether it has to wait."""

    def __init__(self) -> None:
        self.number = 0
        self._wait = False

    @contextmanager
    def later(self) -> Iterator[None]:
        """Lets the first signal wait for the end of the block."""
        self._wait = True
        try:
            yield
        finally:
            self._wait = False
        if self.number:
            raise Interrupted(self.number)

    def received(self, number: int, _: FrameType | None) -> None:
        """Handles a signal."""
        again = self.number != 0
        self.number = number
        if again or not self._wait:
            raise Interrupted(number, again)


@contextmanager
def handled() -> Iterator[Interrupts]:
    """Turns both signals into :class:`Interrupted` while the block runs.

    Blocks may be nested: the innermost is in charge. Outside the main thread, where Python allows
    no handlers, nothing is changed.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number in SIGNALS:
            signal.signal(number, interrupts.received)
        yield interrupts
    except Interrupted:
        raise
    except KeyboardInterrupt as interrupt:  # Ray's, for whatever a handler raises in its calls
        raise Interrupted(interrupts.number or signal.SIGINT) from interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
