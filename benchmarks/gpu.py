"""``python -m benchmarks gpu``: fedsim on a GPU beside plain PyTorch loops, in one process.

Rows: P (pfl-research's CIFAR-10 job), R (ResNet-50), S (what ``fedsim run`` alone does), K (the
server step), E (evaluation), F (actors that share the GPU). Each has ``--seconds``.
"""

from __future__ import annotations

import importlib.util
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, get_args

import click
import numpy as np
import torch

import fedsim
from benchmarks import loops, peers, report
from benchmarks.loops import Loop, StackedLoop, arithmetic, images, seconds_of
from benchmarks.pairing import Spread
from benchmarks.report import Result
from benchmarks.workloads import WORKLOADS, Workload, run_config
from fedsim.config.resolve import from_flags, load_config
from fedsim.config.run import RunConfig
from fedsim.core.settings import Arithmetic
from fedsim.core.types import Array
from fedsim.server.columns import Columns, LocalColumns
from fedsim.server.device_columns import DeviceColumns

WARM = 2
"""First rounds of a run that do not count."""
PRECISIONS: tuple[Arithmetic, ...] = get_args(Arithmetic)
Measured = tuple[Mapping[str, float], Mapping[str, object]]
"""By part of a case its value, and details for the JSON file."""


@dataclass(frozen=True)
class Part:
    """One number of a case: a line of the table.

    Args:
        name: ``round``, or a phase of the run.
        beside: the line of the same row with which it is compared, as ``case: part``.
        target: the most that the ratio, or the value where there is none, shall be.
        unit: of the value.
    """

    name: str = "round"
    beside: str = ""
    target: float | None = None
    unit: str = "ms"


@dataclass(frozen=True)
class Case:
    """What is measured together: ``measure`` is called with the seconds that it may take."""

    name: str
    measure: Callable[[float], Measured]
    parts: Sequence[Part] = (Part(),)


@dataclass
class Ends(fedsim.Callback):
    """Ends a run when its seconds are over, once ``least`` rounds after the warm ones are done."""

    reads_files: ClassVar[bool] = False  # a round may be written while the next one is done
    seconds: float
    least: int
    times: list[float] = field(default_factory=list)

    def on_round_end(self, round: int, rows: object) -> Any:
        """Notes the time, and says whether to stop."""
        self.times.append(time.perf_counter())
        over = round >= WARM + self.least and self.times[-1] > self.times[WARM - 1] + self.seconds
        return "stop" if over else None


