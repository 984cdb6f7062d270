"""Client states: values for the rounds, a budget of memory, files for the rest."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.core.errors import StoreError
from fedsim.storage import client_states, tensors
from fedsim.storage.client_states import ClientStates, ClientStateStore, num_bytes, owned


def own(number, size=10):
    return {"w": np.full(size, number, np.float64)}


def in_memory(store):
    """Bytes of the states in memory."""
    return sum(map(num_bytes, store._memory.values()))


def live(store):
    """The clients whose newest state each segment holds, by the segment's name."""
    return {segment.path.name: set(clients) for segment, clients in store.segments().items()}


def write(store, name):
    store.new_segment(name)
    for segment in store.segments():
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


def test_changed_states_hide_stored_ones(tmp_path):
    store = ClientStateStore(tmp_path, 1e9)
    store.put({1: own(1), 2: own(2)})
    states = ClientStates(store).updated({2: own(-2), 1: {}, 3: own(3)})
    assert set(states) == {2, 3}
    assert [states[c]["w"][0] for c in (2, 3)] == [-2, 3]
    assert (set(store), store[2]["w"][0]) == ({1, 2}, 2)
    store.put(states.changed)
    assert set(store) == {2, 3}
    assert dict(ClientStates(store)) == dict(states)


def test_new_states_are_taken_all_or_none(tmp_path, monkeypatch):
    store = ClientStateStore(tmp_path, 1e9)
    store.put({1: own(1), 2: own(2)})
    write(store, "a")
    before = {name: repr(value) for name, value in vars(store).items()}
    room = iter([True, True])

    def full(array):
        if next(room, None) is None:
            raise MemoryError
        return owned(array)

    monkeypatch.setattr(client_states, "owned", full)
    with pytest.raises(MemoryError):
        store.put({1: {}, 2: own(-2), 3: own(3), 4: own(4)})
    assert {name: repr(value) for name, value in vars(store).items()} == before


def test_those_changed_longest_ago_leave_memory_first(tmp_path):
    store = ClientStateStore(tmp_path, 240)  # three states of 80 bytes
    store.put({c: own(c) for c in range(3)})
    assert store.evict()
    store.put({0: own(10)})
    store.put({3: own(3)})
    assert not store.evict()  # nothing is in a file yet
    assert in_memory(store) == 320
    write(store, "a")
    assert store.evict()
    assert in_memory(store) == 240
    (tmp_path / "a").rename(tmp_path / "gone")
    assert [store[c]["w"][0] for c in (0, 2, 3)] == [10, 2, 3]
    with pytest.raises(StoreError, match="cannot be read"):
        store[1]
    (tmp_path / "gone").rename(tmp_path / "a")
    assert store[1]["w"].tolist() == [1.0] * 10
    assert in_memory(store) == 240  # reading brings nothing back
    assert set(store) == {0, 1, 2, 3}


def test_memory_is_bounded_for_many_clients(tmp_path):
    rng = np.random.default_rng(0)
    store, newest = ClientStateStore(tmp_path, 100 * 80), {}
    for number in range(60):
        cohort = rng.choice(1000, 40, replace=False).tolist()
        changes = {c: own(1000 * number + c) for c in cohort}
        newest |= changes
        store.put(changes)
        if not store.evict():
            write(store, f"s{number}")
        assert store.evict()
        assert in_memory(store) <= 100 * 80
    assert len(store) == len(newest) > 800
    for client, state in newest.items():
        np.testing.assert_array_equal(store[client]["w"], state["w"])


def test_no_more_old_states_are_moved_than_new_ones_are_written(tmp_path):
    store = ClientStateStore(tmp_path, 0)
    store.put({c: own(c) for c in range(100)})
    write(store, "a")
    store.put({c: {} for c in range(60)} | {99: own(-99)})
    write(store, "b")  # 39 of 100 states in the first file live: too many for a file of one
    assert live(store)["b"] == {99}
    store.put({c: own(c) for c in range(100, 140)})
    write(store, "c")
    assert live(store)["c"] == {*range(60, 99), *range(100, 140)}
    assert "a" not in live(store)
    assert [store[c]["w"][0] for c in (60, 98, 99, 139)] == [60, 98, -99, 139]


def test_of_written_files_the_newest_states_come_into_memory(tmp_path):
    store = ClientStateStore(tmp_path, 0)
    for number in range(3):
        store.put({c: own(c) for c in range(4 * number, 4 * number + 4)})
        write(store, str(number))
    other = ClientStateStore(tmp_path, 6 * 80)
    other.load([(segment, sorted(clients)) for segment, clients in store.segments().items()])
    assert in_memory(other) == 6 * 80
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


def test_a_file_is_searched_for_its_clients_once(tmp_path, monkeypatch):
    store = ClientStateStore(tmp_path, 0)
    states = {c: {"w": np.full((2, 3), c, np.float32), "n": np.array([c, -c])} for c in range(50)}
    states[7] |= {"empty": np.zeros((0, 4)), "one": np.array(2.5)}
    store.put(states)
    write(store, "a")
    store.evict()
    looked, entries = [], tensors.entries
    monkeypatch.setattr(tensors, "entries", lambda path: looked.append(path) or entries(path))
    for client in (7, 0, 49):
        found = store[client]
        assert {k: (a.dtype, a.shape, a.tolist()) for k, a in found.items()} == {
            k: (a.dtype, a.shape, a.tolist()) for k, a in states[client].items()
        }
    assert looked == [tmp_path / "a"]
    found["w"][0] = 9  # a method may write to what it is given


@pytest.mark.parametrize("left", [0, 5, 40, -8])
def test_a_file_of_states_that_is_cut_is_named(left, tmp_path):
    store = ClientStateStore(tmp_path, 0)
    store.put({1: own(1)})
    write(store, "a")
    store.evict()
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:left])
    with pytest.raises(StoreError, match=rf"{tmp_path / 'a'}: cannot be read"):
        store[1]
