"""Whether a run's results are those of its settings: some of its rounds are done again.

The rounds are drawn by a seed. Each starts from the nearest earlier checkpoint, and every round on
the way is compared as well: its rows in all tables cell by cell, and the model after it by its
SHA-256 in models.csv. Where processor or versions are not those of the run, last digits may differ:
such a run is never verified, but consistent within what :mod:`fedsim.audit.rounding` allows.
"""

from __future__ import annotations

import csv
import io
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
from fedsim.audit.recorded import (
    COMPARED,
    ROUNDING,
    Comparison,
    Difference,
    Recorded,
    check_form,
    distance,
)
from fedsim.audit.rerun import Rerun, opened
from fedsim.audit.rounding import OF_THE_WAY, Rounding, supports_of
from fedsim.config import experiments
from fedsim.core import files
from fedsim.core.errors import FedsimError, described
from fedsim.core.files import CLIENTS, MODEL, VOCABULARY
from fedsim.core.imports import refused
from fedsim.core.reading import check_tree
from fedsim.core.rows import ErrorRow
from fedsim.core.types import Vector
from fedsim.identity.provenance import functions_in
from fedsim.storage import digests, final_models, status, tensors
from fedsim.storage.checkpoint import ServerState, read_record
from fedsim.storage.run_dir import RunWriter, cell
from fedsim.training.driver import write_split
from fedsim.training.export import export_models, personal_slots
from fedsim.training.finetune import final_scores
from fedsim.training.rows import RoundLog
from fedsim.training.summary import summarise

OF_A_TENSOR, OF_A_NUMBER = 1e-3, 1e-4
"""The most by which a tensor of another processor may differ: of its size, and each number."""
OF_THE_PLACE = frozenset({"run_id", "total_seconds", "seconds_to_target"})
"""Columns of summary.csv that say where and how fast the run was done."""
REFUSED = (
    "is code, and nothing of it was run; read it, then allow it with --allow-code (in Python "
    "allow_code=True)"
)
"""What is said of a function that a run names."""


VERIFIED, CONSISTENT, DIFFERS = "verified", "consistent", "differs"
"""What is found of a run."""


class NotPossible(FedsimError):
    """A run that cannot be verified here; says why."""

    exit_status = 2


@dataclass(kw_only=True)
class Verification(Comparison):
    """What was found of a run; rows and models that were compared, as :class:`Comparison`.

    Args:
        run: its directory.
        seed: by which the rounds were drawn.
        rounds: that are complete.
        drawn: numbers of the rounds that were drawn.
        executed: first and last round of each stretch that was done again.
        differences: what was found.
        not_compared: what a run has, or the data and settings give, and nothing was compared with.
        planned: rounds that the run is to have.
        finished: whether it has ended, which may be earlier.
    """

    run: Path
    seed: int
    rounds: int
    drawn: Sequence[int] = ()
    executed: list[tuple[int, int]] = field(default_factory=list)
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
        check_tree(path)
        done = len(status.rounds(path))
        if not done:
            raise NotPossible(f"{path}: no round is complete")
        if not allow_code:
            _check_no_code(path / "config.yaml")
        found = Verification(run=path, seed=seed, rounds=done, drawn=_draw(seed, done, rounds))
        with (
            nullcontext() if allow_code else refused(REFUSED),
            opened(
                path, overrides, data_dir=data_dir, accept_changed_code=accept_changed_code
            ) as again,
            tempfile.TemporaryDirectory() as folder,
        ):
            before, now = again.store.read_environment(), declared.described(again)
            found.others = declared.others(path, before, now)
            found.supports = supports_of(again.setup.dataset)
            found.planned = again.setup.config.train.rounds
            found.finished = again.store.finished
            check_form(path, done, finished=again.store.finished)
            found.not_compared += [*_missing(again), *declared.undeclared(before, now)]
            declared.compare_facts(path, before, now)
            number, record = _newest_record(again)
            found.differences += _changed_tables(path, number, record)
            _compare_settings(again, number, record)
            _compare_split(again, Path(folder))
            wanted = {*found.drawn, *_last_round(found, again)}
            for first, last in _stretches(again, wanted):
                _compare_stretch(found, again, first, last, Path(folder))
            _compare_results(found, again, Path(folder))
    except Difference as difference:
        found.differences.append(difference)
    except (FedsimError, OSError, ValueError, csv.Error) as error:
        raise NotPossible(str(error)) from error
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise NotPossible(f"{path}: not what fedsim writes ({described(error)})") from error
    return found