@dataclass(frozen=True)
class Bench:
    """Where the rows are measured, and how large they are.

    Args:
        device: a GPU, or the CPU to try the script out.
        folder: for runs and data.
        tiny: everything in miniature.
        data_dir: of CIFAR-10; None for random images of its format, which cost the same.
        pfl: Python of an environment with pfl-research.
    """

    device: torch.device
    folder: Path
    tiny: bool = False
    data_dir: Path | None = None
    pfl: Path | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def serial(self) -> dict[str, Any]:
        """Section ``engine``: all work in this process, on the device."""
        return {"kind": "serial", "gpus_per_client": float(self.on_gpu)}

    def actors(self, count: int) -> dict[str, Any]:
        """Section ``engine``: so many actors that share the device."""
        share = 1 / count if self.on_gpu else 0.0
        return {"actors": count, "gpus_per_client": share, "cpus_per_client": 0.5}

    @cached_property
    def p(self) -> Workload:
        """pfl-research's job."""
        return WORKLOADS["p_small" if self.tiny else "p"]

    @cached_property
    def r(self) -> Workload:
        """ResNet-50."""
        return WORKLOADS["r_small" if self.tiny else "r"]

    @cached_property
    def cifar(self) -> Path:
        """The folder of CIFAR-10, or of random images in its format."""
        if self.data_dir is not None:
            return self.data_dir
        out = self.folder / "data" / "cifar-10-batches-py"
        out.mkdir(parents=True)
        names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        count = self.p.clients * self.p.samples // 5
        rng = np.random.default_rng(0)
        for name in names:
            y = rng.integers(0, 10, count, dtype=np.uint8)
            x = rng.integers(0, 200, (count, 3072), dtype=np.uint8) + 5 * y[:, None]
            content = {b"data": x, b"labels": y.tolist()}
            (out / name).write_bytes(pickle.dumps(content))
        meta = {b"label_names": [b"%d" % label for label in range(10)]}
        (out / "batches.meta").write_bytes(pickle.dumps(meta))
        return out.parent

    def pfl_job(self, engine: Mapping[str, object], **more: object) -> RunConfig:
        """Preset ``pfl_cifar10`` with an engine; ``more`` by key with ``__`` for the dot."""
        given = {f"engine.{key}": value for key, value in engine.items()}
        given |= {"data.dir": str(self.cifar), "train.rounds": 1500}
        if self.tiny:
            given |= {"data.num_clients": self.p.clients, "evaluation.every": 2}
            given["train.sample_rate"] = self.p.cohort / self.p.clients
        given |= {key.replace("__", "."): value for key, value in more.items()}
        flags = {key: ("benchmarks gpu", value) for key, value in given.items()}
        return load_config(preset="pfl_cifar10", overrides=from_flags(flags))

    def run(self, config: RunConfig, budget: float, block: int = 1) -> Measured:
        """Milliseconds of the phases of a run's warm rounds, medians; ``round`` is the whole one.

        Args:
            config: without an end of its own before the budget's.
            budget: seconds for the warm rounds.
            block: rounds of which one is evaluated; ``round`` is the median of the blocks' means.
        """
        ends = Ends(budget, max(1 if self.tiny else 3, block))
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            store = fedsim.run(config, Path(folder) / "run", [ends], progress=False)
            timings, environment = store.read("timings"), store.read_environment()
        count = (len(ends.times) - WARM) // block * block
        timed = timings[(timings["round"] > WARM) & (timings["round"] <= WARM + count)]
        phases = timed.groupby("phase", sort=False)["seconds"].median()
        totals = timed[timed["phase"] == "total"].sort_values("round")["seconds"].to_numpy()
        whole = statistics.median(totals.reshape(-1, block).mean(axis=1).tolist())
        wall = (ends.times[WARM + count - 1] - ends.times[WARM - 1]) / count
        values: dict[str, float] = dict(
            zip(map(str, phases.index), (1e3 * phases).tolist(), strict=True)
        )
        details: dict[str, object] = {"phases": values, "rounds": count, "clock_ms": 1e3 * wall}
        details["device"] = environment.get("device")
        return {**values, "round": 1e3 * whole}, details

    def loop(
        self, workload: Workload, precision: Arithmetic, budget: float, *,
        stacked: bool = False, graph: bool = False,
    ) -> Measured:  # fmt: skip
        """Milliseconds of a round of a plain loop."""
        kind = StackedLoop if stacked else Loop
        config = self.pfl_job({}) if workload is self.p else run_config(workload, "fedavg", 1)
        with arithmetic(precision, self.device):
            data = images(workload, self.device)
            plain = kind(workload, config.train, *data, precision, graph=graph)
            return _medians({"round": seconds_of(plain.round, self.device, budget)})


def _medians(seconds: Mapping[str, Sequence[float]], scale: float = 1e3) -> Measured:
    """By part the median, in milliseconds or ``1 / scale`` seconds."""
    values = {part: scale * statistics.median(each) for part, each in seconds.items()}
    return values, {"seconds": seconds}


def row_p(bench: Bench) -> Iterator[Case]:
    """pfl-research's CIFAR-10 job: 50 of 1,000 clients, 50 images each, five steps."""
    block = 2 if bench.tiny else 10  # rounds of which one is evaluated

    def ours(budget: float, **engine: object) -> Measured:
        return bench.run(bench.pfl_job(bench.serial | engine), budget, block)

    targets = {"float32": 60.0, "tf32": 35.0}
    for precision in PRECISIONS:
        yield Case(
            f"serial, client_batch auto, {precision}",
            partial(ours, precision=precision, client_batch="auto"),
            (Part(target=targets.get(precision)),),
        )
    yield Case("serial, one by one, float32", ours)
    forms: dict[str, tuple[dict[str, bool], Sequence[Arithmetic]]] = {
        "eager": ({}, ("float32", "tf32")),
        "a graph per step": ({"graph": True}, ("float32", "tf32")),
        "stacked": ({"stacked": True}, ("float32",)),
        "stacked, a graph per step": ({"stacked": True, "graph": True}, PRECISIONS),
    }
    for form, (how, precisions) in forms.items():
        for precision in precisions:
            beside = f"serial, client_batch auto, {precision}: round"
            measure = partial(bench.loop, bench.p, precision, **how)
            yield Case(f"plain loop, {form}, {precision}", measure, (Part(beside=beside),))
    yield from _convolutions(bench)
    yield from _launches(bench)
    if bench.pfl is not None:
        parts = tuple(
            Part(beside=f"serial, client_batch auto, {precision}: round")
            for precision in ("float32", "tf32")
        )
        yield Case("pfl-research, one process", partial(_pfl, bench, bench.pfl), parts)
    yield Case(
        "one actor, client_batch auto, float32",
        lambda budget: bench.run(
            bench.pfl_job(bench.actors(1) | {"client_batch": "auto"}), budget, block
        ),
    )


