"""Whether a run's results are those of its settings: some of its rounds are done again.

The rounds are drawn by a seed. Each starts from the nearest earlier checkpoint, and every round on
the way is compared as well: its rows in all tables cell by cell, and the model after it by its
SHA-256 in models.csv. Where processor or versions are not those of the run, last digits may differ:
such a run is never verified, but consistent within what :mod:`fedsim.audit.tables` tolerates.
"""

from __future__ import annotations

import csv
import math
import os
import reprlib
import secrets
import shutil
import stat
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedsim.audit.rerun import Rerun, opened
from fedsim.audit.tables import (
    COMPARED,
    Comparison,
    Difference,
    Recorded,
    is_close,
    is_rounded,
    recorded,
)
from fedsim.config import experiments
from fedsim.core import files
from fedsim.core.errors import ConfigError, FedsimError, described
from fedsim.core.files import CLIENTS, MODEL
from fedsim.core.imports import refused
from fedsim.core.machine import kind_of, other_kind
from fedsim.core.reading import parse_json
from fedsim.identity.environment import NUMERICAL
from fedsim.identity.provenance import SHOWN, functions_in
from fedsim.storage import directories, final_models, status, tables
from fedsim.storage.checkpoint import ServerState, read_record
from fedsim.storage.run_dir import RunWriter, to_json
from fedsim.storage.status import RunStatus
from fedsim.storage.tables import cell
from fedsim.training.driver import write_split
from fedsim.training.final_models import export_models
from fedsim.training.finetune import final_scores
from fedsim.training.personal import with_own_models
from fedsim.training.round import context, model_sha256
from fedsim.training.rows import RoundLog
from fedsim.training.setup import describe
from fedsim.training.summary import summarise

KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""What is no file, folder or link."""
OF_THE_PLACE = frozenset({"run_id", "total_seconds", "seconds_to_target"})
"""Columns of summary.csv that say where and how fast the run was done."""
FACTS = (
    *("classes", "sites", "heldout_clients", "malicious_clients", "head_drawn_anew"),
    *("weights_sha256", "frozen_sha256", "trace_sha256", "clients_sha256"),
)
"""Keys of env.json that follow from data, settings and files."""
REFUSED = (
    "is code, and nothing of it was run; read it, then allow it with --allow-code (in Python "
    "allow_code=True)"
)
"""What is said of a function that a run names."""
VERIFIED, CONSISTENT, DIFFERS = "verified", "consistent", "differs"
"""The outcomes."""


class NotPossible(FedsimError):
    """A run that cannot be verified here; says why."""

    exit_status = 2


@dataclass(kw_only=True)
class Verification(Comparison):
    """What a run was compared with; what is counted says :class:`Comparison`."""

    run: Path
    seed: int
    rounds: int  # that are complete
    drawn: Sequence[int] = ()  # of these, by the seed
    executed: list[tuple[int, int]] = field(default_factory=list)  # first and last of a stretch
    differences: list[Difference] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    planned: int = 0
    finished: bool = True

    @property
    def outcome(self) -> str:
        """``verified``, ``consistent`` (as far as rounding on another processor), ``differs``."""
        return DIFFERS if self.differences else CONSISTENT if self.others else VERIFIED

    @property
    def verified(self) -> bool:
        """Whether everything that was compared is the same, byte for byte."""
        return self.outcome == VERIFIED

    @property
    def num_executed(self) -> int:
        """How many rounds were done again."""
        return sum(last - first + 1 for first, last in self.executed)

    @property
    def coverage(self) -> float:
        """Probability that one wrong round, anywhere in the run, was among those drawn."""
        return len(self.drawn) / self.rounds


def verify(
    run: Path | str,
    *,
    rounds: int | Literal["all"] = 3,
    seed: int | None = None,
    data_dir: str | None = None,
    overrides: Mapping[str, object] | None = None,
    accept_changed_code: bool = False,
    allow_code: bool = False,
) -> Verification:
    """Does rounds of a run again and compares all that they give with what the run says.

    Nothing is written into its directory, and only fedsim's own code is run.

    Args:
        run: its directory; the run may be unfinished.
        rounds: how many are drawn.
        seed: of the draw; None: a new one.
        data_dir: where the data are now, in place of ``data.dir``.
        overrides: settings of where the work is done, by dotted key; see
            :func:`~fedsim.audit.rerun.opened`.
        accept_changed_code: go on where the user's code is not that of the run.
        allow_code: also run the functions (``module:function``) that the run's settings name, with
            all rights of this process.

    Raises:
        NotPossible: the run has no rounds, or code, data or models that it needs are not here, or
            it names code that is not allowed.
    """
    path = Path(run)
    seed = secrets.randbelow(2**31) if seed is None else seed
    check_files(path)
    try:
        done = len(status.rounds(path))
        if not done:
            raise NotPossible(f"{path}: no round is complete")
        named = functions_in(experiments.read(path / "config.yaml").settings)
        if named and not allow_code:
            raise NotPossible(f"{path / 'config.yaml'}: {', '.join(named)} {REFUSED}")
        result = Verification(run=path, seed=seed, rounds=done, drawn=_draw(seed, done, rounds))
        with (
            nullcontext() if allow_code else refused(REFUSED),
            opened(
                path, overrides, data_dir=data_dir, accept_changed_code=accept_changed_code
            ) as rerun,
            tempfile.TemporaryDirectory() as folder,
        ):
            _compare(result, rerun, Path(folder))
    except Difference as difference:
        result.differences.append(difference)
    except FedsimError as error:
        raise NotPossible(str(error)) from error
    except (OSError, ValueError, csv.Error, AttributeError, LookupError, TypeError) as error:
        raise NotPossible(f"{path}: not what fedsim writes ({described(error)})") from error
    return result


def check_files(folder: Path) -> None:
    """Refuses a folder of somebody else's that cannot be read safely, by a NotPossible: something
    in it is a pipe, a socket or a device, or a link that leads out of it."""
    inside = folder.resolve()
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *names)):
            target = Path(os.path.realpath(path))  # resolve() fails at links in a circle
            if path.is_symlink() and not target.is_relative_to(inside):
                raise NotPossible(f"{path}: a link that leads out of {folder}")
            if kind := KINDS.get(stat.S_IFMT(path.lstat().st_mode)):
                raise NotPossible(f"{path}: {kind}, not a regular file")


def runs_of(folder: Path, sample: int, seed: int) -> list[Path]:
    """The run of a directory itself, or so many finished runs of a sweep, drawn by the seed."""
    check_files(folder)
    try:
        runs = [each for each in directories.find(folder) if isinstance(each, RunStatus)]
    except FedsimError as error:
        raise NotPossible(str(error)) from error
    if not runs:
        raise ConfigError(f"{folder}: holds no run")
    if [run.path for run in runs] == [folder]:
        return [folder]
    finished = [run.path for run in runs if run.state == status.FINISHED]
    if not finished:
        raise NotPossible(f"{folder}: none of its {len(runs)} runs is finished")
    return [finished[number - 1] for number in _draw(seed, len(finished), sample)]


def _draw(seed: int, done: int, count: int | Literal["all"]) -> list[int]:
    """Numbers of rounds, from 1, ascending."""
    if count == "all" or count >= done:
        return list(range(1, done + 1))
    drawn = np.random.default_rng(seed).choice(done, count, replace=False)
    return sorted((drawn + 1).tolist())


def _compare(result: Verification, rerun: Rerun, scratch: Path) -> None:
    """All that data, settings and the drawn rounds give with what the run says."""
    store, setup = rerun.store, rerun.setup
    result.planned, result.finished = setup.config.train.rounds, store.finished
    _compare_environment(result, rerun)
    run = recorded(store.path)
    _compare_record(result, rerun)
    _compare_split(result, rerun, scratch)
    has_model = setup.config.engine.save_model and (store.finished or (store.path / MODEL).exists())
    last = {rerun.rounds} if result.others and has_model else set()
    state = _compare_rounds(result, rerun, run, {*result.drawn, *last})
    if result.executed[-1][1] == result.rounds and (store.finished or has_model):
        _compare_models(result, rerun, state, scratch)
    if has_model:
        vector = final_models.load_vector(store.path, setup.layout)
        if not _is_named(run, rerun.rounds, vector):
            raise Difference(MODEL, "is not the model of the last row of models.csv")
    if store.finished:
        _compare_results(result, rerun)


def _compare_environment(result: Verification, rerun: Rerun) -> None:
    """env.json with what data, settings and this machine give; notes what it does not say."""
    before = rerun.store.read_environment()
    now = parse_json(to_json(describe(rerun.setup) | dict(rerun.executor.environment)))
    parts = [before, *before.get("resumed", [])]  # the beginning, each time that it went on
    others: list[str] = []
    for part in parts:
        there, here = (
            ", ".join(map(str, each.get("processor", now["processor"]).values()))
            for each in (part, now)
        )
        others.append(f"processor {here} instead of {there}" if here != there else "")
        others.append(other_kind(kind_of(part), kind_of(now)))
        others += [
            f"{name} {now['packages'].get(name)} instead of {version}"
            for name, version in part.get("packages", {}).items()
            if name in NUMERICAL and now["packages"].get(name) != version
        ]
        for key in FACTS:
            if key in part and part[key] != now.get(key):
                words = (reprlib.repr(value) for value in (part[key], now.get(key)))
                raise Difference(f"env.json, {key}", *words)
    result.others = "; ".join(filter(None, dict.fromkeys(others)))
    if not before:
        result.not_compared.append("env.json is missing: processor, versions, code and data")
        return
    result.not_compared += [
        f"env.json does not say {key!r}"
        for key in ("processor", "packages", "data", "code", *FACTS)
        if now.get(key) not in (None, {}) and key not in before
    ]
    newest = before | parts[-1]
    result.not_compared += [
        f"{key} {str(newest.get(key))[:SHOWN]} in env.json, {str(now[key])[:SHOWN]} here"
        for key in ("fedsim", "git_commit")
        if newest.get(key) != now[key]
    ]


def _compare_record(result: Verification, rerun: Rerun) -> None:
    """Tables and settings with what the newest intact checkpoint says of them."""
    number, record = 0, dict[str, Any]()
    for rounds, path in rerun.checkpoints().items():
        with suppress(ValueError):  # damaged: rounds begin at another one
            number, record = rounds, read_record(path)
    there = {
        table: entry
        for table, entry in record.get("digests", {}).items()
        if table in COMPARED and (result.run / f"{table}.csv").exists()
    }
    names = f"is not what the checkpoint of round {number} names"
    result.differences += [
        Difference(path.name, names) for path in tables.changed_tables(result.run, there)
    ]
    settings = rerun.fingerprint.settings
    for key, value in record.get("settings", {}).items():
        if settings.get(key, value) != value:
            expected = f"{value!r} as in the checkpoint of round {number}"
            raise Difference(f"config.yaml, {key}", repr(settings[key]), expected)


def _compare_split(result: Verification, rerun: Rerun, scratch: Path) -> None:
    """partition.csv, split.csv, vocabulary.json and preprocessing.json with what the data give."""
    fresh = scratch / "split"
    fresh.mkdir()
    write_split(rerun.setup, RunWriter(fresh))
    if not (result.run / "partition.csv").exists():
        raise Difference("partition.csv", "is missing")
    names = [path.name for path in sorted(fresh.iterdir())]
    for name in (*names, "timings.csv"):
        theirs = result.run / name
        if not theirs.exists():
            result.not_compared.append(f"{name} is missing")
        elif name in names and not _same(fresh / name, theirs):
            raise Difference(name, "is not what data and settings give")


def _is_named(run: Recorded, rounds: int, params: np.ndarray) -> bool:
    """Whether a model is the one that models.csv names after so many rounds, if any."""
    rows = run.get("models", {}).get(rounds, [])
    return all(row["sha256"] == model_sha256(params) for _, row in rows)


def _compare_rounds(
    result: Verification, rerun: Rerun, run: Recorded, wanted: Collection[int]
) -> ServerState:
    """The wanted rounds, and those from the checkpoint before each, with what the run says of them;
    the state after the last one."""
    checkpoints, errors, lost = rerun.checkpoints(), result.run / "errors.csv", set()
    if rerun.setup.config.engine.on_client_failure == "drop" and errors.exists():
        lost = {row["round"] for row in tables.read(errors)}  # which is not lost again
    state, first, done = rerun.start, 1, 0
    for last in sorted(wanted):
        if any(done < rounds < last for rounds in checkpoints):
            position = rerun.nearest(last - 1)
            if position.rounds > done:
                result.executed += [(first, done)] if done else []
                state, first, done = position.state, position.rounds + 1, position.rounds
                if not _is_named(run, done, state.params):
                    raise Difference(
                        f"checkpoint of round {done}", "its model is not in models.csv"
                    )
        for number in range(done + 1, last + 1):
            state, log = rerun.step(state, number)
            if str(number) in lost:
                raise NotPossible(f"{result.run}: round {number} lost a client's work (errors.csv)")
            result.compare(run, log)
            if result.others and number in checkpoints:
                passed = rerun.nearest(number)
                if passed.rounds == number and not is_close(state.params, passed.state.params):
                    raise Difference(f"checkpoint of round {number}", "its model is too far off")
        done = last
    result.executed.append((first, done))
    return state


def _compare_models(result: Verification, rerun: Rerun, state: ServerState, scratch: Path) -> None:
    """The files that a run writes after its last round, byte for byte."""
    if result.others and rerun.setup.config.engine.save_model:
        vector = final_models.load_vector(result.run, rerun.setup.layout)
        if not is_close(state.params, vector):
            raise Difference(MODEL, "is too far off")
    if result.others:
        return
    shutil.copyfile(result.run / "rounds.csv", scratch / "rounds.csv")
    store = RunWriter(scratch)
    if rerun.setup.config.engine.save_model:
        ctx = context(rerun.setup, rerun.rounds)
        own = with_own_models(rerun.setup, rerun.executor, state, ctx)
        export_models(rerun.setup, store, own, rerun.rounds)
    if rows := final_scores(rerun.setup, rerun.executor, state, RoundLog(rerun.rounds)):
        store.write_final_clients(rows)
    for name in (MODEL, CLIENTS, "final_clients.csv"):
        theirs = result.run / name
        if (result.finished or theirs.exists()) and not _same(scratch / name, theirs):
            raise Difference(name, "is not what the last round gives")


def _same(one: Path, two: Path) -> bool:
    """Whether both are missing, or have the same bytes."""
    if not (one.exists() and two.exists()):
        return one.exists() == two.exists()
    return files.sha256(one) == files.sha256(two)


def _compare_results(result: Verification, rerun: Rerun) -> None:
    """summary.csv with the tables."""
    expected = summarise(rerun.setup, rerun.store, math.nan)
    text = (result.run / "summary.csv").read_text(encoding="utf-8")
    header, *rows = csv.reader(text.splitlines())
    if header != list(expected) or [*map(len, rows)] != [len(header)]:
        raise Difference("summary.csv", "is not one row below the header that fedsim writes")
    for (column, value), written in zip(expected.items(), rows[0], strict=True):
        wanted = cell(value)
        same = written == wanted or (result.others and is_rounded(written, wanted))
        if column not in OF_THE_PLACE and not same:
            place = f"summary.csv, line 2, column {column}"
            raise Difference(place, written or "empty", wanted or "empty")
