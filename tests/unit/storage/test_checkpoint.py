"""Checkpoints as files: exact arrays, one writer, the last ones kept, errors never lost."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import resource
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedsim.core import files
from fedsim.core.errors import StoreError
from fedsim.server.base import RuleState
from fedsim.storage import checkpoint, client_states, tensors
from fedsim.storage.checkpoint import (
    Checkpoints,
    Fingerprint,
    Position,
    ServerState,
    decode_record,
    encode_record,
)
from fedsim.storage.client_states import ClientStates, ClientStateStore, owned
from fedsim.storage.restore import restore

ARRAYS = {
    "scalar": np.array(1.5, np.float32),
    "empty": np.zeros((0, 3), np.float64),
    "double": np.array([[1e-300, -0.0], [np.pi, np.inf]]),
    "long": np.array([-(2**62), 3]),
    "flags": np.array([True, False]),
    "half": np.array([1.5], np.float16),
    "bytes": np.arange(5, dtype=np.uint8),
    "strided": np.arange(12, dtype=np.float32).reshape(3, 4).T[::2],
    "unsigned": np.array([2**64 - 1], np.uint64),
}

DATA = np.ones(100_000)

FINGERPRINT = Fingerprint("layout", {"seed": 0})


def same(a, b) -> bool:
    """Equal to the bit, with type and shape."""
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def checkpoints(run, keep=2, budget=1e9, kept=()):
    store = ClientStateStore(run / "checkpoints", budget)
    return Checkpoints(run, FINGERPRINT, client_states=store, keep=keep, kept=kept)


def state(number=0.0, clients=None):
    params = np.full(4, number, np.float32)
    return ServerState(
        params=params,
        server=RuleState(reduction={"h": params * 2}),
        downlink={"known": np.array([True])},
        clients=ClientStates().updated(clients or {}),
    )


def advance(target, number, clients=None, tables=None):
    progress = Position(
        rounds=number,
        state=target.store_client_states(state(number, clients)),
        seconds=number / 3,
        tables=tables or {},
        device={"name": "cpu", "server": "cpu"},
    )
    target.spill(number)
    target.save(progress)
    return progress


def names(run):
    return sorted(p.name for p in (run / "checkpoints").iterdir())


def back(run, **options):
    told, handler = [], logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("fedsim").addHandler(handler)
    try:
        found, progress = restore(run, FINGERPRINT, budget=options.get("budget", 1e9), keep=2)
    finally:
        logging.getLogger("fedsim").removeHandler(handler)
    return found, progress, told


# arrays in files


def test_arrays_come_back_to_the_bit(tmp_path):
    path = tmp_path / "a.safetensors"
    digest = tensors.save(path, ARRAYS)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    found = tensors.load(path)
    official = load_file(path)
    assert set(found) == set(official) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert same(found[name], np.ascontiguousarray(array).reshape(array.shape)), name
        assert found[name].flags.writeable
        assert same(official[name], found[name]), name


def test_a_file_that_ends_too_early_is_damaged_or_gone(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors.save(path, ARRAYS)
    for length in (path.stat().st_size - 1, 20, 0):
        os.truncate(path, length)
        with pytest.raises(StoreError, match=r"a\.safetensors: cannot be read \(.+\)"):
            tensors.load(path)
    path.unlink()
    with pytest.raises(StoreError, match=r"cannot be read \(No such file or directory"):
        tensors.load(path)


@pytest.mark.parametrize("write", [files.write, lambda path, data: tensors.save(path, {"a": DATA})])
def test_a_write_that_fails_leaves_what_was_there(write, tmp_path):
    """Beyond the limit of a file's size, as on a full disk."""
    path = tmp_path / "file"
    files.write(path, b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (DATA.nbytes // 2, before[1]))
        with pytest.raises(StoreError, match=r"file: cannot be written \(File too large\)"):
            write(path, DATA.tobytes())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


# records


def test_a_record_is_damaged_by_any_flipped_bit():
    text = encode_record({"round": 3, "seconds": 0.1, "settings": {"a": None, "b": "x"}})
    assert decode_record(text) == {"round": 3, "seconds": 0.1, "settings": {"a": None, "b": "x"}}
    for i in range(len(text) - 1):  # the last one is a line end
        with pytest.raises(ValueError, match="it is damaged"):
            decode_record(text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :])


# what a checkpoint holds


@pytest.mark.parametrize("budget", [0, 1e9])
def test_everything_comes_back(tmp_path, budget):
    (tmp_path / "rounds.csv").write_text("round\n1\n")
    own = {7: ARRAYS, 2: {"personal": np.ones(3, np.float32)}}
    with checkpoints(tmp_path, budget=budget) as target:
        advance(target, 1, own, {"rounds.csv": 8})
        target.wait()
    found, progress, told = back(tmp_path, budget=budget)
    assert told == []
    assert (progress.rounds, progress.seconds, progress.device) == (
        1,
        1 / 3,
        {"name": "cpu", "server": "cpu"},
    )
    assert progress.tables == {"rounds.csv": 8}
    got = progress.state
    assert same(got.params, np.ones(4, np.float32))
    assert same(got.server.reduction["h"], np.full(4, 2, np.float32))
    assert same(got.downlink["known"], np.array([True]))
    assert set(got.clients) == {2, 7}
    for client, arrays in own.items():
        assert set(got.clients[client]) == set(arrays)
        for key, array in arrays.items():
            assert same(got.clients[client][key], np.ascontiguousarray(array).reshape(array.shape))
    found.__exit__()


def test_only_changed_states_are_written(tmp_path):
    with checkpoints(tmp_path) as target:
        advance(target, 1, {c: {"w": np.full(10, c)} for c in range(50)})
        advance(target, 2, {3: {"w": np.full(10, -3)}})
        target.wait()
        arrays = load_file(tmp_path / "checkpoints" / "clients-000002.safetensors")
        assert list(arrays) == ["3/w"]
        advance(target, 3)
        target.wait()
    assert "clients-000003.safetensors" not in names(tmp_path)
    found, progress, _ = back(tmp_path)
    assert progress.state.clients[3]["w"][0] == -3
    assert progress.state.clients[4]["w"][0] == 4
    found.__exit__()


def test_the_last_ones_are_kept_and_nothing_else_is_deleted(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for mine in ("notes.txt", "round-1.json", "round-000001.json.bak"):
        (tmp_path / "checkpoints" / mine).write_text("mine")
    with checkpoints(tmp_path, keep=3) as target:
        for number in range(1, 8):
            advance(target, number, {number: {"w": np.zeros(2)}, 0: {"w": np.zeros(50)}})
        target.wait()
    here = [n for n in names(tmp_path) if n.startswith("round-0") and n.endswith("json")]
    assert here == [f"round-{n:06d}.json" for n in (5, 6, 7)]
    for mine in ("notes.txt", "round-1.json", "round-000001.json.bak"):
        assert (tmp_path / "checkpoints" / mine).read_text() == "mine"
    for record in here:  # every file that a kept one needs is there
        content = json.loads((tmp_path / "checkpoints" / record).read_text())["checkpoint"]
        assert {*content["segments"], *content["arrays"]} <= set(names(tmp_path))


def test_milestones_stay_beside_the_newest(tmp_path):
    store = ClientStateStore(tmp_path / "checkpoints", 1e9)
    with Checkpoints(tmp_path, FINGERPRINT, client_states=store, keep=2, every=4) as target:
        for rounds in range(1, 12):
            advance(target, rounds)
    numbers = [int(p.stem.partition("-")[2]) for p in checkpoint.records(tmp_path)]
    assert numbers == [11, 10, 8, 4]


def test_without_checkpoints_the_files_of_states_stay_as_small(tmp_path):
    rng = np.random.default_rng(0)
    newest = {}
    with checkpoints(tmp_path, budget=12 * 4000) as target:
        for number in range(1, 120):
            cohort = rng.choice(60, 6, replace=False).tolist()
            changes = {c: {"w": np.full(500, 1000 * number + c)} for c in cohort}
            newest |= changes
            clients = target.store_client_states(state(number, changes)).clients
            target.spill(number)
            sizes = [p.stat().st_size for p in tmp_path.glob("checkpoints/clients-*")]
            assert sum(sizes) < 2.2 * 4000 * len(newest) + 60_000
    assert {c: own["w"][0] for c, own in clients.items()} == {
        c: own["w"][0] for c, own in newest.items()
    }


def test_spilling_leaves_what_the_last_checkpoint_needs(tmp_path):
    with checkpoints(tmp_path, budget=0) as target:
        advance(target, 1, {c: {"w": np.full(5, c)} for c in range(6)})
        for number in range(2, 9):
            target.store_client_states(
                state(number, {c: {"w": np.full(5, -number)} for c in range(6)})
            )
            target.spill(number)
    found, progress, told = back(tmp_path)
    assert (progress.rounds, told) == (1, [])
    assert [progress.state.clients[c]["w"][0] for c in range(6)] == [0, 1, 2, 3, 4, 5]
    found.__exit__()


# the thread


def test_one_at_a_time_in_the_background(tmp_path, monkeypatch):
    real, gate, begun = tensors.save, threading.Event(), threading.Event()

    def slow(path, arrays):
        begun.set()
        assert gate.wait(30)
        return real(path, arrays)

    monkeypatch.setattr(tensors, "save", slow)
    with checkpoints(tmp_path) as target:
        advance(target, 1)
        assert begun.wait(30)
        assert not list(tmp_path.glob("checkpoints/*.json"))  # nobody waited for the disk
        gate.set()
        advance(target, 2)
        assert (tmp_path / "checkpoints" / "round-000001.json").exists()
        target.wait()
    assert (tmp_path / "checkpoints" / "round-000002.json").exists()


@pytest.mark.slow
def test_states_are_read_while_their_file_is_being_written(tmp_path, monkeypatch):
    real, gate = tensors.save, threading.Event()

    def slow(path, arrays):
        assert gate.wait(30)
        return real(path, arrays)

    monkeypatch.setattr(tensors, "save", slow)
    rng, newest, moved = np.random.default_rng(0), {}, set()
    with checkpoints(tmp_path, budget=30 * 80) as target:  # of 60 clients
        for number in range(1, 60):
            cohort = rng.choice(60, 6, replace=False).tolist()
            changes = {c: {"w": np.full(10, 1000 * number + c)} for c in cohort}
            newest |= changes
            gate.set()
            clients = target.store_client_states(state(number, changes)).clients
            target.spill(number)
            gate.clear()
            zero = ServerState(params=np.zeros(4, np.float32), clients=clients)
            target.save(Position(rounds=number, state=zero))
            for segment in target.client_states.segments():
                moved |= segment.unwritten.keys() - changes.keys()
            found = {c: clients.get(c, {"w": [None]})["w"][0] for c in newest}
            assert found == {c: own["w"][0] for c, own in newest.items()}
            gate.set()
            target.wait()
    assert moved, "files with few newest states were written anew"


def test_a_wait_that_is_interrupted_forgets_nothing(tmp_path, monkeypatch):
    real, gate, written = tensors.save, threading.Event(), []

    def slow(path, arrays):
        written.append(path.name)
        assert gate.wait(30)
        return real(path, arrays)

    monkeypatch.setattr(tensors, "save", slow)
    main = threading.main_thread().ident
    with checkpoints(tmp_path) as target:
        progress = advance(target, 1)
        timer = threading.Timer(0.3, signal.pthread_kill, [main, signal.SIGINT])

        def wait():
            timer.start()
            target.wait()

        with pytest.raises(KeyboardInterrupt):  # the gate is closed: it comes while we wait
            wait()
        timer.join()
        assert target.busy
        gate.set()
        target.finish(progress)
    assert written == ["round-000001.safetensors"]


def test_the_thread_rests_after_a_checkpoint(tmp_path, monkeypatch):
    real, now = tensors.save, [100.0]

    def slow(path, arrays):
        now[0] += 2.0
        return real(path, arrays)

    monkeypatch.setattr(tensors, "save", slow)
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with checkpoints(tmp_path) as target:
        assert not target.busy
        advance(target, 1)
        target.wait()
        now[0] = 102.0 + 2.0 * (1 / checkpoint.SHARE - 1) - 0.1
        assert target.busy
        now[0] += 0.2
        assert not target.busy
        target.finish(advance(target, 2))
        assert target.newest == 2, "the last round's is not waited with"


@pytest.mark.parametrize("how", ["save", "wait", "finish"])
def test_an_error_in_the_thread_is_not_lost(tmp_path, how):
    (tmp_path / "checkpoints").write_text("in the way")
    with checkpoints(tmp_path) as target:
        progress = advance(target, 1)
        with pytest.raises(StoreError, match="checkpoints: cannot be written"):
            {
                "save": lambda: target.save(progress),
                "wait": target.wait,
                "finish": lambda: target.finish(progress),
            }[how]()


def test_what_could_not_be_written_is_written_when_there_is_space(tmp_path):
    (tmp_path / "checkpoints").write_text("in the way")
    with checkpoints(tmp_path) as target:
        advance(target, 1, {1: {"w": np.ones(2)}})
        with pytest.raises(StoreError):
            target.wait()
        (tmp_path / "checkpoints").unlink()
        progress = Position(
            rounds=2, state=target.store_client_states(state(2, {2: {"w": np.ones(2)}}))
        )
        target.finish(progress)
    found, progress, told = back(tmp_path)
    assert (progress.rounds, set(progress.state.clients), told) == (2, {1, 2}, [])
    found.__exit__()


def test_a_record_names_only_files_of_its_folder(tmp_path):
    with checkpoints(tmp_path) as target:
        advance(target, 1)
        target.wait()
    record = max((tmp_path / "checkpoints").glob("*.json"))
    content = decode_record(record.read_bytes())
    for changes in (
        {"arrays": {"../rounds.csv": ""}},
        {"segments": {"../clients-000001.safetensors": {"sha256": "", "clients": []}}},
    ):
        record.write_bytes(encode_record(content | changes))
        with pytest.raises(StoreError, match=r"^none of 1 checkpoints of .*no file of a checkp"):
            back(tmp_path)


def own(number, size=10):
    return {"w": np.full(size, number, np.float64)}


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


def test_states_are_read_from_their_files(tmp_path):
    store = ClientStateStore(tmp_path, 0)
    states = {c: {"w": np.full((2, 3), c, np.float32), "n": np.array([c, -c])} for c in range(9)}
    states[7] |= {"empty": np.zeros((0, 4)), "one": np.array(2.5)}
    store.put({8: own(1), 3: own(2)})
    write(store, "a")
    store.put(states)
    write(store, "b")
    store.put({3: own(3)})
    write(store, "c")
    states[3] = own(3)
    other = ClientStateStore(tmp_path, 0)
    other.load([(segment, sorted(clients)) for segment, clients in store.segments().items()])
    for each in (store, other):
        assert (each.unsaved_bytes, set(each)) == (0, set(states))
        for client, state in states.items():
            found = each[client]
            assert found.keys() == state.keys()
            assert all(same(found[key], array) for key, array in state.items())
            found[next(iter(found))][...] = 0  # a method may write to what it is given
        assert each[7]["one"] == 2.5


@pytest.mark.parametrize("left", [0, 5, 40, -8])
def test_a_file_of_states_that_is_cut_is_named(left, tmp_path):
    store = ClientStateStore(tmp_path, 0)
    store.put({1: own(1)})
    write(store, "a")
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:left])
    with pytest.raises(StoreError, match=rf"{tmp_path / 'a'}: cannot be read"):
        store[1]