def _check_no_code(config: Path) -> None:
    """Refuses settings that name code: it would run with all rights of this process."""
    if named := functions_in(experiments.read(config).settings):
        raise NotPossible(f"{config}: {', '.join(named)} {REFUSED}")


def _draw(seed: int, done: int, wanted: int | Literal["all"]) -> list[int]:
    """Numbers of rounds, from 1, ascending."""
    if wanted == "all" or wanted >= done:
        return list(range(1, done + 1))
    drawn = np.random.default_rng(seed).choice(done, wanted, replace=False)
    return sorted((drawn + 1).tolist())


def _missing(again: Rerun) -> Iterator[str]:
    """Files that a run has, and this one has not."""
    setup, names = again.setup, ["split.csv", "timings.csv"]
    evaluation = setup.config.evaluation
    names += [VOCABULARY] if setup.dataset.words else []
    if 0 < evaluation.decompose_every <= again.rounds:
        names += ["decomposition.csv", *(["loss_matrix.csv"] if evaluation.loss_matrix else [])]
    if again.store.finished:
        personal = setup.config.engine.save_model and personal_slots(setup.algorithm, setup.layout)
        names += [CLIENTS] if personal else []
        scored = evaluation.finetune_epochs or setup.partition.held_out
        names += ["final_clients.csv"] if scored else []
    for name in names:
        if not (again.store.path / name).exists():
            yield f"{name} is missing"


def _compare_split(again: Rerun, scratch: Path) -> None:
    """partition.csv, split.csv and vocabulary.json with what the data give."""
    fresh = scratch / "split"
    fresh.mkdir()
    write_split(again.setup, RunWriter(fresh))
    if not (again.store.path / "partition.csv").exists():
        raise Difference("partition.csv", "is missing")
    for ours in sorted(fresh.iterdir()):
        theirs = again.store.path / ours.name
        if theirs.exists() and not _same(ours, theirs):  # else see _missing
            raise Difference(ours.name, "is not what data and settings give")


def _newest_record(again: Rerun) -> tuple[int, Mapping[str, Any]]:
    """Round and record of the newest intact checkpoint; nothing where there is none."""
    for number, path in reversed(again.checkpoints().items()):
        try:
            return number, read_record(path)
        except ValueError:  # damaged: rounds begin at another one
            continue
    return 0, {}


def _changed_tables(run: Path, number: int, record: Mapping[str, Any]) -> Iterator[Difference]:
    """The tables that are not those which the newest checkpoint was written with."""
    there = {
        table: entry
        for table, entry in record.get("digests", {}).items()
        if table in COMPARED and (run / f"{table}.csv").exists()  # else see _missing
    }
    for path in digests.changed(run, there):
        yield Difference(path.name, f"is not what the checkpoint of round {number} names")


def _compare_settings(again: Rerun, number: int, record: Mapping[str, Any]) -> None:
    """config.yaml with the settings that the newest intact checkpoint was written with."""
    began, now = record.get("settings", {}), again.fingerprint.settings
    for key in sorted(began.keys() & now.keys()):
        if began[key] != now[key]:
            before = f"{began[key]!r} as in the checkpoint of round {number}"
            raise Difference(f"config.yaml, {key}", repr(now[key]), before)


def _last_round(found: Verification, again: Rerun) -> Iterator[int]:
    """The last round, where models.csv names the final model of another processor."""
    if found.others and (again.store.finished or (again.store.path / MODEL).exists()):
        yield again.rounds


def _stretches(again: Rerun, wanted: Collection[int]) -> Iterator[tuple[int, int]]:
    """First and last round of what is to be done again, from checkpoint to drawn round."""
    starts = sorted({0, *again.checkpoints()})
    ends: dict[int, int] = {}
    for number in sorted(wanted):
        start = max(start for start in starts if start < number)
        merged = next((first for first, last in ends.items() if first <= start <= last), start)
        ends[merged] = number
    yield from ((start + 1, end) for start, end in ends.items())


