"""What ``fedsim run`` costs as processes: memory of the driver and of the tree, time to start.

Each measurement starts the command as a user would and watches it from outside.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.workloads import Workload
from fedsim.core.errors import FedsimError

T = TypeVar("T")
INTERVAL = 0.05
"""Seconds between two looks at the processes."""
PATIENCE = 60.0
"""Seconds in which a run ends that is told to; then it is killed."""
PLASMA = re.compile(r"/dev/shm/|/ray_spilled|plasma")
"""Mappings that belong to Ray's object store."""


@dataclass(frozen=True)
class Memory:
    """Peaks in bytes over a run.

    Args:
        driver: private memory of the driver beyond Ray's object store.
        tree: proportional set size (PSS) of the driver and all processes below it.
    """

    driver: int
    tree: int


def available_memory() -> int:
    """Bytes that can be allocated without swapping."""
    text = Path("/proc/meminfo").read_text()
    return 1024 * int(text.split("MemAvailable:")[1].split()[0])


def run_arguments(workload: Workload, method: str, rounds: int) -> list[str]:
    """``fedsim run`` on a workload, evaluated after the last round."""
    return [
        *("--algorithm", method, "--dataset", f"benchmarks.workloads:{workload.key}"),
        *("--model", f"benchmarks.models:{workload.model}", "--rounds", str(rounds)),
        *("--sample-rate", str(workload.cohort / workload.clients)),
        *("--set", f"evaluation.every={rounds}"),
    ]


def start_up(arguments: Sequence[str]) -> float:
    """Seconds from the start of the process to the first row of rounds.csv.

    Raises:
        FedsimError: the run failed.
    """
    with _running(arguments) as (process, folder):
        begun = time.perf_counter()
        while not _has_row(folder / "rounds.csv"):
            if process.poll() is not None and not _has_row(folder / "rounds.csv"):
                raise FedsimError(f"fedsim run {' '.join(arguments)} ended without a round")
            time.sleep(0.005)
        seconds = time.perf_counter() - begun
        process.wait()
        return seconds


def _has_row(path: Path) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") >= 2


def peak_memory(arguments: Sequence[str], *, tree: bool) -> Memory:
    """The peaks of a run, looked at every 50 ms; ``tree=False`` looks at the driver alone.

    The two are looked at one after the other, so a short peak may show in the driver alone; the
    tree, of which the driver is a part, had at least as much.

    Raises:
        FedsimError: the run failed.
    """
    driver = whole = 0
    with _running(arguments) as (process, _):
        while process.poll() is None:
            driver = max(driver, own_memory(process.pid))
            if tree:
                whole = max(whole, sum(map(proportional, [process.pid, *below(process.pid)])))
            time.sleep(INTERVAL)
        if process.returncode:
            raise FedsimError(f"fedsim run {' '.join(arguments)} ended with {process.returncode}")
    return Memory(driver, max(driver, whole))


@contextmanager
def _running(arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """``fedsim run`` and its run directory; if it still runs at the end it is told to end."""
    with tempfile.TemporaryDirectory(prefix="fedsim-benchmark-") as name:
        out = Path(name) / "run"
        command = [sys.executable, "-m", "fedsim", "run", *arguments, "--out", str(out)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=_environment())
        try:
            yield process, out
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> Mapping[str, str]:
    """This process's own, in which the folder of ``benchmarks`` can be imported from."""
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def own_memory(pid: int) -> int:
    """Private bytes of a process outside Ray's object store; 0 if it is gone."""
    total, mapping = 0, ""
    for line in _lines(pid, "smaps"):
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):
            mapping = line
        elif head.startswith("Private_") and not PLASMA.search(mapping):
            total += 1024 * int(rest.split()[0])
    return total


def proportional(pid: int) -> int:
    """PSS of a process in bytes; 0 if it is gone."""
    lines = [line for line in _lines(pid, "smaps_rollup") if line.startswith("Pss:")]
    return 1024 * int(lines[0].split()[1]) if lines else 0


def _lines(pid: int, name: str) -> list[str]:
    return _of(lambda: Path(f"/proc/{pid}/{name}").read_text().splitlines()) or []


def below(pid: int) -> list[int]:
    """The processes that descend from ``pid``."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        stat = _of((folder / "stat").read_text)
        if stat:
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    pids: list[int] = []
    queue = [pid]
    while queue:
        queue += (new := children.get(queue.pop(), []))
        pids += new
    return pids


def _of(read: Callable[[], T]) -> T | None:
    """What is read of a process, or None if it has just ended."""
    try:
        return read()
    except (FileNotFoundError, ProcessLookupError):
        return None
