"""Whether a run's results are those of its settings: some of its rounds are done again.

The rounds are drawn by a seed. Each starts from the nearest earlier checkpoint, and every round on
the way is compared as well: its rows in all tables cell by cell, and the model after it by its
SHA-256 in models.csv. Where processor or versions are not those of the run, last digits may differ:
such a run is never verified, but consistent within what :mod:`fedsim.audit.rounding` allows.
"""

from __future__ import annotations

import csv
import math
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedsim.audit import declared
from fedsim.audit.rerun import Rerun, opened
from fedsim.audit.rounding import Rounding
from fedsim.audit.tables import (
    COMPARED,
    Comparison,
    Difference,
    Recorded,
    check_form,
    is_rounded,
)
from fedsim.config import experiments
from fedsim.core import files
from fedsim.core.errors import FedsimError, described
from fedsim.core.files import CLIENTS, MODEL, VOCABULARY
from fedsim.core.imports import refused
from fedsim.identity.provenance import functions_in
from fedsim.storage import digests, final_models, status, tensors
from fedsim.storage.checkpoint import ServerState, read_record
from fedsim.storage.run_dir import RunWriter, cell
from fedsim.training.driver import write_split
from fedsim.training.final_models import export_models, personal_slots
from fedsim.training.finetune import final_scores
from fedsim.training.rows import RoundLog
from fedsim.training.summary import summarise

OF_THE_PLACE = frozenset({"run_id", "total_seconds", "seconds_to_target"})
"""Columns of summary.csv that say where and how fast the run was done."""
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
    """What a run was compared with; what is counted says :class:`Comparison`.

    Args:
        run: its directory.
        seed: by which the rounds were drawn.
        rounds: that are complete.
        drawn: numbers of the rounds that were drawn.
        executed: first and last round of each stretch that was done again.
        others: processor or versions that are not those of the run, else empty.
        differences: between the run and what its settings give.
        not_compared: what a run has, or the data and settings give, and nothing was compared with.
        planned: rounds that the run is to have.
        finished: whether it has ended, which may be earlier.
    """

    run: Path
    seed: int
    rounds: int
    drawn: Sequence[int] = ()
    executed: list[tuple[int, int]] = field(default_factory=list)
    others: str = ""
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
    try:
        done = len(status.rounds(path))
        if not done:
            raise NotPossible(f"{path}: no round is complete")
        if not allow_code:
            _check_no_code(path / "config.yaml")
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
    except (FedsimError, OSError, ValueError, csv.Error) as error:
        raise NotPossible(str(error)) from error
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise NotPossible(f"{path}: not what fedsim writes ({described(error)})") from error
    return result


def _check_no_code(config: Path) -> None:
    """Refuses settings that name code: it would run with all rights of this process."""
    if named := functions_in(experiments.read(config).settings):
        raise NotPossible(f"{config}: {', '.join(named)} {REFUSED}")


def _draw(seed: int, done: int, count: int | Literal["all"]) -> list[int]:
    """Numbers of rounds, from 1, ascending."""
    if count == "all" or count >= done:
        return list(range(1, done + 1))
    drawn = np.random.default_rng(seed).choice(done, count, replace=False)
    return sorted((drawn + 1).tolist())


def _compare(result: Verification, rerun: Rerun, scratch: Path) -> None:
    """All that data, settings and the drawn rounds give with what the run says.

    Raises:
        Difference: the first one; those of tables that the newest checkpoint tells are noted.
    """
    run, setup = result.run, rerun.setup
    before, now = rerun.store.read_environment(), declared.described(rerun)
    result.others = declared.others(run, before, now)
    result.rounding = Rounding(setup.dataset) if result.others else None
    result.planned, result.finished = setup.config.train.rounds, rerun.store.finished
    check_form(run, result.rounds, finished=result.finished)
    result.not_compared += [*_missing(rerun), *declared.undeclared(before, now)]
    declared.compare_facts(run, before, now)
    number, record = _newest_record(rerun)
    there = {
        table: entry
        for table, entry in record.get("digests", {}).items()
        if table in COMPARED and (run / f"{table}.csv").exists()  # else see _missing
    }
    names = f"is not what the checkpoint of round {number} names"
    result.differences += [Difference(path.name, names) for path in digests.changed(run, there)]
    began, settings = record.get("settings", {}), rerun.fingerprint.settings
    for key in sorted(began.keys() & settings.keys()):
        if began[key] != settings[key]:
            expected = f"{began[key]!r} as in the checkpoint of round {number}"
            raise Difference(f"config.yaml, {key}", repr(settings[key]), expected)
    _compare_split(rerun, scratch)
    last = {rerun.rounds} if result.others and _has_model(rerun) else set()
    for span in _stretches(rerun, {*result.drawn, *last}):
        _compare_stretch(result, rerun, *span, scratch)
    _compare_results(result, rerun, scratch)


