"""How many runs are executed at once, with which engine, and by which drivers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

from fedsim.config.experiments import Settings
from fedsim.config.keys import KEYS
from fedsim.config.run import RunConfig
from fedsim.config.validation import cohort_size
from fedsim.core.errors import ConfigError
from fedsim.core.machine import PROCESS, available_memory, cores, model_copies, num_gpus
from fedsim.core.text import counted
from fedsim.core.types import GIB
from fedsim.studies.parallel import Drivers, Here
from fedsim.training.callbacks import Callback
from fedsim.training.sizes import model_bytes

if TYPE_CHECKING:
    from fedsim.engine.ray.several import Need

Parallel = Literal["auto"] | int
"""How many runs at once; auto: as many as fit."""
OF_RAY = {"engine.kind", *(key for key, declared in KEYS.items() if declared.of_ray)}
"""Keys that say whether and how Ray is used, beside ``engine.gpus_per_client``."""
FEW_CORES = 8
"""With no more cores, as in a laptop, Ray's start and its messages cost runs one at a time more
than its actors gain: 18 short runs took 62 s instead of 43 s on two cores."""


def with_engine(
    config: RunConfig, layers: Sequence[Settings], runs: int, parallel: Parallel = "auto"
) -> RunConfig:
    """The configuration of one of several runs, with the serial engine where that is the default:
    no engine or setting of Ray's is given in the ``layers``, there is no GPU, and there are runs
    enough to fill the machine or, one at a time, at most :data:`FEW_CORES`."""
    asks = any(key in layer for layer in layers for key in OF_RAY)
    gpus = config.engine.gpus_per_client
    cohort = cohort_size(config.data.num_clients, config.train.sample_rate)
    few = cores() > FEW_CORES if parallel == 1 else runs < max(2, min(cores(), cohort))
    if asks or gpus or few or (gpus is None and num_gpus()):
        return config
    return config.model_copy(update={"engine": config.engine.model_copy(update={"kind": "serial"})})


def make_drivers(
    configs: Sequence[RunConfig],
    parallel: Parallel,
    stack: ExitStack,
    callbacks: Callable[[], Sequence[Callback]] = tuple,
) -> Drivers:
    """Starts what does some runs, and Ray where they use it; the stack closes both. One run at a
    time is executed in this process, several at once in processes on this machine."""
    on_ray = [config.engine for config in configs if config.engine.kind == "ray"]
    if on_ray and (parallel == 1 or len(configs) == 1):
        from fedsim.engine.ray.pool import Session

        return Here(stack.enter_context(Session(on_ray[0])), callbacks)
    shared = None
    if on_ray:
        from fedsim.engine.ray.several import shared_ray

        needs = [_need(runs[0]) for runs in by_kind(configs)]
        shared = stack.enter_context(shared_ray(on_ray[0], needs, len(configs), parallel))
    count = local_runs(configs, parallel) if shared is None else shared.count
    if shared is None and count == 1:
        return Here(None, callbacks)
    from fedsim.studies.processes import Processes

    processes = Processes(count, shared)
    stack.callback(processes.close)
    return processes


def introduction(work: str, drivers: Drivers, configs: Sequence[RunConfig]) -> str:
    """Such as ``18 runs, 2 at once in 2 processes (serial engine)``."""
    count = len(drivers.slots)
    at_once = f", {count} at once" if count > 1 else ", one at a time" if len(configs) > 1 else ""
    place = drivers.place and (" " if at_once else ", ") + drivers.place
    kinds = " and ".join(sorted({config.engine.kind for config in configs}))
    return f"{work}{at_once}{place} ({kinds} engine)"


def local_runs(configs: Sequence[RunConfig], parallel: Parallel) -> int:
    """How many runs, each in one process, fit on this machine at once; a ConfigError where fewer
    fit than a given number."""
    if parallel == 1 or len(configs) <= 1:
        return 1
    if parallel == "auto" and any(config.engine.kind != "serial" for config in configs):
        return 1  # how many cores a user's own engine takes is not known
    most = len(configs) if parallel == "auto" else min(parallel, len(configs))
    threads = max(config.train.threads for config in configs)
    fits = max(1, min(most, cores() // threads))
    if fits == 1 and parallel == "auto":
        return 1
    need, free = max(memory_of(runs[0]) for runs in by_kind(configs)), available_memory()
    fits = max(1, int(min(free / need, fits)))
    if parallel != "auto" and most > fits:
        memory = f"about {need / GIB:.2f} GiB of {free / GIB:.1f} GiB free"
        raise ConfigError(
            f"--parallel {parallel}: so many runs do not fit on this machine, {fits} "
            f"do{'es' * (fits == 1)} ({cores()} cores, a run takes {counted(threads, 'thread')} "
            f"and {memory})"
        )
    return fits


def by_kind(configs: Sequence[RunConfig]) -> list[list[RunConfig]]:
    """The runs of each kind, in which nothing differs that decides time and memory of a round."""
    kinds: dict[str, list[RunConfig]] = {}
    for config in configs:
        values = config.model_dump(mode="json")
        for section in ("data", "train"):
            leaves = [leaf for leaf in values[section] if KEYS[f"{section}.{leaf}"].shape]
            values[section] = {leaf: values[section][leaf] for leaf in leaves}
        free = dict.fromkeys(("label", "seed", "hyperparameters"))
        kinds.setdefault(json.dumps(values | free), []).append(config)
    return list(kinds.values())


def _need(config: RunConfig) -> Need:
    """What a run needs on Ray."""
    from fedsim.engine.ray.several import Need

    clients = config.data.num_clients
    if config.engine.actors == "per-client" and not config.decides_num_clients:
        from fedsim.training.loading import load

        clients = load(config)[1].num_clients
    vector, frozen = model_bytes(config)
    cohort = cohort_size(clients, config.train.sample_rate)
    return Need(config.engine, clients, cohort, vector, frozen)


def memory_of(config: RunConfig) -> float:
    """Estimated bytes that a run in one process needs, without the data."""
    if config.engine.memory_per_client is not None:
        return config.engine.memory_per_client * GIB
    cohort = cohort_size(config.data.num_clients, config.train.sample_rate)
    vector, frozen = model_bytes(config)
    return PROCESS + frozen + (model_copies(config.engine.client_batch) + cohort) * vector