def _compare_stretch(
    found: Verification, again: Rerun, first: int, last: int, scratch: Path
) -> None:
    """The rounds ``first`` to ``last`` with what the run says of them."""
    position = again.nearest(first - 1)
    state, first = position.state, position.rounds + 1
    tables = {table: Recorded.read(found.run, table, first - 1, last) for table in COMPARED}
    if position.rounds and not tables["models"].names_model(position.rounds, state.params):
        raise Difference(f"checkpoint of round {position.rounds}", "its model is not in models.csv")
    begin, checkpoints = state.params, again.checkpoints()
    for number in range(first, last + 1):
        state, log = again.step(state, number)
        try:
            found.compare(tables, log)
        except Difference:
            _check_failures(again, tables["clients"], number)
            raise
        if found.others and number in checkpoints:
            passed = again.nearest(number)
            if passed.rounds == number:
                place = f"checkpoint of round {number}"
                _compare_params(found, place, passed.state.params, state.params, begin)
    found.executed.append((first, last))
    if last == found.rounds and (again.store.finished or (found.run / MODEL).exists()):
        _compare_models(found, again, state, begin, scratch)


def _check_failures(again: Rerun, clients: Recorded, number: int) -> None:
    """Raises NotPossible where a round lost a client's work, which does not happen again.

    Only with ``engine.on_client_failure=drop`` does a run go on without it.
    """
    file = again.store.path / "errors.csv"
    if again.setup.config.engine.on_client_failure != "drop" or not file.exists():
        return
    rows = clients.rows.get(number, ())
    dropped = {cells[1] for _, cells in rows if len(cells) > 2 and cells[2] == "dropped"}
    for row in status.table(file):
        if row.keys() < {*ErrorRow.columns()}:
            raise NotPossible(f"{file}: not what fedsim writes there")
        lost = row["attempt"] not in ("", "0") and row["client_id"] in dropped
        if lost and row["round"] == str(number):
            raise NotPossible(
                f"{again.store.path}: round {number} lost the work of client {row['client_id']} "
                f"({row['error']}), which is not lost again"
            )


def _compare_models(
    found: Verification, again: Rerun, state: ServerState, begin: Vector, scratch: Path
) -> None:
    """The files that a run writes after its last round, byte for byte."""
    run, log = again.store.path, RoundLog(again.rounds)
    shutil.copyfile(run / "rounds.csv", scratch / "rounds.csv")
    store = RunWriter(scratch)
    if again.setup.config.engine.save_model:
        export_models(again.setup, store, state, again.rounds)
    rows = final_scores(again.setup, again.executor, state, log)
    if rows:
        store.write_final_clients(rows)
    names = (MODEL, CLIENTS, "final_clients.csv")
    there = [name for name in names if again.store.finished or (run / name).exists()]
    different = [name for name in there if not _same(scratch / name, run / name)]
    for name in different:
        if not found.others or not ((run / name).exists() and (scratch / name).exists()):
            raise Difference(name, "is not what the last round gives")
    if MODEL in different:
        vector = final_models.load_vector(run, again.setup.layout)
        _compare_params(found, MODEL, vector, state.params, begin)
        _compare_tensors(scratch / MODEL, run / MODEL)
    if CLIENTS in different:
        _compare_tensors(scratch / CLIENTS, run / CLIENTS)
    if "final_clients.csv" in different:
        recorded = status.table(run / "final_clients.csv")
        if len(recorded) != len(rows):
            raise Difference("final_clients.csv", f"{len(recorded)} rows", str(len(rows)))
        rounding = Rounding(log, {}, found.supports)
        for line, (cells, row) in enumerate(zip(recorded, rows, strict=True), start=2):
            place = f"final_clients.csv, line {line}"
            found.compare_row(place, "final_clients", cells, row, rounding)


