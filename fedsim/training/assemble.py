"""Assembles a run from its configuration: the one place that knows all of its parts."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from fedsim import algorithms, models, tasks
from fedsim.algorithms.base import Algorithm, identity
from fedsim.client import probe
from fedsim.client.context import LocalEnv
from fedsim.client.criterion import criterion_of
from fedsim.compressors.base import Compression, Compressor
from fedsim.config.resolve import with_normalization
from fedsim.config.run import RunConfig
from fedsim.config.sections import ClockConfig
from fedsim.config.validation import cohort_size
from fedsim.core.errors import ConfigError
from fedsim.core.imports import users_code
from fedsim.core.layout import FlatModel
from fedsim.core.rng import generator
from fedsim.core.types import I64, Dataset, Layout, ModelSpec, Partition, RoundContext
from fedsim.data import partitions, patients
from fedsim.engine import registry as executors
from fedsim.engine.base import Executor
from fedsim.engine.devices import server_device
from fedsim.identity.provenance import Data, Provenance, code_of, data_of
from fedsim.models import weights
from fedsim.models.libraries import library_of
from fedsim.models.registry import Built
from fedsim.schedules.asynchronous import Buffered
from fedsim.schedules.base import Schedule, schedule_of
from fedsim.schedules.oort import Oort
from fedsim.schedules.selection import BySize, Fixed, Poisson, PowerOfChoice, RoundRobin, fixed
from fedsim.server.transforms import StalenessWeights
from fedsim.storage.checkpoint import ServerState
from fedsim.systems.clock import BOUNDS, FLOAT_BYTES, TRAITS, Clock, LocalSchedule
from fedsim.systems.distributions import parse_within
from fedsim.systems.trace import read_trace
from fedsim.training import combinations, evaluate, stacking
from fedsim.training.features import with_features
from fedsim.training.loading import deal, with_shifts
from fedsim.training.malicious import attack_of, attacked, malicious_clients
from fedsim.training.privacy import check_samples, private, with_noise
from fedsim.training.setup import Setup, needs_whole_updates


def start_of(setup: Setup) -> tuple[Setup, ServerState]:
    """The state before the first round, and the setup without the start vector.

    A run lets go of it with its first step, which matters where models are large.
    """
    return replace(setup, initial=setup.initial[:0].copy()), ServerState(params=setup.initial)


def prepare(config: RunConfig) -> Setup:
    """Loads the data, splits them, and builds model and method; starts nothing."""
    executors.check(config.engine)
    config = with_normalization(config)
    dataset, partition, kind = deal(config)
    digests = data_of(dataset, config.data.dir)
    dataset = with_shifts(config, dataset, partition)
    evaluate.check_parts(config, dataset, partition)
    return assemble(config, dataset, partition, kind, digests)


def assemble(
    config: RunConfig,
    dataset: Dataset,
    partition: Partition,
    kind: str,
    digests: Data | None = None,
) -> Setup:
    """Builds model and method for data that are loaded; ``digests`` are theirs."""
    model, algorithm = _model(config, dataset), algorithm_of(config)
    built, flat, clock = _built(config, model, algorithm, dataset, partition)
    malicious = malicious_clients(config.attack, config.data, partition)
    attack = attack_of(config, dataset, algorithm)
    algorithm = attacked(algorithm, attack, malicious, config.attack.start_round)
    schedule = _schedule_of(config, partition.participants)
    size = cohort_size(len(partition.participants), config.train.sample_rate)
    if isinstance(schedule, Fixed):
        size = schedule.sizes[1]
    criterion = criterion_of(algorithm.criterion, dataset)
    rules = [algorithm.local, *filter(None, [algorithm.beside])]
    blocks = stacking.stacking_of(config, model, flat, rules, criterion, partition, size)
    setup = Setup(
        config=config.resolved(
            num_clients=partition.num_clients,
            partition=kind,
            group=patients.grouping(dataset, kind, config.data.group),
            model=model.name,
            client_batch=1 if blocks is None else blocks.clients,
        ),
        dataset=dataset,
        partition=partition,
        model=model,
        algorithm=algorithm,
        layout=flat.layout,
        initial=flat.vector(),
        cohort_size=size,
        alpha=config.data.alpha if "alpha" in partitions.options(kind) else None,
        clock=clock,
        schedule=schedule,
        stacking=blocks,
        start=built.start,
        frozen=flat.frozen,
        provenance=Provenance(code_of(config), digests),
        malicious=tuple(malicious),
        attack=attack,
        root=draw_root(algorithm.server.root_samples, dataset, config.data.seed),
        server_device=server_device(config.engine),
        has_features=hasattr(flat.model, "features"),
    )
    combinations.check(setup)
    _check(setup)
    return _private(setup, flat)


def _built(
    config: RunConfig,
    model: ModelSpec,
    algorithm: Algorithm,
    dataset: Dataset,
    partition: Partition,
) -> tuple[Built, FlatModel, Clock]:
    """The network with its start weights, its tensors and the clock, once it has been tried."""
    with users_code(f"model.name={model.name}, algorithm={config.algorithm}", ConfigError):
        built = models.start(model, config.seed, algorithm.adapt, dataset.class_names)
        flat = FlatModel(built.model, torch.device("cpu"))
        clock = clock_of(config, partition.num_clients, algorithm, flat.layout)
    weights.check(flat, model.name)
    published = library_of(model.name) is not None or ":" not in model.name
    if not published or algorithm.adapt is not identity:
        again = models.build(model.without_weights, config.seed, algorithm.adapt)
        fresh = FlatModel(again, torch.device("cpu"), frozen=flat.frozen)
        samples = stacking.examples(model)
        criterion = criterion_of(algorithm.criterion, dataset)
        why = probe.fault(flat, fresh, criterion, config.training, samples)
        if why is not None:
            raise ConfigError(f"model.name={model.name}: {why}")
    return built, flat, clock


def _private(setup: Setup, flat: FlatModel) -> Setup:
    """The setup with what section ``dp`` adds; a ConfigError where its parts cannot be private."""
    config, algorithm, partition = setup.config, setup.algorithm, setup.partition
    if config.dp.level == "example":
        check_samples(criterion_of(algorithm.criterion, setup.dataset), setup.model, flat)
    if config.dp.level != "user":
        return setup
    sizes = [len(partition.train[client]) for client in partition.participants]
    config = with_noise(config, len(sizes), setup.cohort_size)
    algorithm, budget = private(config, algorithm, setup.layout, sizes, setup.cohort_size)
    return replace(setup, config=config, algorithm=algorithm, budget=budget)


def _check(setup: Setup) -> None:
    """Refuses more entries than clients send, and cohorts that server or schedule cannot take."""
    config, server, schedule = setup.config, setup.algorithm.server, setup.schedule
    sent, k = setup.num_sent, config.compress.k or 0
    if k > sent:
        raise ConfigError(f"compress.k: {k} given, but clients send {sent} parameters")
    if isinstance(schedule, Buffered):
        server.check(schedule.sizes(setup.roster)[0])
    elif not schedule.asynchronous:
        server.check(schedule.sizes[0] if isinstance(schedule, Fixed) else setup.cohort_size)
    if isinstance(schedule, PowerOfChoice):
        schedule.size(setup.roster)
    if isinstance(schedule, Poisson):  # of which the server gets cohorts of every size
        for m in range(1, len(setup.partition.participants) + 1):
            try:
                server.check(m)
            except ConfigError as error:
                message = f"train.cohort: poisson given, so that a round may have {m} clients"
                raise ConfigError(f"{message}; {error}") from error


def draw_root(samples: int, dataset: Dataset, seed: int) -> I64:
    """(samples,) indices of validation samples, uniformly without replacement, ascending: the root
    set, on which the server itself trains."""
    if len(dataset.val) < samples:
        raise ConfigError(
            f"fltrust.samples: {samples} given; the server trains on so many validation samples, "
            f"and {dataset.name} has {len(dataset.val)}: set data.val_fraction, as in 0.1, or "
            "lower fltrust.samples"
        )
    if not samples:
        return dataset.val[:0]
    return np.sort(generator(seed, "root").choice(dataset.val, samples, replace=False))


def _schedule_of(config: RunConfig, participants: Sequence[int]) -> Schedule:
    """The schedule that clock.mode, train.selection and train.schedule ask for."""
    if config.clock.mode == "async":
        return Buffered(config.asynchrony.buffer, config.asynchrony.concurrency)
    if config.train.cohort == "poisson":
        return Poisson()
    train = config.train
    match train.selection:
        case "size":
            return BySize()
        case "round_robin":
            return RoundRobin()
        case "power_of_choice":
            return PowerOfChoice(train.candidates)
        case "oort":
            return Oort()
        case "fixed":
            return fixed(train.clients or "", train.rounds, participants)
    return schedule_of(config)


def algorithm_of(config: RunConfig) -> Algorithm:
    """The method, of its client part, server part, margin control and compression."""
    algorithm = algorithms.compose(
        config.algorithm,
        config.hyperparameters,
        server=config.server,
        margin=config.margin,
        margin_weight=config.margin_weight,
        margin_threshold=config.margin_threshold,
    )
    if config.compress.name != "none":
        compressor = config.compress.make(Compressor, (), config.hyperparameters)
        compressed = Compression(compressor=compressor, personal=algorithm.personal)
        algorithm = replace(algorithm, transforms=(*algorithm.transforms, compressed))
    if config.clock.mode == "sync":
        return algorithm
    a, server = config.asynchrony, algorithm.server
    weights = StalenessWeights(a.staleness, a.exponent, a.slope, a.threshold, a.mixing)
    return replace(algorithm, server=replace(server, receive=(weights, *server.receive)))


def _model(config: RunConfig, dataset: Dataset) -> ModelSpec:
    """The model as data, with the sizes that the data set's samples have."""
    width = dataset.x.shape[1]
    channels, size = (dataset.vocabulary, width) if dataset.vocabulary else (width, 1)
    return config.model_spec(
        num_classes=dataset.num_classes,
        in_channels=channels,
        image_size=size if dataset.pipeline is None else dataset.pipeline.size,
        inputs=dataset.inputs,
        per_token=dataset.per_token,
        per_pixel=tasks.of(dataset).output == "pixel",
    )