def _pfl(bench: Bench, python: Path, budget: float) -> Measured:
    """pfl's job with torch's own flags (cuDNN's TF32 on), data on the device, no evaluation."""
    train = bench.pfl_job({}).train
    sgd = {key: getattr(train, key) for key in ("batch_size", "lr", "momentum", "weight_decay")}
    rounds = 3 if bench.tiny else max(3, int(budget))  # half a second each
    seconds = peers.peer_rounds("pfl", python, bench.p, rounds, train=sgd, device=bench.device.type)
    return _medians({"round": seconds})


def _convolutions(bench: Bench) -> Iterator[Case]:
    """The two convolutions of a stacked step, forward and backward, in both forms."""
    m, b = bench.p.cohort, 10
    shapes = {"first": ((3, 32), (32, 3)), "second": ((32, 30), (64, 32))}

    def measure(
        form: Callable[..., torch.Tensor], layer: str, precision: Arithmetic, budget: float
    ) -> Measured:
        (channels, side), (out, into) = shapes[layer]
        x = torch.randn(m, b, channels, side, side, device=bench.device, requires_grad=True)
        w = torch.randn(m, out, into, 3, 3, device=bench.device, requires_grad=True)
        with arithmetic(precision, bench.device):
            call = partial(loops.convolution, form, x, w)
            return _medians({"pass": seconds_of(lambda _: call(), bench.device, budget)})

    for layer in shapes:
        for precision in ("float32", "tf32"):
            case = f"{layer} convolution of {m} clients, {precision}"
            yield Case(
                f"{case}, grouped", partial(measure, loops.grouped, layer, precision),
                (Part("pass"),),
            )  # fmt: skip
            yield Case(
                f"{case}, unfold and matmul", partial(measure, loops.unfolded, layer, precision),
                (Part("pass", beside=f"{case}, grouped: pass"),),
            )  # fmt: skip


def _launches(bench: Bench, count: int = 1000) -> Iterator[Case]:
    """Microseconds of a kernel that does next to nothing."""
    one = torch.zeros(1, device=bench.device)

    def add() -> None:
        for _ in range(count):
            one.add_(1)

    def empty() -> None:
        for _ in range(count):
            torch.cuda._sleep(0)

    def measure(work: Callable[[], None], graph: bool, budget: float) -> Measured:
        call = loops.captured(work, bench.device) if graph else work
        seconds = seconds_of(lambda _: call(), bench.device, budget)
        return _medians({"launch": seconds}, 1e6 / count)

    parts = (Part("launch", unit="us"),)
    yield Case("add_ of one number", partial(measure, add, False), parts)
    if bench.on_gpu:
        yield Case("an empty kernel", partial(measure, empty, False), parts)
        yield Case("add_ of one number in a graph", partial(measure, add, True), parts)


def row_r(bench: Bench) -> Iterator[Case]:
    """ResNet-50 at 224: eight clients of 100 images, batches of 50."""
    for precision in PRECISIONS:
        yield Case(f"plain loop, {precision}", partial(bench.loop, bench.r, precision))
    for name, engine, precisions in (
        ("serial", bench.serial, PRECISIONS),
        ("one actor", bench.actors(1), ("tf32",)),
    ):
        for precision in precisions:
            config = run_config(bench.r, "fedavg", 1000, **engine, precision=precision)
            beside = f"plain loop, {precision}: round"
            parts = Part("round", beside, 1.08), Part("train", beside, 1.05)
            case = f"{name}, {precision}"
            yield Case(case, partial(bench.run, config), (*parts, Part("aggregate", target=15.0)))


def row_s(bench: Bench) -> Iterator[Case]:
    """What ``fedsim run`` alone does: FedLD on the digits, 5 of 50 small clients a round."""
    beside = "serial, on the CPU: round"
    engines = {
        "serial": bench.serial,
        "serial, client_batch auto": bench.serial | {"client_batch": "auto"},
        "one actor": bench.actors(1),
    }
    cpu = RunConfig(engine={"kind": "serial"}, train={"rounds": 1000})
    yield Case("serial, on the CPU", partial(bench.run, cpu))
    for name, engine in engines.items():
        config = RunConfig(engine=engine, train={"rounds": 1000})
        yield Case(name, partial(bench.run, config), (Part(beside=beside),))