def _has_model(rerun: Rerun) -> bool:
    """Whether the files that a run writes after its last round should be there, or are."""
    return rerun.store.finished or (rerun.store.path / MODEL).exists()


def _missing(rerun: Rerun) -> Iterator[str]:
    """Files that a run has, and this one has not."""
    setup, evaluation = rerun.setup, rerun.setup.config.evaluation
    decomposed = 0 < evaluation.decompose_every <= rerun.rounds
    personal = setup.config.engine.save_model and personal_slots(setup.algorithm, setup.layout)
    scored = evaluation.finetune_epochs or setup.partition.held_out
    expected = {
        "split.csv": True,
        "timings.csv": True,
        VOCABULARY: setup.dataset.words,
        "decomposition.csv": decomposed,
        "loss_matrix.csv": decomposed and evaluation.loss_matrix,
        CLIENTS: rerun.store.finished and personal,
        "final_clients.csv": rerun.store.finished and scored,
    }
    for name, is_expected in expected.items():
        if is_expected and not (rerun.store.path / name).exists():
            yield f"{name} is missing"


def _newest_record(rerun: Rerun) -> tuple[int, Mapping[str, Any]]:
    """Round and record of the newest intact checkpoint; nothing where there is none."""
    for number, path in reversed(rerun.checkpoints().items()):
        try:
            return number, read_record(path)
        except ValueError:  # damaged: rounds begin at another one
            continue
    return 0, {}


def _compare_split(rerun: Rerun, scratch: Path) -> None:
    """partition.csv, split.csv and vocabulary.json with what the data give."""
    fresh = scratch / "split"
    fresh.mkdir()
    write_split(rerun.setup, RunWriter(fresh))
    if not (rerun.store.path / "partition.csv").exists():
        raise Difference("partition.csv", "is missing")
    for ours in sorted(fresh.iterdir()):
        theirs = rerun.store.path / ours.name
        if theirs.exists() and not _same(ours, theirs):  # else see _missing
            raise Difference(ours.name, "is not what data and settings give")


def _stretches(rerun: Rerun, wanted: Collection[int]) -> Iterator[tuple[int, int]]:
    """First and last round of what is to be done again, from checkpoint to drawn round."""
    starts = sorted({0, *rerun.checkpoints()})
    ends: dict[int, int] = {}
    for number in sorted(wanted):
        start = max(start for start in starts if start < number)
        merged = next((first for first, last in ends.items() if first <= start <= last), start)
        ends[merged] = number
    yield from ((start + 1, end) for start, end in ends.items())


def _compare_stretch(
    result: Verification, rerun: Rerun, first: int, last: int, scratch: Path
) -> None:
    """The rounds ``first`` to ``last`` with what the run says of them."""
    position = rerun.nearest(first - 1)
    state, first = position.state, position.rounds + 1
    tables = {table: Recorded.read(result.run, table, first - 1, last) for table in COMPARED}
    if position.rounds and not tables["models"].names_model(position.rounds, state.params):
        raise Difference(f"checkpoint of round {position.rounds}", "its model is not in models.csv")
    for number in range(first, last + 1):
        state, log = rerun.step(state, number)
        try:
            result.compare(tables, log)
        except Difference:
            _check_failures(rerun, number)
            raise
        if result.rounding is not None and number in rerun.checkpoints():
            passed = rerun.nearest(number)
            if passed.rounds == number and not result.rounding.is_close(
                state.params, passed.state.params
            ):
                raise Difference(f"checkpoint of round {number}", "its model is too far off")
    result.executed.append((first, last))
    if last == result.rounds and _has_model(rerun):
        _compare_models(result, rerun, state, scratch)


def _check_failures(rerun: Rerun, number: int) -> None:
    """Raises NotPossible where a round lost a client's work, which does not happen again.

    Only with ``engine.on_client_failure=drop`` does a run go on without it.
    """
    run = rerun.store.path
    if rerun.setup.config.engine.on_client_failure != "drop" or not (run / "errors.csv").exists():
        return
    clients = status.table(run / "clients.csv")
    dropped = {(r["round"], r["client_id"]) for r in clients if r["status"] == "dropped"}
    for row in status.table(run / "errors.csv"):
        work = str(number), row["client_id"]
        if row["round"] == work[0] and row["attempt"] not in ("", "0") and work in dropped:
            raise NotPossible(
                f"{run}: round {number} lost the work of client {row['client_id']} "
                f"({row['error']}), which is not lost again"
            )


