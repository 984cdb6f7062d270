"""A thread for what nobody waits for: one thing at a time, in order, and no error is lost."""

import threading
import time
from functools import partial

import pytest

from fedsim.core.background import Background
from fedsim.core.errors import StoreError


def full() -> None:
    raise StoreError("x: cannot be written (No space left on device)")


def test_one_thing_at_a_time_and_in_order() -> None:
    done, gate = list[int](), threading.Event()

    def first() -> None:
        assert gate.wait(30)
        done.append(0)

    with Background("test") as background:
        background.begin(first)
        assert background.busy
        assert not done  # nobody waited for it
        gate.set()
        for number in range(1, 20):
            background.begin(partial(done.append, number))
            assert done[:number] == list(range(number))
        background.wait()
        assert not background.busy
        background.wait()
    assert done == list(range(20))


def test_leaving_waits_for_what_is_being_done() -> None:
    done = list[str]()
    before = threading.active_count()
    with Background("test") as background:
        background.begin(lambda: (time.sleep(0.05), done.append("late"))[1])
    assert done == ["late"]
    assert threading.active_count() == before


def test_an_error_comes_once_with_the_next_thing_or_the_end_of_waiting() -> None:
    done = list[int]()
    with Background("test") as background:
        background.begin(full)
        with pytest.raises(StoreError, match="No space left"):
            background.begin(partial(done.append, 1))
        assert not done  # what was to follow it is not begun
        background.begin(full)
        with pytest.raises(StoreError, match="No space left"):
            background.wait()
        background.begin(partial(done.append, 2))
        background.wait()
    assert done == [2]
