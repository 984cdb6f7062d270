"""The processes of the Ray that was started here, watched while there are runs.

Ray ends the driver from a thread of its own, without a word and with status 1: where the raylet has
died (which dies with its agents) at the next use of the object store, where the GCS has died after
60 seconds. A thread that looks at both is faster: it says what happened, and the run leaves a
checkpoint if there is time.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ray
from ray.exceptions import RayError

from fedsim.core.errors import EngineLostError, FedsimError

INTERVAL = 0.05
"""Seconds between two looks; each takes microseconds."""
WAIT = 5 * INTERVAL
"""Seconds after an error until it is sure that the processes are there."""
NEEDED = ("gcs_server", "raylet")
"""Ray's names of the processes without which nothing goes on."""

Processes = dict[str, "subprocess.Popen[bytes]"]


class Head:
    """Watches processes until one of them has ended.

    Args:
        processes: by name.
    """

    def __init__(self, processes: Processes) -> None:
        self.reason = ""
        """What happened; empty while all is well."""
        self._processes = processes
        self._tell: Callable[[str], None] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="ray-head", daemon=True)
        if processes:
            self._thread.start()

    def watch(self, tell: Callable[[str], None] | None) -> None:
        """Has what happens told, from another thread and at once; None: nobody asks any more."""
        self._tell = tell
        if self.reason and tell is not None:
            tell(self.reason)

    def check(self) -> None:
        """Raises an EngineLostError where a process has ended."""
        if self.reason:
            raise EngineLostError(self.reason)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Errors of the block become an EngineLostError if a process has ended."""
        self.check()
        try:
            yield
        except (FedsimError, RayError) as error:
            if self._processes:
                self._thread.join(WAIT)  # the error may come before the thread looks again
            if self.reason:
                raise EngineLostError(self.reason) from error
            raise

    def close(self) -> None:
        """Looks no more: the processes are going to be ended."""
        self._stop.set()
        if self._processes:
            self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(INTERVAL):
            for name, process in self._processes.items():
                status = process.poll()
                if status is not None:
                    self.reason = described(name, process.pid, status)
                    tell = self._tell  # another thread may change it
                    if tell is not None:
                        tell(self.reason)
                    return


def described(name: str, pid: int, status: int) -> str:
    """What happened to a process, in words."""
    how = f"ended with status {status}"
    if status < 0:
        how = f"was ended by {signal.Signals(-status).name}"
    agents = ", perhaps since one of its agents died," if name == "raylet" else ""
    return f"Ray on this machine died: its {name} (pid {pid}) {how}{agents} and the run with it"


def own_processes() -> Processes:
    """The processes of the Ray that this process started; none where it joined a cluster.

    Ray has no public way to ask for them.
    """
    started = getattr(ray._private.worker._global_node, "all_processes", {})
    return {name: started[name][0].process for name in NEEDED if name in started}