def row_k(bench: Bench) -> Iterator[Case]:
    """The server step: inner products (Gram matrix) and a weighted sum, in float64."""
    small, large = (2_000, 3_000) if bench.tiny else (1_626_442, 23_528_522)
    for m, size in ((5, small), (50, small), (8, large), (50, large)):
        case = f"{m} x {size / 1e6:.1f} M"

        def on_cpu(budget: float, m: int = m, size: int = size) -> Measured:
            return _server_step(LocalColumns(_rows(m, size)), torch.device("cpu"), budget)

        def on_device(budget: float, m: int = m, size: int = size) -> Measured:
            rows = _rows(m, size)
            copies = seconds_of(
                lambda _: DeviceColumns.on(bench.device, rows), bench.device, budget / 3
            )
            columns = DeviceColumns.on(bench.device, rows)
            return _server_step(columns, bench.device, 2 * budget / 3, copy=copies)

        yield Case(f"{case}, columns on the CPU", on_cpu, (Part("step"),))
        yield Case(
            f"{case}, columns on the device",
            on_device,
            (Part("step", target=15.0 if (m, size) == (50, large) else None),),
        )


def _server_step(
    columns: Columns, device: torch.device, budget: float, **before: Sequence[float]
) -> Measured:
    """K, then the weighted sum; ``step`` is both, without what was measured ``before``."""
    m, everything = len(columns.rows), slice(0, len(columns.rows[0]))
    weights, out = np.full(m, 1 / m), np.empty(everything.stop, np.float32)
    products = seconds_of(lambda _: columns.products([everything]), device, budget / 2)
    sums = seconds_of(lambda _: columns.combine([weights], [everything], out), device, budget / 2)
    values, details = _medians({"products": products, "sum": sums, **before})
    return {"step": values["products"] + values["sum"]}, {**details, "phases": values}


@lru_cache(maxsize=1)
def _rows(m: int, size: int) -> tuple[Array, ...]:
    return tuple(torch.rand(m, size, generator=torch.Generator().manual_seed(0)).numpy())


def row_e(bench: Bench) -> Iterator[Case]:
    """Evaluation of P's model on 10,000 images."""
    for batch_size in (1000, 10_000):
        config = bench.pfl_job(
            bench.serial, train__sample_rate=1 / bench.p.clients, evaluation__every=1,
            evaluation__batch_size=batch_size,
        )  # fmt: skip
        name = f"serial, evaluation.batch_size {batch_size:,}"
        yield Case(name, partial(bench.run, config), (Part("evaluate", target=15.0),))

    def plain(precision: Arithmetic, budget: float) -> Measured:
        count = bench.p.clients * bench.p.samples if bench.tiny else 10_000
        workload = replace(bench.p, clients=1, cohort=1, samples=count)
        with arithmetic(precision, bench.device):
            x, y = images(workload, bench.device)
            loop = Loop(workload, bench.pfl_job({}).train, x, y, precision)
            seconds = seconds_of(lambda _: loop.evaluate(x, y), bench.device, budget)
            return _medians({"evaluate": seconds})

    for precision in ("float32", "tf32"):
        yield Case(f"plain, one batch, {precision}", partial(plain, precision), (Part("evaluate"),))


def row_f(bench: Bench) -> Iterator[Case]:
    """P one by one on actors that share the device."""
    block = 2 if bench.tiny else 10
    for count in (1, 2) if bench.tiny else (1, 4, 8, 16):
        config = bench.pfl_job(bench.actors(count))
        yield Case(
            f"{count} actor{'s' if count > 1 else ''}",
            partial(bench.run, config, block=block),
            (Part(target=120.0 if count == 16 else None),),
        )


ROWS: dict[str, Callable[[Bench], Iterator[Case]]] = {
    "P": row_p, "R": row_r, "S": row_s, "K": row_k, "E": row_e, "F": row_f,
}  # fmt: skip


def measure_row(name: str, bench: Bench, seconds: float) -> Iterator[Result]:
    """The lines of a row as they are measured; what fails is a line, and ends nothing.

    What is left of ``seconds`` is shared by the cases that are left; a case takes longer where the
    fewest rounds do, and none begins after twice the seconds.
    """
    cases, begun, reached = list(ROWS[name](bench)), time.perf_counter(), dict[str, float]()
    for number, case in enumerate(cases):
        spent = time.perf_counter() - begun
        values: Mapping[str, float] = {}
        details: Mapping[str, object] = {}
        reason = f"skipped: the row has taken {spent:.0f} s (--seconds {seconds:g})"
        if bench.tiny or spent <= 2 * seconds:
            share = 0.0 if bench.tiny else max(0.0, seconds - spent) / (len(cases) - number)
            try:
                values, details = case.measure(share)
            except Exception as error:  # noqa: BLE001 - a line of the table, the others go on
                reason = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            if bench.on_gpu:
                torch.cuda.empty_cache()
        for part in case.parts:
            line = f"{case.name}: {part.name}"
            if part.name in values:
                value = reached[line] = values[part.name]
                reference = reached.get(part.beside)
                ratio = None if reference is None else Spread.of([value / reference])
                yield Result(
                    name, line, part.unit, value, reference, part.beside, ratio, part.target,
                    details=details,
                )  # fmt: skip
            else:
                yield Result(name, line, skipped=reason, failed=reason.startswith("failed"))
            details = {}  # once for all parts


