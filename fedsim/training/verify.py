"""Whether a run's results are those of its settings: some of its rounds are done again.

The rounds are drawn by a seed. Each starts from the nearest earlier checkpoint, and every round on
the way is compared as well: its rows in all tables cell by cell, and the model after it by its
SHA-256 in models.csv. Where processor or versions are not those of the run, last digits may differ;
numbers are then compared to :data:`fedsim.training.recorded.TOLERANCE`.
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

from fedsim.config import experiments
from fedsim.core.errors import DataError, FedsimError
from fedsim.core.files import CLIENTS, MODEL, VOCABULARY
from fedsim.core.imports import refused
from fedsim.core.reading import check_tree
from fedsim.storage import digests, final_models, manifest, status
from fedsim.storage.checkpoint import FOLDER, ServerState, read_record
from fedsim.storage.rows import ErrorRow
from fedsim.storage.run_dir import RunWriter, cell
from fedsim.training.driver import write_split
from fedsim.training.environment import NUMERICAL, describe
from fedsim.training.export import export_models
from fedsim.training.finetune import final_scores
from fedsim.training.log import RoundLog
from fedsim.training.provenance import functions_in
from fedsim.training.recorded import (
    COMPARED,
    ROUNDING,
    Comparison,
    Difference,
    Recorded,
    check_form,
    distance,
)
from fedsim.training.rerun import Rerun, opened
from fedsim.training.summary import summarise

OF_THE_PLACE = frozenset({"run_id", "total_seconds", "seconds_to_target"})
"""Columns of summary.csv that say where and how fast the run was done."""
REFUSED = (
    "is code, and nothing of it was run; read it, then allow it with --allow-code (in Python "
    "allow_code=True)"
)
"""What is said of a function that a run names."""


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
        files: how many the manifest names, None without one.
        changed: those that are not what it says.
        differences: what was found.
    """

    run: Path
    seed: int
    rounds: int
    drawn: Sequence[int] = ()
    executed: list[tuple[int, int]] = field(default_factory=list)
    files: int | None = None
    changed: Sequence[str] = ()
    differences: list[Difference] = field(default_factory=list)

    @property
    def verified(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

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
            :func:`~fedsim.training.rerun.opened`.
        accept_changed_code: go on where the user's code is not that of the run.
        allow_code: also run the functions (``module:function``) that the run's settings name, with
            all rights of this process.

    Raises:
        NotPossible: the run has no rounds, or code, data or models that it needs are not here, or
            it names code that is not allowed; the message also names the files that are not those
            of the manifest.
    """
    path = Path(run)
    seed = secrets.randbelow(2**31) if seed is None else seed
    changed: dict[str, str] = {}
    try:
        check_tree(path)
        known = manifest.read(path)
        if known is not None:
            changed.update(manifest.changed(path, known["files"]))
        done = len(status.rounds(path))
        if not done:
            raise NotPossible(f"{path}: no round is complete")
        if not allow_code:
            _check_no_code(path / "config.yaml")
        found = Verification(
            run=path,
            seed=seed,
            rounds=done,
            drawn=_draw(seed, done, rounds),
            files=None if known is None else len(known["files"]),
            changed=tuple(changed),
            differences=[Difference(name, how) for name, how in changed.items()],
        )
        with (
            nullcontext() if allow_code else refused(REFUSED),
            opened(
                path, overrides, data_dir=data_dir, accept_changed_code=accept_changed_code
            ) as again,
            tempfile.TemporaryDirectory() as folder,
        ):
            found.others = _others(again)
            check_form(path, done, finished=again.store.finished)
            _compare_settings(again)
            _compare_split(again, Path(folder))
            wanted = {*found.drawn, *_changed_rounds(found), *_without_digest(again)}
            for first, last in _stretches(again, wanted):
                _compare_stretch(found, again, first, last, Path(folder))
            _compare_results(found, again, Path(folder))
    except Difference as difference:
        found.differences.append(difference)
    except (FedsimError, OSError, ValueError, csv.Error) as error:
        differs = "".join(f"; {name} {how}" for name, how in changed.items())
        raise NotPossible(f"{error}{differs}") from error
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


def _others(again: Rerun) -> str:
    """Processor and versions that are not those that the run was done with."""
    before = again.store.read_environment()
    parts = [before, *before.get("resumed", [])]
    now: dict[str, Any] = describe(again.setup) | dict(again.executor.environment)
    told = []
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("packages", {}), dict):
            raise NotPossible(f"{again.store.path / 'env.json'}: not what fedsim writes there")
        for key in ("processor", "device"):
            if key in part and key in now and part[key] != now[key]:
                told.append(f"{key} {_words(now[key])} instead of {_words(part[key])}")
        for name, version in part.get("packages", {}).items():
            if name in NUMERICAL and now["packages"].get(name) != version:
                told.append(f"{name} {now['packages'].get(name)} instead of {version}")
    return "; ".join(dict.fromkeys(told))


def _words(value: object) -> str:
    return ", ".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)


def _compare_split(again: Rerun, scratch: Path) -> None:
    """partition.csv, split.csv and vocabulary.json with what the data give."""
    for name in ("partition.csv", "split.csv", VOCABULARY):
        if (again.store.path / name).is_file():
            shutil.copyfile(again.store.path / name, scratch / name)
    if not (again.store.path / "partition.csv").is_file():
        raise Difference("partition.csv", "is missing")
    try:
        write_split(again.setup, RunWriter(scratch), earlier=True)
    except DataError as error:
        name = Path(str(error).partition(":")[0]).name
        raise Difference(name, "is not what data and settings give") from error


def _compare_settings(again: Rerun) -> None:
    """config.yaml with the settings that the newest intact checkpoint was written with."""
    now = again.fingerprint.settings
    for number, record in reversed(again.checkpoints().items()):
        try:
            began = read_record(record)["settings"]
        except ValueError:  # damaged: rounds begin at another one
            continue
        for key in sorted(began.keys() & now.keys()):
            if began[key] != now[key]:
                before = f"{began[key]!r} as in the checkpoint of round {number}"
                raise Difference(f"config.yaml, {key}", repr(now[key]), before)
        return


def _changed_rounds(found: Verification) -> Iterator[int]:
    """The round of the first line that was changed in each table, where its checksum tells it."""
    for name in found.changed:
        table, path = name.removesuffix(".csv"), found.run / name
        if table not in COMPARED or not path.is_file():
            continue
        number = digests.first_changed(path, found.run / FOLDER / f"{table}.lines")
        lines = path.read_text(encoding="utf-8").splitlines()
        if number is not None and number <= len(lines):
            first = lines[number - 1].partition(",")[0]
            if first.isdecimal() and 1 <= int(first) <= found.rounds:
                yield int(first)


def _without_digest(again: Rerun) -> Iterator[int]:
    """The last round of a finished run whose model models.csv does not name: nothing else says
    whether the final model is the run's."""
    last = again.rounds
    if again.store.finished and not Recorded.read(again.store.path, "models", last, last).rows:
        yield last


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
    for number in range(first, last + 1):
        state, log = again.step(state, number)
        try:
            found.compare(tables, log)
        except Difference:
            _check_failures(found.run, number)
            raise
    found.executed.append((first, last))
    if last == found.rounds and again.store.finished and not found.others:
        _compare_models(again, state, scratch)


def _check_failures(run: Path, number: int) -> None:
    """Raises NotPossible where a round lost a client's work, which does not happen again."""
    if not (run / "errors.csv").exists():
        return
    for row in status.table(run / "errors.csv"):
        if row.keys() < {*ErrorRow.columns()}:
            raise NotPossible(f"{run / 'errors.csv'}: not what fedsim writes there")
        if row["round"] == str(number) and row["attempt"] not in ("", "0") and row["client_id"]:
            raise NotPossible(
                f"{run}: round {number} lost the work of client {row['client_id']} "
                f"({row['error']}), which is not lost again"
            )


def _compare_models(again: Rerun, state: ServerState, scratch: Path) -> None:
    """The files that a run writes after its last round, byte for byte."""
    run, log = again.store.path, RoundLog(again.rounds)
    shutil.copyfile(run / "rounds.csv", scratch / "rounds.csv")
    store = RunWriter(scratch)
    if again.setup.config.engine.save_model:
        export_models(again.setup, store, state, again.rounds)
    rows = final_scores(again.setup, again.executor, state, log)
    if rows:
        store.write_final_clients(rows)
    for name in (MODEL, CLIENTS, "final_clients.csv"):
        if _content(scratch / name) != _content(run / name):
            raise Difference(name, "is not what the last round gives")


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _compare_results(found: Verification, again: Rerun, scratch: Path) -> None:
    """The final model with models.csv, and summary.csv and loss_matrix.npz with the tables."""
    store, setup = again.store, again.setup
    if not store.finished:
        return
    if setup.config.engine.save_model:
        models = Recorded.read(store.path, "models", again.rounds, again.rounds)
        if not models.names_model(again.rounds, final_models.load_vector(store.path, setup.layout)):
            raise Difference(MODEL, "is not the model of the last row of models.csv")
    recorded, now = _summary(store.path / "summary.csv"), summarise(setup, store, math.nan)
    if unknown := [column for column in recorded if column not in now]:
        raise Difference("summary.csv, line 1", f"fedsim writes no column {unknown[0]!r}")
    for column, known in recorded.items():
        expected = cell(now[column])
        if column in OF_THE_PLACE or known == expected:
            continue
        if not (found.others and distance(known, expected) <= ROUNDING):
            place = f"summary.csv, line 2, column {column}"
            raise Difference(place, known or "empty", expected or "empty")
    if (store.path / "loss_matrix.npz").exists():
        if not (store.path / "loss_matrix.csv").exists():
            raise Difference("loss_matrix.csv", "is missing")
        shutil.copyfile(store.path / "loss_matrix.csv", scratch / "loss_matrix.csv")
        RunWriter(scratch).save_loss_matrix()
        if _content(scratch / "loss_matrix.npz") != _content(store.path / "loss_matrix.npz"):
            raise Difference("loss_matrix.npz", "is not that of loss_matrix.csv")


def _summary(path: Path) -> dict[str, str]:
    """The cells of summary.csv by column; a Difference where it is not one row below a header."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = [*csv.reader(file)] or [[]]
    if len(set(header)) != len(header):
        raise Difference(f"{path.name}, line 1", "has a column twice")
    if [*map(len, rows)] != [len(header)]:
        raise Difference(path.name, "is not one row below a header")
    return dict(zip(header, rows[0], strict=True))