def _compare_params(
    found: Verification, place: str, recorded: Vector, params: Vector, begin: Vector
) -> None:
    """A model of another processor with the one of now: they may be apart by a part of the way
    from the state that the rounds began with."""
    size = params.size
    apart, way = (
        float(np.linalg.norm(one[:size].astype(np.float64) - params)) for one in (recorded, begin)
    )
    noise = 1e-6 * float(np.linalg.norm(params.astype(np.float64)))
    if not apart <= OF_THE_WAY * way + noise:
        share = f"{apart / way:.2g}" if way else "all"
        raise Difference(place, f"its model is {share} of the way of these rounds off")
    found.largest = max(found.largest, apart / way if way else 0.0)


def _compare_tensors(ours: Path, theirs: Path) -> None:
    """A file of models of another processor with the one of now, tensor by tensor."""
    with tensors.opened(ours) as one, tensors.opened(theirs) as two:
        names = sorted(one.keys())
        if names != sorted(two.keys()) or one.metadata() != two.metadata():
            raise Difference(theirs.name, "has other tensors or descriptions")
        for name in names:
            a, b = one.get_tensor(name), two.get_tensor(name)
            if a.shape != b.shape or a.dtype != b.dtype:
                raise Difference(f"{theirs.name}, {name}", f"{b.dtype} {b.shape}", str(a.shape))
            apart, size = (float(np.linalg.norm(v.astype(np.float64))) for v in (a - b, a))
            counted = a.dtype.kind != "f"
            most = 0 if counted else OF_A_TENSOR * size + OF_A_NUMBER * math.sqrt(a.size)
            if not apart <= most:
                raise Difference(f"{theirs.name}, {name}", f"is {apart:.2g} off, of {size:.2g}")


def _same(one: Path, two: Path) -> bool:
    """Whether both are missing, or have the same bytes."""
    if not (one.exists() and two.exists()):
        return one.exists() == two.exists()
    return one.stat().st_size == two.stat().st_size and files.sha256(one) == files.sha256(two)


def _compare_results(found: Verification, again: Rerun, scratch: Path) -> None:
    """The final model with models.csv, and summary.csv and loss_matrix.npz with the tables."""
    store, setup = again.store, again.setup
    if setup.config.engine.save_model and (store.finished or (store.path / MODEL).exists()):
        models = Recorded.read(store.path, "models", again.rounds, again.rounds)
        if not models.names_model(again.rounds, final_models.load_vector(store.path, setup.layout)):
            raise Difference(MODEL, "is not the model of the last row of models.csv")
    if not store.finished:
        return
    recorded, now = _summary(store.path / "summary.csv"), summarise(setup, store, math.nan)
    if unknown := [column for column in recorded if column not in now]:
        raise Difference("summary.csv, line 1", f"fedsim writes no column {unknown[0]!r}")
    if missing := [column for column in now if column not in recorded]:
        raise Difference("summary.csv, line 1", f"has no column {missing[0]!r}")
    for column, known in recorded.items():
        expected = cell(now[column])
        if column in OF_THE_PLACE or known == expected:
            continue
        if not (found.others and distance(known, expected) <= ROUNDING):
            place = f"summary.csv, line 2, column {column}"
            raise Difference(place, known or "empty", expected or "empty")
    matrix = [store.path / f"loss_matrix.{suffix}" for suffix in ("csv", "npz")]
    if not any(path.exists() for path in matrix):
        return
    for path in matrix:
        if not path.exists():
            raise Difference(path.name, "is missing")
    shutil.copyfile(matrix[0], scratch / matrix[0].name)
    RunWriter(scratch).save_loss_matrix()
    if not _same(scratch / matrix[1].name, matrix[1]):
        raise Difference("loss_matrix.npz", "is not that of loss_matrix.csv")


def _summary(path: Path) -> dict[str, str]:
    """The cells of summary.csv by column; a Difference where it is not one row below a header."""
    text = path.read_text(encoding="utf-8")
    header, *rows = [*csv.reader(io.StringIO(text))] or [[]]
    if not text.endswith("\n"):
        raise Difference(path.name, "its last line has no end")
    if len(set(header)) != len(header):
        raise Difference(f"{path.name}, line 1", "has a column twice")
    if [*map(len, rows)] != [len(header)]:
        raise Difference(path.name, "is not one row below a header")
    return dict(zip(header, rows[0], strict=True))