def machine(bench: Bench) -> dict[str, object]:
    """What the figures depend on: card, driver, clocks, versions."""
    facts = report.machine_facts() | {"on": str(bench.device), "tiny": bench.tiny}
    facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    if bench.on_gpu:
        asked = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,memory.total"
        try:
            answer = subprocess.run(
                ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
        except (OSError, subprocess.CalledProcessError) as error:
            facts["nvidia_smi"] = f"failed: {error}"
        else:
            cells = answer.splitlines()[0].split(", ")
            facts["nvidia_smi"] = dict(zip(asked.split(","), cells, strict=True))
        facts["multiprocessors"] = torch.cuda.get_device_properties(
            bench.device
        ).multi_processor_count
    return facts


def markdown(results: Sequence[Result], facts: Mapping[str, Any]) -> str:
    """The table of benchmarks/README.md."""
    smi = facts.get("nvidia_smi")
    driver = f", driver {smi['driver_version']}" if isinstance(smi, dict) else ""
    lines = [
        f"{facts['gpu'] or facts['cpu']}{driver}, torch {facts['packages']['torch']}, "
        f"CUDA {facts['cuda']}, {facts['cores']} cores, fedsim {facts['git_commit']}",
        "",
        "| row | case | measured | of which, ms | times | of | aim |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        cells, phases = result.cells(), result.details.get("phases")
        parts = phases.items() if isinstance(phases, dict) else ()
        of_which = ", ".join(f"{name} {value:.3g}" for name, value in parts if name != "total")
        against = result.against if cells["ratio"] else ""
        aim = " ".join(filter(None, (cells["target"], cells[""])))
        shown = (
            result.benchmark, result.case, cells["measured"], of_which, cells["ratio"], against, aim
        )  # fmt: skip
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


@click.command("gpu")
@click.argument("names", nargs=-1, metavar="[ROWS]...",
                type=click.Choice(list(ROWS), case_sensitive=False))  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True,
              help="For each row; start-up and a row's longest cases come on top.")  # fmt: skip
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="Everything in miniature, to try the script out.")
@click.option("--data-dir", type=click.Path(path_type=Path, exists=True),
              help="CIFAR-10; random images of its format without.")  # fmt: skip
@click.option("--pfl-python", type=click.Path(path_type=Path, exists=True),
              help="Python with pfl-research and torch; this one where it has pfl.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/gpu.json"),
              show_default=True,
              help="All as JSON; the table as CSV and Markdown beside it.")  # fmt: skip
def main(
    names: tuple[str, ...], seconds: float, device: str, tiny: bool, data_dir: Path | None,
    pfl_python: Path | None, out: Path,
) -> None:  # fmt: skip
    """Measures fedsim on a GPU beside plain PyTorch loops; ROWS are P, R, S, K, E, F, or all."""
    if device == "cuda" and not torch.cuda.is_available():
        click.echo(
            "benchmarks gpu: torch finds no GPU here (--device cpu --tiny tries it out)", err=True
        )
        raise SystemExit(2)
    if pfl_python is None and importlib.util.find_spec("pfl"):
        pfl_python = Path(sys.executable)
    on = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="fedsim-gpu-") as folder:
        bench = Bench(on, Path(folder), tiny, data_dir, pfl_python)
        facts = machine(bench)
        for name in names or ROWS:
            for result in measure_row(name, bench, seconds):
                click.echo(f"{name} {result.case}: {result.cells()['measured']}", err=True)
                results.append(result)
                report.save(results, facts, out)
                out.with_suffix(".md").write_text(markdown(results, facts) + "\n", encoding="utf-8")
    click.echo(markdown(results, facts))
    click.echo(f"saved: {out}, {out.with_suffix('.csv')} and {out.with_suffix('.md')}", err=True)
    if any(result.failed for result in results):
        raise SystemExit(1)
