"""The command ``fedsim`` in processes of its own, in a sandbox where all that it leaves is seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARK = "FEDSIM_TEST_MARK"
LEFT_BEHIND = ("RAY_", "FEDSIM_CHAOS", "FEDSIM_DEBUG", "FEDSIM_TEST_")
"""Beginnings of the variables that no child of a test inherits."""
PATIENCE = 900.0
"""Seconds after which a test gives up on a process; nothing that it waits for takes a minute on a
machine that does nothing else, and no result depends on it."""
PARTS = ("home", "tmp", "ray", "cache", "work")


def clean_environment(**added: str) -> dict[str, str]:
    """What a process that a test starts inherits: what the user's shell has, and this checkout.

    Without :data:`LEFT_BEHIND`: a Ray that an earlier test started in this process has left its
    secret there, with which no other cluster can be joined, and the chaos tests their folder.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LEFT_BEHIND)}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | added


@dataclass(frozen=True)
class Sandbox:
    """Folders for home, temporary files, Ray, caches and the user's work.

    Every process that is started here inherits ``mark`` in its environment.
    """

    folder: Path
    mark: str

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def environment(self) -> dict[str, str]:
        folders = dict(zip(PARTS, (str(self.folder / part) for part in PARTS), strict=True))
        return clean_environment() | {
            MARK: self.mark,
            "HOME": folders["home"],
            "TMPDIR": folders["tmp"],
            "RAY_TMPDIR": folders["ray"],
            "XDG_CACHE_HOME": folders["cache"],
            "TORCHINDUCTOR_CACHE_DIR": folders["cache"],  # torch makes it when it is imported
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, *args: str) -> subprocess.Popen[str]:
        """``fedsim ARGS`` in a process group of its own, as a shell would start it."""
        return subprocess.Popen(
            [sys.executable, "-m", "fedsim", *args],
            cwd=self.work,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def processes(self) -> dict[int, str]:
        """The command lines of the living processes that were started here, by PID."""
        wanted = f"{MARK}={self.mark}".encode()
        commands = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (path / "environ").read_bytes().split(b"\0"):
                    commands[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue  # ended meanwhile, or not ours
        return commands

    def left(self, seconds: float = PATIENCE) -> dict[int, str]:
        """The processes that are still there after some time; returns when there are none."""
        end = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.2)
        return left


@contextmanager
def temporary_sandbox() -> Iterator[Sandbox]:
    """A sandbox with a short path, for Ray's sockets; at the end nothing of it remains."""
    with tempfile.TemporaryDirectory(prefix="fs", dir="/tmp") as folder:
        sandbox = Sandbox(Path(folder), uuid.uuid4().hex)
        for part in PARTS:
            (sandbox.folder / part).mkdir()
        try:
            yield sandbox
        finally:
            for pid in sandbox.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            sandbox.left()


def count_rows(table: Path) -> int:
    """The complete rows of a table, 0 where there is none yet."""
    return max(0, table.read_bytes().count(b"\n") - 1) if table.exists() else 0


def wait_for_rows(process: subprocess.Popen[str], table: Path, number: int) -> None:
    """Returns when a table of a running process has so many rows."""
    while count_rows(table) < number:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def interrupt(process: subprocess.Popen[str], number: int) -> None:
    """As a terminal sends Ctrl-C to all processes, and ``kill`` sends SIGTERM to one.

    SIGTERM to all of them ends Ray's own first, and Ray may then end its driver with status 1.
    """
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)


def wait_for_exit(process: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
    """What a process said, once it has ended with the given exit status."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == status, out + err
    return out, err
