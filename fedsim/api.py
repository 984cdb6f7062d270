"""The functions of Python users: runs, and server rules on NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedsim import algorithms
from fedsim.core.errors import ConfigError, ContractError
from fedsim.core.reading import check_on_disk
from fedsim.core.types import Array, ClientUpdate, Layout, RoundContext, Slot
from fedsim.server.base import HistoryGram, RuleState, Server, has_trait
from fedsim.server.cohort import Cohort
from fedsim.server.plain import PlainRule

if TYPE_CHECKING:
    from fedsim.config.run import RunConfig
    from fedsim.engine.ray.pool import Session
    from fedsim.storage.run_dir import RunStore
    from fedsim.studies.plan import Plan
    from fedsim.studies.results import StudyStore, SweepStore
    from fedsim.training.callbacks import Callback


def run(
    config: RunConfig,
    out: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    session: Session | None = None,
    progress: bool | None = None,
) -> RunStore:
    """Runs an experiment and returns its results, which are also in its run directory.

    Ctrl-C, SIGTERM and errors leave a checkpoint of the last complete round.

    Args:
        config: what to run.
        out: the run directory, new or empty; default ``runs/<dataset>/<algorithm>/<time>-<id>``.
        callbacks: follow the run; one may end it, see :class:`fedsim.Callback`.
        session: Ray and its warm actors, shared with the runs before and after.
        progress: whether the progress is shown; None: in terminals and notebooks.

    Raises:
        FedsimError: the run cannot start (ConfigError, DataError), or it failed.
    """
    from fedsim.display.progress import displays
    from fedsim.training import driver

    check_on_disk("out", out)
    return driver.run(config, out, [*displays(progress), *callbacks], session)


def resume(
    path: Path | str,
    overrides: Mapping[str, object] | None = None,
    callbacks: Sequence[Callback] = (),
    session: Session | None = None,
    progress: bool | None = None,
    accept_changed_code: bool = False,
) -> RunStore:
    """Resumes a run that was interrupted; its files are then those of an undisturbed run.

    A finished run is returned as it is. The run's trackers go on. ``overrides`` say where the work
    is done, such as ``{"engine.kind": "serial"}``; with ``accept_changed_code`` the source of the
    user's own functions may have changed, as env.json then says. The others are as in :func:`run`.

    Raises:
        FedsimError: no run is there, another process has it, its configuration, code or data were
            changed, or it failed.
    """
    from fedsim.display.progress import displays
    from fedsim.display.trackers import resumed
    from fedsim.storage.run_dir import RunStore
    from fedsim.training import driver

    run = Path(path)
    trackers = callbacks if RunStore(run).finished else resumed(run, callbacks)
    followers = [*displays(progress), *trackers]
    return driver.resume(path, overrides, followers, session, accept_changed_code)


def sweep(
    experiment: Mapping[str, Any] | Path | str,
    out: Path | str | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    parallel: Literal["auto"] | int = "auto",
    progress: bool | None = None,
    accept_changed_code: bool = False,
) -> SweepStore:
    """Does the runs of a grid and returns their results; finished runs are skipped.

    After an interruption the same call continues.

    Args:
        experiment: a preset, a YAML file, or the content of one: settings and ``grid``.
        out: the directory of the sweep; default ``runs/sweep-NAME``.
        overrides: settings by dotted key that win over all others.
        parallel: how many runs at once; auto: as many as fit.
        progress: as in :func:`run`.
        accept_changed_code: as in :func:`resume`.

    Raises:
        FedsimError: the runs cannot start, or one failed; the others have ended.
    """
    from fedsim.studies.results import SweepStore

    folder = _folder(out, "sweep", experiment)
    _several(experiment, folder, "sweep", overrides, parallel, progress, accept_changed_code)
    return SweepStore(folder)


def study(
    file: Mapping[str, Any] | Path | str,
    out: Path | str | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    parallel: Literal["auto"] | int = "auto",
    progress: bool | None = None,
    accept_changed_code: bool = False,
) -> StudyStore:
    """Tunes methods on partitions with equal budgets, compares them, and returns the results.

    ``file`` is a YAML file of ``fedsim study``, or the content of one; ``out`` is by default
    ``runs/study-NAME``, the other arguments are those of :func:`sweep`.

    Raises:
        FedsimError: the runs cannot start, one failed, or no trial of a search is complete.
    """
    from fedsim.studies import execute
    from fedsim.studies.results import StudyStore

    folder = _folder(out, "study", file)
    plan = _several(file, folder, "study", overrides, parallel, progress, accept_changed_code)
    execute.report(plan, folder)
    return StudyStore(folder)


def _several(
    experiment: Mapping[str, Any] | Path | str,
    out: Path,
    kind: str,
    overrides: Mapping[str, object] | None,
    parallel: Literal["auto"] | int,
    progress: bool | None,
    accept_changed_code: bool,
) -> Plan:
    """Does the runs of a file, a preset or the content of a file."""
    from fedsim.config import experiments
    from fedsim.config.experiments import Setting
    from fedsim.display.progress import displays
    from fedsim.studies import execute
    from fedsim.studies import plan as plans
    from fedsim.studies import sweep as sweeps

    if isinstance(experiment, Mapping):
        read = experiments.parse(experiments.as_yaml(experiment), kind, with_lines=False)
        loaded = sweeps.over_preset(read, kind)
    else:
        loaded = sweeps.load(str(experiment))
    if loaded.kind != kind:
        raise ConfigError(f"{kind}: what is given is done by 'fedsim {loaded.kind}'")
    flags = {key: Setting(value, key) for key, value in (overrides or {}).items()}
    source = kind if isinstance(experiment, Mapping) else Path(experiment).name
    plan = plans.make(loaded, flags, parallel, source)
    options = execute.RunOptions(
        progress=progress,
        accept_changed_code=accept_changed_code,
        displays=lambda: displays(progress) if plan.grid else [],
    )
    execute.run(plan, out, options).check()
    return plan


def _folder(out: Path | str | None, kind: str, given: Mapping[str, Any] | Path | str) -> Path:
    """The directory of a sweep or study."""
    from fedsim.storage.directories import folder_of

    check_on_disk("out", out)
    if out is None and isinstance(given, Mapping):
        raise ConfigError(f"out: a {kind} that is no file needs a directory")
    return folder_of(None if out is None else str(out), kind, str(given))


def aggregate(
    updates: Sequence[ArrayLike] | Array,
    num_samples: ArrayLike,
    algorithm: str = "fedld",
    *,
    sizes: Sequence[int] | None = None,
    num_steps: ArrayLike | None = None,
    history: ArrayLike | None = None,
    reference: ArrayLike | None = None,
    seed: int = 0,
    round: int = 0,
    pre: Sequence[str] = (),
    **hyperparameters: Any,
) -> Array:
    """The step that a method's server adds to the global vector.

    Args:
        updates: (m, d) array or m arrays (d,): local minus global parameters, in client order.
        num_samples: (m,) training samples of each client.
        algorithm: the method's name, ``module:function`` or ``FILE.py:function``.
        sizes: lengths of the tensors that make up d, for rules per tensor; default one tensor.
        num_steps: (m,) local steps of plain SGD, for rules that use them (``fednova``).
        history: (d,) for ``fedgh_released`` after its first round, and ``fedld_released``.
        reference: (d,) the server's own update, for ``fltrust``.
        seed: of the rules that draw (``fedgh``).
        round: from 0; rules that draw, draw anew each round.
        pre: pre-aggregations that come first, such as ``["nnm"]``.
        hyperparameters: the method's own, e.g. ``keep=0.8``; one that pre-aggregations have too,
            such as ``f``, is given to all.

    Returns:
        (d,) float64, or float32 if all updates are float32.

    Raises:
        ContractError: shapes that do not fit, or a method that needs more than updates.
        ConfigError: an unknown method or hyperparameter.
    """
    rows = _rows(updates)
    server = _server(algorithm, pre, hyperparameters)
    _check_alone(algorithm, server, round)
    if any(getattr(p, "needs_own_clients", False) for p in server.receive) and num_steps is None:
        raise ContractError(f"{algorithm} needs num_steps (m,), the local steps of each client")
    ctx = RoundContext(round=round, num_rounds=round + 1, num_clients=len(rows), lr=1.0, seed=seed)
    cohort = _cohort(rows, num_samples, num_steps, sizes)
    state = RuleState()
    if isinstance(server.reduction, HistoryGram) and (history is not None or round > 0):
        if history is None and algorithm == "fedgh_released":
            raise ContractError(
                f"{algorithm} sorts by its history after round 0: give history (d,)"
            )
        past = np.ones(rows[0].size) if history is None else np.asarray(history, dtype=np.float64)
        if past.shape != rows[0].shape:
            raise ContractError(f"history has shape {past.shape}, the updates {rows[0].shape}")
        state = RuleState(reduction={"history": past})
    if server.root_samples:
        update = np.asarray(reference, dtype=rows[0].dtype)
        if update.shape != rows[0].shape or not np.isfinite(update).all():
            what = "the server's own update: give reference (d,), finite"
            raise ContractError(f"{algorithm} needs {what}, got shape {update.shape}")
        cohort = replace(cohort, reference=update)
    return server.step(state, cohort, ctx).step


def _server(algorithm: str, pre: Sequence[str], hyperparameters: Mapping[str, Any]) -> Server:
    """The server of a method, after pre-aggregations."""
    if not pre:
        return algorithms.load(algorithm, hyperparameters).server
    by_name = {
        name: {k: v for k, v in hyperparameters.items() if k in algorithms.parameters(name)}
        for name in (*pre, algorithm)
    }
    taken = {key for values in by_name.values() for key in values}
    by_name[algorithm] |= {k: v for k, v in hyperparameters.items() if k not in taken}
    return algorithms.compose(algorithm, by_name, server=",".join([*pre, algorithm])).server


def _check_alone(algorithm: str, server: Server, round: int) -> None:
    """Refuses a method whose server needs more than updates."""
    why = server.incompatible_reason
    reads = any(has_trait(part, "reads_uploads") for part in server.receive)
    if server.exchange is not None or reads:
        why = "also combines what clients upload beside their updates"
    reduction = server.reduction
    kept = isinstance(reduction, PlainRule) and "state" in reduction.takes
    kept = kept or getattr(reduction, "keeps_state", False) or bool(server.optimizers)
    if kept and round > 0:
        why = "keeps a state from round to round"
    if why:
        raise ContractError(f"{algorithm} {why}; use fedsim.run")


def _rows(updates: Sequence[ArrayLike] | Array) -> list[Array]:
    """m vectors (d,) of one precision."""
    rows = [np.asarray(row) for row in updates]
    if not rows or any(r.ndim != 1 or r.shape != rows[0].shape for r in rows):
        shapes = [r.shape for r in rows]
        raise ContractError(f"updates must be m vectors of one length, got {shapes}")
    single = all(r.dtype == np.float32 for r in rows)
    rows = [np.ascontiguousarray(r, dtype=np.float32 if single else np.float64) for r in rows]
    bad = [i for i, r in enumerate(rows) if not np.isfinite(r).all()]
    if bad:
        raise ContractError(f"updates {bad} contain NaN or infinity")
    return rows


def _cohort(
    rows: list[Array],
    num_samples: ArrayLike,
    num_steps: ArrayLike | None,
    sizes: Sequence[int] | None,
) -> Cohort:
    """The updates as a cohort, of tensors of these sizes."""
    m, size = len(rows), len(rows[0])
    counts = np.asarray(num_samples, dtype=np.float64)
    steps = np.ones(m, int) if num_steps is None else np.asarray(num_steps, dtype=int)
    if counts.shape != (m,) or steps.shape != (m,) or not (counts > 0).all():
        raise ContractError(
            f"{m} updates need num_samples and num_steps (m,), positive, got {counts.tolist()} and "
            f"{steps.tolist()}"
        )
    lengths = [size] if sizes is None else list(sizes)
    if sum(lengths) != size or min(lengths, default=0) < 1:
        raise ContractError(f"sizes {lengths} must be positive and add up to {size}")
    slots = [
        Slot(name=f"tensor{i}", shape=(n,), start=stop - n, stop=stop)
        for i, (n, stop) in enumerate(zip(lengths, np.cumsum(lengths).tolist(), strict=True))
    ]
    return Cohort.of(
        [
            ClientUpdate(client_id=i, num_samples=n, num_steps=s, delta=row)
            for i, (n, s, row) in enumerate(zip(counts, steps, rows, strict=True))
        ],
        Layout(tuple(slots)),
    )
