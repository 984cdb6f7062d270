"""A task of a leaderboard, and whether runs are entries of it.

A task is the file of a sweep whose grid has partitions (``data.seed``) and training seeds
(``seed``) alone. An entry is one run for each of them, under one label. It is free in what makes a
method, :data:`FREE` and the method's hyperparameters; all other settings are those of the task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsim import algorithms
from fedsim.config import earlier, experiments
from fedsim.config.experiments import Setting, Settings
from fedsim.config.resolve import resolve
from fedsim.core.errors import ConfigError, FedsimError, one_line
from fedsim.storage import directories, manifest, status
from fedsim.storage.directories import ARCHIVED
from fedsim.storage.run_dir import RunStore, cell
from fedsim.storage.status import RunStatus
from fedsim.studies import sweep
from fedsim.studies.sweep import SEEDS
from fedsim.training.provenance import Code, Provenance, code_of
from fedsim.training.recorded import Difference
from fedsim.training.resume import decisive, difference, has_patients
from fedsim.training.summary import last10

FREE = frozenset(
    {
        *("algorithm", "server", "margin", "margin_weight", "margin_threshold"),
        *("train.lr", "train.lr_head", "train.lr_schedule", "train.optimizer"),
        *("train.momentum", "train.weight_decay", "train.clip_norm"),
    }
)
"""Keys that an entry may choose for each partition, beside the hyperparameters of its methods."""
ELSEWHERE = frozenset({"label", "data.dir"})
"""Keys that are free because no result depends on them, as those of section engine."""
NO_ENTRY = "centralized"
"""The method that pools the data of all clients: not federated."""
METRICS = ("balanced_accuracy", "accuracy")
"""Scores of a run, by the first of which entries are ranked: the means over the evaluated rounds
among the last ten, on the test part."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What entries are compared on.

    Args:
        path: of its file.
        title: in a few words.
        settings: that all entries have, but for those that they are free in.
        runs: ``data.seed`` and ``seed`` of each run of an entry.
    """

    path: Path
    title: str
    settings: Settings
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """A run of an entry.

    Args:
        label: of the entry.
        partition: ``data.seed``.
        seed: of training.
        state: finished, or failed, which includes diverged: without scores.
        scores: by :data:`METRICS`, in 0..1; NaN where there is none.
        settings: what the entry chose for this partition, by key.
        model: SHA-256 of the final model; empty without one.
        data: digest of the data; empty where they follow from the settings, or without a result.
        name: of its directory, relative to the folder that was checked.
    """

    label: str
    partition: int
    seed: int
    state: str
    scores: Mapping[str, float]
    settings: Mapping[str, str]
    model: str
    data: str
    name: str


def load(path: Path) -> Task:
    """The task in a file.

    Raises:
        ConfigError: it cannot be used, or its grid is not one of partitions and training seeds.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: a task is a file with the ending .yaml")
    experiment = sweep.load(str(path))
    axes = [axis.name for axis in experiment.grid]
    named = any(value.named for axis in experiment.grid for value in axis.values)
    if sorted(axes) != sorted(SEEDS) or named:
        raise ConfigError(
            f"{path} (grid): {', '.join(axes) or 'none'} given; a task has lists of data.seed and "
            "seed, and nothing else"
        )
    planned = sweep.expand(experiment, {}, build=False)
    runs = tuple((run.config.data.seed, run.config.seed) for run in planned)
    return Task(path=path, title=experiment.about, settings=experiment.settings, runs=runs)


def code(task: Task) -> dict[str, Code]:
    """The modules that a task names, such as that of its model, by role.

    They are looked up in ``sys.path``, which must have no folder of a run yet: a module of the same
    name may lie there.
    """
    return code_of(resolve(task.settings, build=False))


def check(
    folder: Path, task: Task, modules: Mapping[str, Code]
) -> tuple[list[TaskRun], list[Difference]]:
    """The runs at or below a folder as entries of a task, and what is not as the task wants it.

    Every run has the task's settings and modules, is finished or failed, has all its rounds, the
    files that its manifest names, and the scores that its rounds give. Every label has each of the
    task's runs once, and one choice of settings for each partition. Nothing is computed again: that
    is :func:`fedsim.training.verify.verify`.

    Args:
        folder: of the runs.
        task: that they are to be entries of.
        modules: those of the task, see :func:`code`.

    Raises:
        ConfigError: there is no run.
        StoreError: the folder cannot be read.
    """
    known = [each for each in directories.find(folder) if isinstance(each, RunStatus)]
    runs, wrong = list[TaskRun](), list[Difference]()
    for each in known:
        if ARCHIVED.search(each.path.name):
            continue
        name = each.path.relative_to(folder).as_posix()
        try:
            _check_modules(each.path, name, modules)
            runs.append(_run(each, name, task))
        except Difference as found:
            wrong.append(found)
        except (FedsimError, OSError, KeyError, ValueError) as error:
            wrong.append(Difference(name, one_line(error)))
    if not known:
        raise ConfigError(f"{folder}: holds no run")
    return runs, [*wrong, *_of_entries(runs, task, complete=not wrong)]


