"""How many runs go side by side, and the drivers that do them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

from fedsim.config.experiments import Settings
from fedsim.config.run import RunConfig
from fedsim.config.validation import cohort_size
from fedsim.core.errors import ConfigError
from fedsim.core.machine import PROCESS, available_memory, cores, model_copies, num_gpus
from fedsim.core.types import GIB
from fedsim.engine.drivers import Drivers
from fedsim.training.callbacks import Callback
from fedsim.training.parallel import Here, execute

if TYPE_CHECKING:
    from fedsim.engine.ray.groups import Need
    from fedsim.training.processes import Processes

Parallel = Literal["auto"] | int
"""How many runs at once; auto: as many as fit."""
OF_RAY = (
    *("address", "actors", "cpus_per_client"),
    *("client_timeout", "max_retries", "aggregation_shards", "data_from"),
)
"""Keys of section engine that say how Ray is used, beside ``gpus_per_client``."""


def with_engine(
    config: RunConfig, given: Sequence[Settings], runs: int, parallel: Parallel = "auto"
) -> RunConfig:
    """The configuration of one of several runs, with the serial engine where that is the default.

    It is where neither an engine is given nor how Ray is used (``--gpus-per-client 0`` does not say
    that), this machine has no GPU, and the runs fill it: there are as many as it has cores, or as a
    round has clients.

    Args:
        config: of the run.
        given: the settings it is made of.
        runs: how many there are.
        parallel: how many are to go side by side.
    """
    asks = any(f"engine.{leaf}" in layer for layer in given for leaf in ("kind", *OF_RAY))
    gpus = config.engine.gpus_per_client
    cohort = cohort_size(config.data.num_clients, config.train.sample_rate)
    few = runs < max(2, min(cores(), cohort)) or parallel == 1
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
    """The drivers for some runs, started; the stack closes them.

    One run at a time takes place in this process; several in processes of this machine, or where
    one of them is on Ray, in actors of Ray.

    Args:
        configs: of all runs that are known.
        parallel: how many are to go side by side.
        sessions: closes the drivers, and what they use.
        callbacks: makes those of a run, where it takes place in this process.
        ahead: of :func:`start_ahead`.

    Raises:
        ConfigError: so many do not fit.
    """
    on_ray = [config.engine for config in configs if config.engine.kind == "ray"]
    if on_ray and (parallel == 1 or len(configs) == 1):
        from fedsim.engine.ray.pool import Session

        return Here(sessions.enter_context(Session(on_ray[0])), callbacks)
    if on_ray:
        from fedsim.engine.ray.drivers import RayDrivers

        need_of = _needs()
        drivers = RayDrivers(execute, on_ray[0], [need_of(c) for c in configs], need_of, parallel)
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


def start_ahead(
    configs: Sequence[RunConfig], parallel: Parallel, sessions: ExitStack
) -> Processes | None:
    """Processes that import torch while the runs are still being checked; the stack closes them.

    None where the runs will not take place in several processes, as far as these configurations,
    some of the sweep's, say it.
    """
    count = by_cores(configs, parallel)
    on_ray = any(config.engine.kind == "ray" for config in configs)
    return None if count == 1 or on_ray else _start(count, sessions)


def _start(count: int, sessions: ExitStack) -> Processes:
    from fedsim.training.processes import Processes

    processes = Processes(count)
    sessions.callback(processes.close)
    return processes


def by_cores(configs: Sequence[RunConfig], parallel: Parallel) -> int:
    """How many of the runs this machine has cores for, at most ``parallel``."""
    if parallel == 1 or len(configs) <= 1:
        return 1
    if parallel == "auto" and any(config.engine.kind != "serial" for config in configs):
        return 1  # nothing is known of what an engine of the user's takes
    asked = len(configs) if parallel == "auto" else min(parallel, len(configs))
    return max(1, min(asked, cores() // max(config.train.threads for config in configs)))


def local_runs(configs: Sequence[RunConfig], parallel: Parallel) -> int:
    """How many runs with an engine of one process go side by side on this machine.

    At most so many as there are runs.

    Raises:
        ConfigError: not so many fit; names the number that does.
    """
    fits = by_cores(configs, parallel)
    asked = min(1 if parallel == "auto" else parallel, len(configs))
    if max(fits, asked) <= 1:
        return 1
    need, free = max(map(memory_of, _different(configs))), available_memory()
    fits = max(1, int(min(free / need, fits)))
    if asked > fits:
        threads = max(config.train.threads for config in configs)
        each = f"{threads} thread{'s' * (threads != 1)}"
        memory = f"about {need / GIB:.2f} GiB of {free / GIB:.1f} GiB free"
        raise ConfigError(
            f"--parallel {parallel}: so many runs do not fit on this machine, {fits} "
            f"do{'es' * (fits == 1)} ({cores()} cores, a run takes {each} and {memory})"
        )
    return fits


def _different(configs: Sequence[RunConfig]) -> list[RunConfig]:
    """One of each kind of run that may need another amount of memory."""
    return list({_kind(config): config for config in configs}.values())


def _kind(c: RunConfig) -> tuple[object, ...]:
    clients = c.data.num_clients, c.train.sample_rate
    return c.data.name, c.data.image_size, c.model.model_dump_json(), clients


def _needs() -> Callable[[RunConfig], Need]:
    """A function that gives the need of a run on Ray; it looks at each kind of run once."""
    from fedsim.engine.ray.groups import Need

    sizes: dict[tuple[object, ...], int] = {}
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
        return Need(
            engine=config.engine,
            num_clients=clients,
            cohort_size=cohort_size(clients, config.train.sample_rate),
            model_bytes=sizes[kind],
        )

    return need_of


def memory_of(config: RunConfig) -> float:
    """Bytes that a run in one process needs, estimated: torch, and vectors of the model.

    Those are the process's own and the updates of a round. The data are not counted;
    ``engine.memory_per_client`` takes the place of the estimate.
    """
    if config.engine.memory_per_client is not None:
        return config.engine.memory_per_client * GIB
    cohort = cohort_size(config.data.num_clients, config.train.sample_rate)
    return PROCESS + (model_copies(config.engine.client_batch) + cohort) * model_bytes(config)


def model_bytes(config: RunConfig) -> int:
    """Bytes of the model, as far as the catalogue of data sets says it; otherwise of three
    channels and ten classes, and 0 for a model of text or of the user's."""
    from fedsim import data, models
    from fedsim.core.types import ModelSpec

    info, m = data.find(config.data.name), config.model
    pixels = config.data.image_size or (info.image_size if info else 0)
    name = m.name or (info.default_model if info else "cnn")
    if not pixels or ":" in name:
        return 0
    spec = ModelSpec(
        name=name,
        num_classes=(info.num_classes if info else 0) or 10,
        in_channels=(info.channels if info else 0) or 3,
        image_size=pixels,
        norm=m.norm,
    )
    return sum(t.nbytes for t in models.build(spec, config.seed).state_dict().values())