def _compare_models(result: Verification, rerun: Rerun, state: ServerState, scratch: Path) -> None:
    """The files that a run writes after its last round, byte for byte."""
    run, setup, rounding = result.run, rerun.setup, result.rounding
    shutil.copyfile(run / "rounds.csv", scratch / "rounds.csv")
    store = RunWriter(scratch)
    if setup.config.engine.save_model:
        export_models(setup, store, state, rerun.rounds)
    rows = final_scores(setup, rerun.executor, state, RoundLog(rerun.rounds))
    if rows:
        store.write_final_clients(rows)
    for name in (MODEL, CLIENTS, "final_clients.csv"):
        ours, theirs = scratch / name, run / name
        if (not rerun.store.finished and not theirs.exists()) or _same(ours, theirs):
            continue
        if rounding is None or not (ours.exists() and theirs.exists()):
            raise Difference(name, "is not what the last round gives")
        if name != "final_clients.csv":
            _compare_tensors(rounding, ours, theirs)
            continue
        recorded = status.table(theirs)
        if len(recorded) != len(rows):
            raise Difference(name, f"{len(recorded)} rows", str(len(rows)))
        for line, (cells, row) in enumerate(zip(recorded, rows, strict=True), start=2):
            result.compare_row(f"{name}, line {line}", "final_clients", cells, row)


def _compare_tensors(rounding: Rounding, ours: Path, theirs: Path) -> None:
    """A file of models of another processor with the one of now, tensor by tensor."""
    with tensors.opened(ours) as one, tensors.opened(theirs) as two:
        names = sorted(one.keys())
        if names != sorted(two.keys()) or one.metadata() != two.metadata():
            raise Difference(theirs.name, "has other tensors or descriptions")
        for name in names:
            a, b = one.get_tensor(name), two.get_tensor(name)
            if a.shape != b.shape or a.dtype != b.dtype or not rounding.is_close(a, b):
                raise Difference(f"{theirs.name}, {name}", "is too far off")


def _same(one: Path, two: Path) -> bool:
    """Whether both are missing, or have the same bytes."""
    if not (one.exists() and two.exists()):
        return one.exists() == two.exists()
    return one.stat().st_size == two.stat().st_size and files.sha256(one) == files.sha256(two)


def _compare_results(result: Verification, rerun: Rerun, scratch: Path) -> None:
    """The final model with models.csv, and summary.csv and loss_matrix.npz with the tables."""
    store, setup = rerun.store, rerun.setup
    if setup.config.engine.save_model and _has_model(rerun):
        models = Recorded.read(store.path, "models", rerun.rounds, rerun.rounds)
        if not models.names_model(rerun.rounds, final_models.load_vector(store.path, setup.layout)):
            raise Difference(MODEL, "is not the model of the last row of models.csv")
    if not store.finished:
        return
    text = (store.path / "summary.csv").read_text(encoding="utf-8")
    header, *rows = [*csv.reader(text.splitlines(keepends=True))] or [[]]
    expected = summarise(setup, store, math.nan)
    if header != list(expected):
        raise Difference("summary.csv, line 1", ",".join(header), ",".join(expected))
    if [*map(len, rows)] != [len(header)] or not text.endswith("\n"):
        raise Difference("summary.csv", "is not one row below a header")
    for (column, value), recorded in zip(expected.items(), rows[0], strict=True):
        wanted = cell(value)
        same = recorded == wanted or (result.others and is_rounded(recorded, wanted))
        if column not in OF_THE_PLACE and not same:
            place = f"summary.csv, line 2, column {column}"
            raise Difference(place, recorded or "empty", wanted or "empty")
    table, matrix = (store.path / f"loss_matrix.{suffix}" for suffix in ("csv", "npz"))
    if table.exists() != matrix.exists():
        raise Difference((matrix if table.exists() else table).name, "is missing")
    if table.exists():
        shutil.copyfile(table, scratch / table.name)
        RunWriter(scratch).save_loss_matrix()
        if not _same(scratch / matrix.name, matrix):
            raise Difference(matrix.name, "is not that of loss_matrix.csv")
