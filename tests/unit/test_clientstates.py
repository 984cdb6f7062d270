"""Client states: values for the rounds, a budget of memory, files for the rest."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.core.errors import StoreError
from fedsim.storage import client_states
from fedsim.storage.client_states import ClientStates, Shelf, compact
from fedsim.training import evaluate


def own(number, size=10):
    return {"w": np.full(size, number, np.float64)}


def write(shelf, name):
    shelf.collect(name)
    for segment in shelf.segments.values():
        segment.write()


def test_an_update_leaves_the_value_before_as_it_was():
    first = ClientStates().updated({1: own(1), 2: own(2)})
    second = first.updated({2: own(-2), 3: own(3), 1: {}, 9: {}})
    assert (set(first), set(second)) == ({1, 2}, {2, 3})
    assert (first[2]["w"][0], second[2]["w"][0]) == (2, -2)
    assert 1 in first
    assert 1 not in second
    assert 9 not in second
    assert (len(first), len(second)) == (2, 2)
    assert second.get(1) is None
    for missing in (1, 9):
        with pytest.raises(KeyError):
            second[missing]


def test_over_a_shelf_the_fresh_ones_count(tmp_path):
    shelf = Shelf(tmp_path, 1e9)
    shelf.put({1: own(1), 2: own(2)})
    states = ClientStates(shelf).updated({2: own(-2), 1: {}, 3: own(3)})
    assert set(states) == {2, 3}
    assert [states[c]["w"][0] for c in (2, 3)] == [-2, 3]
    assert (set(shelf), shelf[2]["w"][0]) == ({1, 2}, 2)
    shelf.put(states.fresh)
    assert set(shelf) == {2, 3}
    assert dict(ClientStates(shelf)) == dict(states)


def test_an_error_on_the_way_to_a_state_is_not_a_client_without_one():
    class Broken(dict):
        def __getitem__(self, client):
            raise KeyError("a defect")

    states = ClientStates(Broken({1: own(1)}))
    assert states.get(2) is None
    assert states.get(2, {}) == {}
    with pytest.raises(KeyError, match="a defect"):
        states.get(1, {})


def test_new_states_are_taken_all_or_none(tmp_path, monkeypatch):
    shelf = Shelf(tmp_path, 1e9)
    shelf.put({1: own(1), 2: own(2)})
    write(shelf, "a")
    before = vars(shelf) | {"segments": {n: set(s.live) for n, s in shelf.segments.items()}}
    before = {name: repr(value) for name, value in before.items()}
    room = iter([True, True])

    def full(array):
        if next(room, None) is None:
            raise MemoryError
        return compact(array)

    monkeypatch.setattr(client_states, "compact", full)
    with pytest.raises(MemoryError):
        shelf.put({1: {}, 2: own(-2), 3: own(3), 4: own(4)})
    after = vars(shelf) | {"segments": {n: set(s.live) for n, s in shelf.segments.items()}}
    assert {name: repr(value) for name, value in after.items()} == before


def test_those_changed_longest_ago_leave_memory_first(tmp_path):
    shelf = Shelf(tmp_path, 240)  # three states of 80 bytes
    shelf.put({c: own(c) for c in range(3)})
    assert shelf.evict()
    shelf.put({0: own(10)})
    shelf.put({3: own(3)})
    assert not shelf.evict()  # nothing is in a file yet
    assert shelf.bytes_in_memory == 320
    write(shelf, "a")
    assert shelf.evict()
    assert shelf.bytes_in_memory == 240
    (tmp_path / "a").rename(tmp_path / "gone")
    assert [shelf[c]["w"][0] for c in (0, 2, 3)] == [10, 2, 3]
    with pytest.raises(StoreError, match="cannot be read"):
        shelf[1]
    (tmp_path / "gone").rename(tmp_path / "a")
    assert shelf[1]["w"].tolist() == [1.0] * 10
    assert shelf.bytes_in_memory == 240  # reading brings nothing back
    assert set(shelf) == {0, 1, 2, 3}


def test_memory_is_bounded_for_many_clients(tmp_path):
    rng = np.random.default_rng(0)
    shelf, newest = Shelf(tmp_path, 100 * 80), {}
    for number in range(60):
        cohort = rng.choice(1000, 40, replace=False).tolist()
        changes = {c: own(1000 * number + c) for c in cohort}
        newest |= changes
        shelf.put(changes)
        if not shelf.evict():
            write(shelf, f"s{number}")
        assert shelf.evict()
        assert shelf.bytes_in_memory <= 100 * 80
    assert len(shelf) == len(newest) > 800
    for client, state in newest.items():
        np.testing.assert_array_equal(shelf[client]["w"], state["w"])


def test_no_more_old_states_are_moved_than_new_ones_are_written(tmp_path):
    shelf = Shelf(tmp_path, 0)
    shelf.put({c: own(c) for c in range(100)})
    write(shelf, "a")
    shelf.put({c: {} for c in range(60)} | {99: own(-99)})
    write(shelf, "b")  # 39 of 100 states in the first file live: too many for a file of one
    assert list(shelf.segments["b"].live) == [99]
    shelf.put({c: own(c) for c in range(100, 140)})
    write(shelf, "c")
    assert shelf.segments["c"].live == {*range(60, 99), *range(100, 140)}
    assert not shelf.segments["a"].live
    assert [shelf[c]["w"][0] for c in (60, 98, 99, 139)] == [60, 98, -99, 139]


def test_of_written_files_the_newest_states_come_into_memory(tmp_path):
    shelf = Shelf(tmp_path, 0)
    for number in range(3):
        shelf.put({c: own(c) for c in range(4 * number, 4 * number + 4)})
        write(shelf, str(number))
    other = Shelf(tmp_path, 6 * 80)
    other.adopt([(segment, sorted(segment.live)) for segment in shelf.segments.values()])
    assert other.bytes_in_memory == 6 * 80
    assert other.evict()
    (tmp_path / "0").unlink()
    (tmp_path / "2").unlink()
    assert [other[c]["w"][0] for c in (4, 5, 6, 7, 8, 11)] == [4, 5, 6, 7, 8, 11]
    other.put({0: own(0)})
    other.evict()
    (tmp_path / "1").unlink()
    assert other[7]["w"][0] == 7
    with pytest.raises(StoreError):
        other[6]  # of those in memory the one changed longest ago


def test_a_state_without_values_needs_no_room(tmp_path):
    shelf = Shelf(tmp_path, 0)
    shelf.put({1: {"w": np.zeros(0)}, 2: own(2)})
    write(shelf, "a")
    shelf.put({1: {"w": np.zeros((0, 4))}, 2: own(3)})
    write(shelf, "b")
    assert shelf.evict()
    assert shelf[1]["w"].shape == (0, 4)
    assert shelf[2]["w"][0] == 3


def test_views_do_not_keep_what_they_are_views_of():
    big = np.arange(1000.0)
    assert compact(big) is big
    small = compact(big[:3])
    assert small.flags.owndata
    assert small.tolist() == [0, 1, 2]


def test_models_are_evaluated_some_at_a_time(monkeypatch):
    shared = np.zeros(25)  # 200 bytes; each own state 80
    monkeypatch.setattr(evaluate, "MEMORY", 200 + 3 * 80)
    loaded = []

    def candidate(client):
        def load():
            loaded.append(client)
            return shared, own(client)

        return evaluate.Candidate(client, load)

    parts = evaluate.batches({c: candidate(c) for c in range(8)})
    assert list(next(parts)) == [0, 1, 2]
    assert loaded == [0, 1, 2, 3]  # the others when their turn comes
    assert [list(some) for some in parts] == [[3, 4, 5], [6, 7]]
    monkeypatch.setattr(evaluate, "MEMORY", 1)
    one = evaluate.batches({c: candidate(c) for c in range(3)})
    assert [list(some) for some in one] == [[0], [1], [2]]