def make_executor(setup: Setup, session: Any = None) -> Executor:
    """The executor that section ``engine`` asks for; ``session`` shares Ray with other runs."""
    engine = setup.config.engine
    return executors.start(
        with_features(setup.spec),
        engine,
        update_bytes=setup.vector_bytes,
        whole=needs_whole_updates(setup),
        session=session,
    )


def clock_of(config: RunConfig, num_clients: int, algorithm: Algorithm, layout: Layout) -> Clock:
    """The clock that section ``clock`` asks for; the algorithm says how often clients pass over
    their data, and what of the model stays with them."""
    c = config.clock
    shared = [s.stop - s.start for s in layout.slots if not algorithm.personal(s)]
    if algorithm.pools:
        if c != ClockConfig():
            key = next(key for key, value in ClockConfig() if getattr(c, key) != value)
            raise ConfigError(
                f"clock.{key}: {getattr(c, key)} given; algorithm {config.algorithm} trains on "
                "pooled data in one place, without clients that take time or stay away"
            )
        return Clock()  # no model is sent
    if c == ClockConfig():
        return Clock(vector_bytes=FLOAT_BYTES * sum(shared))
    traits = {name: getattr(c, name) for name in TRAITS if getattr(c, name) is not None}
    return Clock(
        seed=config.seed,
        distributions={name: parse_within(v, *BOUNDS[name]) for name, v in traits.items()},
        trace={} if c.trace is None else read_trace(Path(c.trace), num_clients, traits),
        work=parse_within(c.work, *BOUNDS["work"]),
        deadline=math.inf if c.deadline is None else c.deadline,
        late=c.late,
        schedule=LocalSchedule(
            epochs=_epochs(config, num_clients, algorithm),
            batch_size=config.train.batch_size,
            skips_single=not config.train.frozen_bn and any(s.batchnorm for s in layout.slots),
            fixed=config.train.local_steps,
        ),
        vector_bytes=FLOAT_BYTES * sum(shared),
    )


def _epochs(config: RunConfig, num_clients: int, algorithm: Algorithm) -> int:
    """The passes over its data that a client's training makes, all phases together."""
    t = config.train
    ctx = RoundContext(
        round=0, num_rounds=t.rounds, num_clients=num_clients, lr=t.lr, seed=config.seed
    )
    environment = SimpleNamespace(training=config.train, ctx=ctx)
    try:
        phases = algorithm.local.phases(cast(LocalEnv, environment))
    except AttributeError as error:
        raise ConfigError(
            f"clock: algorithm {config.algorithm} plans its training with more than the settings "
            f"({error}), so that its time is not known before"
        ) from error
    return sum(phase.epochs for phase in phases)
