"""One thread for what nobody has to wait for: one thing at a time, and no error is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from contextlib import AbstractContextManager


class Background(AbstractContextManager["Background"]):
    """A thread, by name, that does one thing at a time; leaving the block waits for it."""

    def __init__(self, name: str) -> None:
        self._pool = futures.ThreadPoolExecutor(1, name)
        self._current: futures.Future[None] | None = None

    def __exit__(self, *_: object) -> None:
        """Waits for what is being done, also after a second Ctrl-C."""
        self._pool.shutdown()

    @property
    def busy(self) -> bool:
        """Whether something is being done."""
        return self._current is not None and not self._current.done()

    def begin(self, call: Callable[[], None]) -> None:
        """Begins a thing, once the one before is done; raises what :meth:`wait` does."""
        self.wait()
        self._current = self._pool.submit(call)

    def wait(self) -> None:
        """Returns when nothing is being done; raises once what the last thing did."""
        if self._current is not None:
            futures.wait([self._current])  # an interrupt here leaves it to the next call
            current, self._current = self._current, None
            current.result()
