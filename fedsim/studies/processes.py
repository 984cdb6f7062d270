"""Runs side by side in processes on this machine, each of which does one run after the other.

A process ends when the pipe from the controller is closed, so that none is left however the
controller ended; its current run stops after the round, with a checkpoint. For runs on Ray it joins
the controller's Ray and reserves the resources of its run, see :mod:`fedsim.engine.ray.groups`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from fedsim.core import reuse
from fedsim.core.errors import EngineLostError
from fedsim.training.events import ENDINGS, Event, Job, Logged, Lost, Orders, Tell

if TYPE_CHECKING:
    from fedsim.engine.ray.groups import SharedRay
    from fedsim.engine.ray.pool import Session

logger = logging.getLogger("fedsim")

POLL = 0.25
"""The longest that the controller waits for events, in seconds."""
IDLE = 5.0
"""Seconds after which a process without a job gives up what it has reserved on Ray."""
STOP, END = b"stop", b"end"
"""Orders to the current run; every other message is a job, with what it reserves on Ray."""
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from fedsim.studies.processes import serve; serve(int(sys.argv[1]))"
)
"""The program of a process: it takes the controller's sys.path, then jobs from its pipe."""


class Process:
    """A process that does runs, and the controller's end of its pipe.

    It is a plain child and not one of :mod:`multiprocessing`, which would import the main module
    again: it belongs to a process group of its own from its first instruction, so that Ctrl-C at a
    terminal goes to the controller alone.
    """

    def __init__(self, ray: SharedRay | None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=[theirs.fileno()],
                process_group=0,
                stdin=subprocess.DEVNULL,
            )
        self.pipe = Connection(ours.detach())
        self.at_work = False
        self.send(pickle.dumps(ray and dict(ray.joining)))

    def send(self, message: bytes) -> None:
        """Sends a pickled job or an order; :meth:`receive` notices a process that has ended."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(message)

    def receive(self) -> tuple[list[Event], bool]:
        """The events that the process has sent, and whether it has ended."""
        events: list[Event] = []
        try:
            while self.pipe.poll():
                events.append(self.pipe.recv())
        except (EOFError, OSError):
            return events, True
        return events, self.process.poll() is not None and not self.pipe.poll()

    def end(self, at_once: bool = False) -> str:
        """Waits until a process with a job ends, or kills it; returns how it ended."""
        self.pipe.close()
        if at_once or not self.at_work:
            self.process.kill()
        status = self.process.wait()
        if status >= 0:
            return f"its process ended with status {status}"
        hint = ", perhaps for lack of memory" if -status == signal.SIGKILL else ""
        return f"its process was ended by {signal.Signals(-status).name}{hint}"


class Processes:
    """A number of processes, see :class:`~fedsim.studies.parallel.Drivers`.

    They import torch at once. One that ends is replaced when its slot gets a job. A warning of
    Python's is reported once, whichever processes and runs repeat it.

    Args:
        count: their number.
        ray: which they share; None: their runs are not on Ray.
    """

    def __init__(self, count: int, ray: SharedRay | None = None) -> None:
        self.slots = tuple(range(count))
        self._ray = ray
        self._warned: set[str] = set()
        self._made: dict[int, Process] = {slot: Process(ray) for slot in self.slots}
        self.place = f"in {count} process{'es' * (count != 1)}"
        if ray is not None:
            self.place = f"with {ray.reservation} each"

    def pid(self, slot: int) -> int:
        """The process of a slot; a KeyError where it has none at the moment."""
        return self._made[slot].process.pid

    def submit(self, slot: int, job: Job) -> None:
        """Gives a job to the process of a free slot."""
        if slot not in self._made:
            self._made[slot] = Process(self._ray)
        on_ray = self._ray if job.config.engine.kind == "ray" else None
        place = on_ray and (on_ray.reservation, on_ray.register)
        self._made[slot].send(pickle.dumps((job, place)))
        self._made[slot].at_work = True

    def events(self, tell: Callable[[int, Event], None]) -> None:
        """Waits a fraction of a second for events."""
        wait([made.pipe for made in self._made.values()], POLL)
        for slot, made in list(self._made.items()):
            events, ended = made.receive()
            for event in events:
                if isinstance(event, Logged) and event.once:
                    if event.text in self._warned:
                        continue
                    self._warned.add(event.text)
                if made.at_work:
                    made.at_work = not isinstance(event, ENDINGS)
                    tell(slot, event)
                elif isinstance(event, Logged):  # belongs to no job
                    logger.log(event.level, event.text)
            if ended:
                del self._made[slot]
                reason = made.end(at_once=True)
                if made.at_work:
                    tell(slot, Lost(reason))

    def stop(self, slot: int | None = None) -> None:
        """Orders the run of a slot, or all, to stop after its round."""
        for number, made in self._made.items():
            if slot in (None, number):
                made.send(STOP)

    def end(self, slot: int) -> None:
        """Orders the run of a slot to finish after its round."""
        if slot in self._made:
            self._made[slot].send(END)

    def close(self, at_once: bool = False) -> None:
        """Ends the processes: active runs stop with a checkpoint, or are killed (``at_once``)."""
        made, self._made = list(self._made.values()), {}
        for each in made:
            each.pipe.close()  # all at once: they end side by side
        for each in made:
            each.end(at_once)


class _Pipe:
    """The end of the pipe in a process: jobs and orders come in, events go out."""

    def __init__(self, fd: int) -> None:
        self.jobs: SimpleQueue[tuple[bytes, Orders] | None] = SimpleQueue()
        self.joined = threading.Event()
        """Whether the process has joined Ray, which may try for minutes where that is gone."""
        self._pipe, self._sending = Connection(fd), threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, event: Event) -> None:
        """Sends an event; without a controller nobody listens."""
        with self._sending, contextlib.suppress(OSError):
            self._pipe.send(event)

    def _listen(self) -> None:
        orders = Orders()
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._pipe.recv_bytes()
                if message == STOP:
                    orders.stop = True
                elif message == END:
                    orders.end = True
                else:
                    orders = Orders()
                    self.jobs.put((message, orders))
        orders.stop = True
        self.jobs.put(None)
        if not self.joined.is_set():
            os._exit(0)


def serve(fd: int) -> None:
    """Does the runs of jobs from a pipe until it is closed: the main function of a process."""
    pipe = _Pipe(fd)
    _forward_log(pipe.tell)
    for module in ("fedsim.engine.serial", "fedsim.training.driver"):
        importlib.import_module(module)  # what every run needs, while the controller still plans
    from fedsim.engine import devices
    from fedsim.studies.parallel import execute

    devices.keep_freed_memory()
    first = pipe.jobs.get()
    if first is not None and (ray := pickle.loads(first[0])) is not None:
        from fedsim.engine.ray.cluster import join

        join(ray)
    pipe.joined.set()
    sessions = _Sessions()
    with reuse.across_runs():
        while (order := sessions.wait(pipe.jobs)) is not None:
            (job, place), orders = pickle.loads(order[0]), order[1]
            try:
                ended = execute(job, orders, pipe.tell, partial(sessions.get, place, orders))
            except EngineLostError as error:
                sessions.close()
                ended = Lost(str(error))
            sys.stdout.flush()  # what the user's code has printed: an idle process may be killed
            sys.stderr.flush()
            pipe.tell(ended)
    os._exit(0)  # the runs are on disk; taking torch down takes seconds


class _Sessions:
    """The session of a process with Ray, kept from one run to the next with its client actors."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def get(self, place: tuple[Any, Any] | None, orders: Orders) -> Session | None:
        """The session of a run on Ray; None of another one, or where it is ordered to stop."""
        if place is None or self._session is not None:
            return self._session if place else None
        from fedsim.config.sections import EngineConfig
        from fedsim.engine.ray.groups import reserve
        from fedsim.engine.ray.pool import Session

        reservation, register = place
        group = reserve(reservation, lambda: orders.stop)
        if group is not None:
            self._session = Session(EngineConfig(), group, register)
        return self._session

    def wait(self, jobs: SimpleQueue[Any]) -> Any:
        """The next job; another run may need what an idle process has reserved."""
        if self._session is not None:
            with contextlib.suppress(Empty):
                return jobs.get(timeout=IDLE)
            self.close()
        return jobs.get()

    def close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(EngineLostError):
                self._session.close()
            self._session = None


def _forward_log(tell: Tell) -> None:
    """Reports this process's messages of fedsim's log and Python's warnings as events."""
    logging.captureWarnings(True)
    for name in ("fedsim", "py.warnings"):
        logging.getLogger(name).addHandler(_Forward(tell))
    logging.getLogger("fedsim").setLevel(logging.INFO)


class _Forward(logging.Handler):
    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.INFO)
        self.tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self.tell(Logged(record.levelno, self.format(record), record.name == "py.warnings"))
