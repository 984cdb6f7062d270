"""A1: the server step alone, beside what the machine's memory and arithmetic allow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.pairing import Spread
from benchmarks.processes import available_memory
from fedsim import algorithms
from fedsim.core.types import F64, Array, ClientUpdate, Layout, RoundContext, Slot
from fedsim.engine.ray.cluster import local_node
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from fedsim.server.linalg import single_threaded_blas

METHODS = ("fedavg", "fedgh", "fedld")
COHORTS = (5, 10, 50)
SIZES = (2_400_000, 23_500_000)
READ_BYTES = 1 << 30
"""Size of the array that the read bandwidth is measured on; no cache holds it."""
PRODUCT = 3072
"""Order of the matrices whose product gives the float64 rate."""
SPIN = 0.2
"""Seconds for which BLAS's own threads may keep the cores busy after a product."""
SHIFT = 4099
"""Entries between the starts of two clients' updates in the pool of random numbers."""


@dataclass(frozen=True)
class Machine:
    """What the machine does at best.

    Args:
        bandwidth: bytes read per second, all cores together.
        rate: float64 operations per second in a large matrix product, all cores together.
    """

    bandwidth: float
    rate: float

    def floor(self, m: int, d: int, itemsize: int = 4) -> float:
        """Seconds of a server step that nothing can beat.

        The larger of two reads of all updates, one for K and one for the weighted sum, and the
        ``m (m + 1) d`` operations of a symmetric K.
        """
        reads = 2 * m * d * itemsize / self.bandwidth
        return max(reads, m * (m + 1) * d / self.rate)


@dataclass(frozen=True)
class Step:
    """The server step of a method for m updates of d parameters.

    ``seconds`` and ``floors`` have one entry per repetition; ``skipped`` says why there is none.
    ``tables`` has the seconds of K where the step does not need it (fedavg) and a run pays for it
    beside the step, since ``conflict_ratio`` and the norms in its tables are read from K.
    """

    method: str
    m: int
    d: int
    seconds: tuple[float, ...] = ()
    floors: tuple[float, ...] = ()
    skipped: str = ""
    tables: tuple[float, ...] = ()

    @property
    def ratio(self) -> Spread:
        """Over the floor, repetition by repetition."""
        return Spread.of([s / f for s, f in zip(self.seconds, self.floors, strict=True)])


def measure_machine(repeats: int = 3) -> Machine:
    """Best of several tries."""
    return Machine(_bandwidth(repeats), _rate(repeats))


def _bandwidth(repeats: int) -> float:
    cores = int(local_node().cpus)
    data = np.ones(READ_BYTES // 4, dtype=np.float32)
    with single_threaded_blas(), ThreadPoolExecutor(cores) as pool:
        parts = np.array_split(data, cores * 4)
        seconds = best(lambda: list(pool.map(lambda part: np.dot(part, part), parts)), repeats)
    return data.nbytes / seconds


def _rate(repeats: int) -> float:
    a = np.random.default_rng(0).random((PRODUCT, PRODUCT))
    with threadpool_limits(int(local_node().cpus), "blas"):  # whatever OMP_NUM_THREADS says
        return 2 * PRODUCT**3 / best(lambda: a @ a, repeats)


def best(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of ``repeats`` tries."""
    return min(timed(work) for _ in range(repeats))


def timed(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(
    repeats: int,
    cohorts: Sequence[int] = COHORTS,
    sizes: Sequence[int] = SIZES,
    machine: Callable[[], Machine] = measure_machine,
) -> Iterator[Step]:
    """The steps of all methods, cohorts and sizes; machine and methods take turns."""
    for d in sizes:
        for m in cohorts:
            yield from _steps(repeats, m, d, machine)


def _steps(repeats: int, m: int, d: int, machine: Callable[[], Machine]) -> list[Step]:
    needed, free = 4 * d * (m + 4) + READ_BYTES, available_memory()
    if needed > 0.8 * free:
        reason = f"needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        return [Step(method, m, d, skipped=reason) for method in METHODS]
    rows = updates(m, d)
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    floors, tables = [], []
    for repeat in range(1 + repeats):
        floor = machine().floor(m, d)
        time.sleep(SPIN)
        spent = {method: timed(partial(step, method, rows)) for method in METHODS}
        k = timed(partial(products, rows))
        if repeat:  # the first warms up
            floors.append(floor)
            tables.append(k)
            for method in METHODS:
                seconds[method].append(spent[method])
    return [
        Step(
            method, m, d, tuple(seconds[method]), tuple(floors),
            tables=tuple(tables) if method == "fedavg" else (),
        )
        for method in METHODS
    ]  # fmt: skip


def updates(m: int, d: int) -> list[Array]:
    """m arrays (d,) float32 in memory of their own, cut from one pool of random numbers."""
    pool = np.random.default_rng(0).standard_normal(d + m * SHIFT, dtype=np.float32)
    return [pool[i * SHIFT : i * SHIFT + d].copy() for i in range(m)]


def step(method: str, rows: Sequence[Array]) -> Array:
    """The server step of a method, or of a chain of them as in ``nnm,krum``.

    The cohort is new, so that nothing is left from the step before. The first row is the server's
    own update, too, where it has one (``fltrust``).
    """
    ctx = RoundContext(round=0, num_rounds=1, num_clients=len(rows), lr=0.01, seed=0)
    server = algorithms.compose("fedavg", {}, server=method).server
    cohort = replace(_cohort(rows), reference=rows[0])
    return server.step(RuleState(), cohort, ctx).step


def products(rows: Sequence[Array]) -> F64:
    """K (m, m) alone."""
    return _cohort(rows).gram(slice(0, len(rows[0])))


def _cohort(rows: Sequence[Array]) -> Cohort:
    d = len(rows[0])
    return Cohort.of(
        [
            ClientUpdate(client_id=i, num_samples=100, num_steps=1, delta=row)
            for i, row in enumerate(rows)
        ],
        Layout((Slot(name="all", shape=(d,), start=0, stop=d),)),
    )