def _check_modules(run: Path, name: str, modules: Mapping[str, Code]) -> None:
    """What env.json says of the task's modules; a verification compares it with what is there."""
    known = Provenance.read(run)
    for role, wanted in modules.items():
        for given in (known.code.get(role), known.accepted.get(role, wanted)):
            if given != wanted:
                said = "unknown" if given is None else given.short
                place = f"{name}/env.json, code of the {role} {wanted.name}"
                raise Difference(place, said, f"{wanted.short} as in the task")


def _run(run: RunStatus, name: str, task: Task) -> TaskRun:
    """A run as one of the task's; a Difference where it is none."""
    place = f"{name}/config.yaml"
    written = earlier.of_its_version(experiments.read(run.path / "config.yaml").settings)
    values = {key: given.value for key, given in written.items()}
    seeds = {key: Setting(values[key], place) for key in SEEDS}
    if (values["data.seed"], values["seed"]) not in task.runs:
        said = " and ".join(f"{key} {values[key]}" for key in SEEDS)
        raise Difference(place, f"{said}: not a run of the task")
    server = values.get("server")
    methods = [str(values["algorithm"])]
    methods += algorithms.chain(None if server is None else str(server))
    if NO_ENTRY in methods:
        raise Difference(place, f"algorithm {NO_ENTRY}: pools the data, and is no entry")
    chosen = {key: given for key, given in written.items() if _is_free(key, methods)}
    wanted = resolve(task.settings, chosen, seeds, build=False)
    other = difference(wanted, values, has_patients(run.path))
    if other is not None:
        raise Difference(place, other)
    method = {key: given for key, given in chosen.items() if key in ("algorithm", "server")}
    usual = decisive(resolve(task.settings, method, seeds, build=False))
    ours = {
        key: given.value
        for key, given in chosen.items()
        if key == "algorithm" or (_matters(key) and usual.get(key) != given.value)
    }
    known = {
        "label": run.label or ", ".join(methods),
        "partition": values["data.seed"],
        "seed": values["seed"],
        "state": run.state,
        "settings": {key: cell(value) for key, value in ours.items()},
        "name": name,
    }
    if run.state == status.FAILED:
        nothing = dict.fromkeys(METRICS, math.nan)
        return TaskRun(**known, scores=nothing, model="", data="")  # type: ignore[arg-type]
    if run.state != status.FINISHED:
        raise Difference(name, run.problem or f"is {run.state}", "finished")
    _check_files(run.path, name)
    result = _result(run.path, name, wanted.train.rounds)
    return TaskRun(**known, **result)  # type: ignore[arg-type]


def _is_free(key: str, methods: Sequence[str]) -> bool:
    """Whether entries may differ in a key."""
    return key in FREE or not _matters(key) or key.rpartition(".")[0] in methods


def _matters(key: str) -> bool:
    return key not in ELSEWHERE and not key.startswith("engine.")


def _check_files(run: Path, name: str) -> None:
    """The files with the manifest."""
    known = manifest.read(run)
    if known is None:
        raise Difference(f"{name}/{manifest.NAME}", "is missing")
    for file, how in manifest.changed(run, known["files"]):
        raise Difference(f"{name}/{file}", how)


def _result(run: Path, name: str, rounds: int) -> dict[str, object]:
    """Scores, model and data of a finished run."""
    store = RunStore(run)
    table, summary = store.read("rounds").set_index("round"), store.summary
    if list(table.index) != list(range(1, rounds + 1)):
        raise Difference(f"{name}/rounds.csv", f"{len(table)} rounds", f"{rounds} as in the task")
    scores = {}
    for metric in METRICS:
        column = f"test_{metric}"
        scores[metric] = last10(table[column].dropna(), rounds)
        said = summary[f"last10_{column}"]
        if not np.isclose(said, scores[metric], rtol=1e-12, atol=0, equal_nan=True):
            place = f"{name}/summary.csv, column last10_{column}"
            raise Difference(place, str(said), f"{scores[metric]} as rounds.csv gives")
    models = store.read("models")
    digest = summary.get("data_digest")
    return {
        "scores": scores,
        "model": str(models["sha256"].iloc[-1]),
        "data": digest if isinstance(digest, str) else "",
    }


def _of_entries(runs: Sequence[TaskRun], task: Task, *, complete: bool) -> Iterator[Difference]:
    """What is not as it should be of entries as a whole.

    Missing runs are named only where every run could be read (``complete``).
    """
    data = dict[int, TaskRun]()
    for label in dict.fromkeys(run.label for run in runs):
        own, choice = dict[tuple[int, int], TaskRun](), dict[int, TaskRun]()
        for run in (run for run in runs if run.label == label):
            first = own.setdefault((run.partition, run.seed), run)
            if first is not run:
                yield Difference(run.name, f"is the same run of {label} as {first.name}")
            before = choice.setdefault(run.partition, run)
            for key in sorted(run.settings.keys() | before.settings.keys()):
                one, two = (each.settings.get(key, "unset") for each in (run, before))
                if one != two:
                    place = f"{run.name}/config.yaml"
                    yield Difference(place, f"{key} {one}", f"{two} as in {before.name}")
            same = data.setdefault(run.partition, run) if run.data else run
            if same.data != run.data:
                yield Difference(run.name, f"data {run.data}", f"{same.data} as in {same.name}")
        for partition, seed in task.runs if complete else ():
            if (partition, seed) not in own:
                yield Difference(label, f"lacks the run with data.seed {partition} and seed {seed}")
