"""Values that the runs of one process have in common, such as their data, made once.

Only a driver of several runs keeps them (:func:`across_runs`), as long as it lives, as imported
code is: it does not look whether a file has changed since.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
_kept: dict[str, tuple[Hashable, Any]] | None = None


@contextmanager
def across_runs() -> Iterator[None]:
    """Values are kept in the block, and let go at its end."""
    global _kept  # noqa: PLW0603 - this module is the one place of them
    before, _kept = _kept, {}
    try:
        yield
    finally:
        _kept = before


def once(kind: str, key: Hashable, make: Callable[[], T]) -> T:
    """What ``make`` returns, or what it returned the last time for an equal key, unchanged."""
    if _kept is None:
        return make()
    if kind not in _kept or _kept[kind][0] != key:
        _kept.pop(kind, None)  # the memory is free before the next one is made
        _kept[kind] = key, make()
    value: T = _kept[kind][1]
    return value


def copied(kind: str, key: Hashable, make: Callable[[], T]) -> T:
    """The same as a copy of its own, by pickle; what pickle refuses is made anew."""
    if _kept is None:
        return make()

    def pickled() -> bytes | None:
        try:
            return pickle.dumps(make())
        except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
            return None

    data = once(kind, key, pickled)
    return make() if data is None else pickle.loads(data)
