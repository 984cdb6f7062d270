"""Values that the runs of one process have in common, such as their data, made once.

Nothing is kept unless a driver of several runs says so (:func:`across_runs`): a single run would
hold memory for nothing. What is kept is valid as long as the driver lives, as imported code is: it
does not look whether a file has changed since.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
MOST = {"model": 4, "cut": 4, "features": 4}
"""How many values of a kind are kept, where that is more than one: those that were used last."""
_kept: dict[str, dict[Hashable, Any]] | None = None


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
    """What ``make`` returns, or what it returned before for an equal key; nobody may change it.

    The oldest value is let go before another one is made.
    """
    if _kept is None:
        return make()
    values = _kept.setdefault(kind, {})
    if key in values:
        values[key] = value = values.pop(key)  # now the last one
    else:
        while len(values) >= MOST.get(kind, 1):
            del values[next(iter(values))]
        values[key] = value = make()
    return value


def copied(kind: str, key: Hashable, make: Callable[[], T]) -> T:
    """The same for a value that the caller may change: a copy of its own, by pickle.

    Unlike :func:`copy.deepcopy`, pickle refuses what refers to the value from outside, such as a
    network with a hook that is a closure. That is made anew each time.
    """
    if _kept is None:
        return make()

    def pickled() -> bytes | None:
        try:
            return pickle.dumps(make())
        except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
            return None

    data = once(kind, key, pickled)
    return make() if data is None else pickle.loads(data)
