"""How many runs are executed at once, with which engine, and by which drivers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fedsim.config.experiments import Settings
from fedsim.config.keys import KEYS
from fedsim.config.run import RunConfig
from fedsim.config.validation import cohort_size
from fedsim.core import reuse
from fedsim.core.errors import ConfigError
from fedsim.core.machine import PROCESS, available_memory, cores, model_copies, num_gpus
from fedsim.core.text import counted
from fedsim.core.types import GIB
from fedsim.studies.parallel import Drivers, Here
from fedsim.training.callbacks import Callback

if TYPE_CHECKING:
    from torch import nn

    from fedsim.core.types import ModelSpec
    from fedsim.engine.ray.groups import Need
    from fedsim.studies.processes import Processes

Parallel = Literal["auto"] | int
"""How many runs at once; auto: as many as fit."""
OF_RAY = {"engine.kind", *(key for key, declared in KEYS.items() if declared.of_ray)}
"""Keys that say whether and how Ray is used, beside ``engine.gpus_per_client``."""
FEW_CORES = 8
"""With no more cores, as in a laptop, Ray's start and its messages cost runs one at a time more
than its actors gain: 18 short runs took 62 s instead of 43 s on two cores."""


def with_engine(
    config: RunConfig, given: Sequence[Settings], runs: int, parallel: Parallel = "auto"
) -> RunConfig:
    """The configuration of one of several runs, with the serial engine where that is the default.

    The serial engine is the default where neither an engine nor a setting of Ray's is given
    (``--gpus-per-client 0`` is none), this machine has no GPU, and Ray would not be faster: there
    are enough runs to fill the machine (as many as it has cores, or as a round has clients), or,
    one at a time, it has at most :data:`FEW_CORES`.

    Args:
        config: of the run.
        given: the settings from which it was made.
        runs: the number of runs.
        parallel: how many runs at once.
    """
    asks = any(key in layer for layer in given for key in OF_RAY)
    gpus = config.engine.gpus_per_client
    cohort = cohort_size(config.data.num_clients, config.train.sample_rate)
    few = cores() > FEW_CORES if parallel == 1 else runs < max(2, min(cores(), cohort))
    if asks or gpus or few or (gpus is None and num_gpus()):
        return config
    return config.model_copy(update={"engine": config.engine.model_copy(update={"kind": "serial"})})


def make_drivers(
    configs: Sequence[RunConfig],
    parallel: Parallel,
    sessions: ExitStack,
    callbacks: Callable[[], Sequence[Callback]] = tuple,
    ahead: Processes | None = None,
) -> Drivers:
    """Starts the drivers for some runs; the stack closes them.

    One run at a time is executed in this process; several at once in processes on this machine.

    Args:
        configs: of all runs that are known.
        parallel: how many runs at once.
        sessions: closes the drivers, and Ray where they use it.
        callbacks: makes the callbacks of a run that is executed in this process.
        ahead: the processes of :func:`start_ahead`.

    Raises:
        ConfigError: ``parallel`` is a number, and fewer runs fit.
    """
    sessions.enter_context(reuse.across_runs())  # for runs in this process
    on_ray = [config.engine for config in configs if config.engine.kind == "ray"]
    if on_ray and (parallel == 1 or len(configs) == 1):
        from fedsim.engine.ray.pool import Session

        return Here(sessions.enter_context(Session(on_ray[0])), callbacks)
    if on_ray:
        from fedsim.studies.on_ray import ProcessesOnRay

        need_of = _needs()
        drivers = ProcessesOnRay(on_ray[0], [need_of(c) for c in configs], need_of, parallel)
        sessions.callback(drivers.close)
        return drivers
    count = by_cores(configs, parallel)
    if count == 1:
        local_runs(configs, parallel)  # refuses more than one
        return Here(None, callbacks)
    if ahead is None:
        ahead = _start(count, sessions)
    ahead.resize(local_runs(configs, parallel))
    return ahead


def introduction(work: str, drivers: Drivers, configs: Sequence[RunConfig]) -> str:
    """Says how many runs are done at once, where, and with which engines.

    Args:
        work: what is to be done, such as ``18 runs``.
        drivers: that do it.
        configs: of the runs, at least one.

    Returns:
        Such as ``18 runs, 2 at once in 2 processes (serial engine)``.
    """
    count = len(drivers.slots)
    at_once = f", {count} at once" if count > 1 else ", one at a time" if len(configs) > 1 else ""
    place = drivers.place and (" " if at_once else ", ") + drivers.place
    kinds = " and ".join(sorted({config.engine.kind for config in configs}))
    return f"{work}{at_once}{place} ({kinds} engine)"


def start_ahead(
    configs: Sequence[RunConfig], parallel: Parallel, sessions: ExitStack
) -> Processes | None:
    """Processes that import torch while the runs are still being checked; the stack closes them.

    None where the runs do not need several processes, by the first configurations of the sweep.
    """
    count = by_cores(configs, parallel)
    on_ray = any(config.engine.kind == "ray" for config in configs)
    return None if count == 1 or on_ray else _start(count, sessions)


def _start(count: int, sessions: ExitStack) -> Processes:
    from fedsim.studies.processes import Processes

    processes = Processes(count)
    sessions.callback(processes.close)
    return processes


def by_cores(configs: Sequence[RunConfig], parallel: Parallel) -> int:
    """How many of the runs this machine has cores for, at most ``parallel``."""
    if parallel == 1 or len(configs) <= 1:
        return 1
    if parallel == "auto" and any(config.engine.kind != "serial" for config in configs):
        return 1  # how many cores a user's own engine takes is not known
    asked = len(configs) if parallel == "auto" else min(parallel, len(configs))
    return max(1, min(asked, cores() // max(config.train.threads for config in configs)))


def local_runs(configs: Sequence[RunConfig], parallel: Parallel) -> int:
    """How many runs, each in one process, fit on this machine at once; at most all of them.

    Raises:
        ConfigError: ``parallel`` is a number, and fewer fit; the message says how many do.
    """
    fits = by_cores(configs, parallel)
    asked = min(1 if parallel == "auto" else parallel, len(configs))
    if max(fits, asked) <= 1:
        return 1
    need, free = max(map(memory_of, _different(configs))), available_memory()
    fits = max(1, int(min(free / need, fits)))
    if asked > fits:
        threads = max(config.train.threads for config in configs)
        each = counted(threads, "thread")
        memory = f"about {need / GIB:.2f} GiB of {free / GIB:.1f} GiB free"
        raise ConfigError(
            f"--parallel {parallel}: so many runs do not fit on this machine, {fits} "
            f"do{'es' * (fits == 1)} ({cores()} cores, a run takes {each} and {memory})"
        )
    return fits


def _different(configs: Sequence[RunConfig]) -> list[RunConfig]:
    """One configuration of each kind; runs of a kind need the same memory."""
    return list({_kind(config): config for config in configs}.values())


def _kind(c: RunConfig) -> tuple[object, ...]:
    clients = c.data.num_clients, c.train.sample_rate, _pooled(c)
    return c.data.name, c.data.image_size, c.model.model_dump_json(), clients


def _pooled(config: RunConfig) -> bool:
    """Whether all clients of a round have one update in common."""
    from fedsim.training import setup

    try:
        return setup.algorithm_of(config).pools
    except ConfigError:  # which the run will say
        return False


def _needs() -> Callable[[RunConfig], Need]:
    """A function that computes what a run needs on Ray, once for each kind of run."""
    from fedsim.engine.ray.groups import Need

    sizes: dict[tuple[object, ...], tuple[int, int]] = {}
    owned: dict[str, int] = {}

    def need_of(config: RunConfig) -> Need:
        clients = config.data.num_clients
        if config.engine.actors == "per-client" and not config.decides_num_clients:
            from fedsim.training.loading import load

            data = config.data.model_dump_json()
            if data not in owned:
                owned[data] = load(config)[1].num_clients
            clients = owned[data]
        kind = _kind(config)
        if kind not in sizes:
            sizes[kind] = model_bytes(config)
        vector, frozen = sizes[kind]
        return Need(
            engine=config.engine,
            num_clients=clients,
            cohort_size=cohort_size(clients, config.train.sample_rate),
            model_bytes=vector,
            frozen_bytes=frozen,
            pooled=_pooled(config),
        )

    return need_of


def memory_of(config: RunConfig) -> float:
    """Estimated bytes that a run in one process needs; ``engine.memory_per_client`` replaces it.

    Counted are torch, copies of the model and the updates of a round, not the data.
    """
    if config.engine.memory_per_client is not None:
        return config.engine.memory_per_client * GIB
    cohort = cohort_size(config.data.num_clients, config.train.sample_rate)
    updates = 1 if _pooled(config) else cohort
    vector, frozen = model_bytes(config)
    return PROCESS + frozen + (model_copies(config.engine.client_batch) + updates) * vector


def model_bytes(config: RunConfig) -> tuple[int, int]:
    """Bytes of the model's vector and of its frozen tensors; nothing is read or downloaded.

    The sizes are those in the catalogue of data sets or, for other data, three channels and ten
    classes, and 224 pixels for networks of libraries. 0 for a model of text or of the user's, and
    where it cannot be built.
    """
    from fedsim.core.layout import float_tensors, frozen_names

    spec = _likely_spec(config)
    try:
        model = None if spec is None else _shapes(spec, config.seed)
    except ConfigError:  # the run will say why
        model = None
    if model is None:
        return 0, 0
    sizes, out = float_tensors(model), frozen_names(model)
    frozen = sum(sizes[name].nbytes for name in out)
    return sum(t.nbytes for t in sizes.values()) - frozen, frozen


def gpu_need(config: RunConfig, room: float = math.inf) -> int | None:
    """Bytes of GPU memory that an actor needs, with the sizes of :func:`model_bytes`.

    Without the samples, whose number only the data say. None for a model of text or of the user's,
    and where it cannot be built or traced.

    Args:
        config: of a run whose clients train on GPUs.
        room: bytes up to which the updates of a call stay there.
    """
    from fedsim.engine.footprint import need_of

    spec = _likely_spec(config)
    try:
        model = None if spec is None else _shapes(spec, config.seed)
    except ConfigError:  # the run will say why
        model = None
    if spec is None or model is None:
        return None
    cohort = cohort_size(config.data.num_clients, config.train.sample_rate)
    return need_of(
        model,
        spec,
        config.training,
        config.evaluation.batch_size,
        clients=min(_likely_block(config, spec), cohort),
        cohort=cohort,
        room=room,
    )


def _likely_block(config: RunConfig, spec: ModelSpec) -> int:
    """The clients of a block on a GPU, with full batches: what the data decide is not known yet."""
    import torch

    from fedsim import models
    from fedsim.core.layout import FlatModel
    from fedsim.training import setup, stacking

    asked = config.engine.client_batch
    if asked != "auto":
        return int(asked)
    with suppress(ConfigError):  # clients that cannot be stacked train one by one
        stacking.check(config, setup.algorithm_of(config), "engine.client_batch")
        flat = FlatModel(models.build(spec, config.seed), torch.device("cpu"))
        return stacking.automatic(spec, flat, config.train.batch_size, stacking.GPU)
    return 1


def _likely_spec(config: RunConfig) -> ModelSpec | None:
    """The model with the sizes of :func:`model_bytes`, None where these cannot be guessed."""
    from fedsim import data
    from fedsim.models.libraries import library_of

    info = data.find(config.data.name)
    name, known = config.model_name, info.image_size if info else 0
    of_library = library_of(name) is not None
    pixels = config.data.image_size or known or (224 if of_library else 0)
    if not pixels or (":" in name and not of_library):
        return None
    spec = config.model_spec(
        num_classes=(info.num_classes if info else 0) or 10,
        in_channels=(info.channels if info else 0) or 3,
        image_size=pixels,
    )
    return spec.without_weights


def _shapes(spec: ModelSpec, seed: int) -> nn.Module:
    """The model without values, unless it computes with them when it is built.

    Raises:
        ConfigError: there is no such model.
    """
    import torch

    from fedsim import models

    with suppress(ConfigError), torch.device("meta"):
        return models.build(spec, seed)
    return models.build(spec, seed)


def check_trainable(configs: Iterable[RunConfig]) -> None:
    """Refuses a ``model.trainable`` that the run's model does not have.

    Only for data sets whose channels and classes are in the catalogue, and models of fedsim or of
    libraries; what depends on other sizes, or on a model of the user's, is found when a run begins.

    Raises:
        ConfigError: names the setting.
    """
    different: dict[ModelSpec, int] = {}
    for config in configs:
        spec = _likely_spec(config) if config.model.trainable != "all" else None
        if spec is not None and _has_known_sizes(config):
            different.setdefault(spec, config.seed)
    for spec, seed in different.items():
        try:
            _shapes(replace(spec, trainable="all"), seed)
        except ConfigError:  # the run will say why
            continue
        _shapes(spec, seed)


def _has_known_sizes(config: RunConfig) -> bool:
    """Whether the channels and classes of the data are known before they are read."""
    from fedsim import data

    info = data.find(config.data.name)
    return info is not None and bool(info.channels and info.num_classes)
