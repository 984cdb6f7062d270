"""Runs side by side in processes on this machine, each of which does one run after the other.

A process ends at once when its pipe is closed, so that none is left however the controller ended;
its run goes on from a checkpoint later. For runs on Ray it joins the controller's Ray, of which its
run gets a share, see :mod:`fedsim.engine.ray.several`.
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

from fedsim.training.events import ENDINGS, Event, Job, Logged, Lost, Orders, Tell

if TYPE_CHECKING:
    from fedsim.engine.ray.pool import Session
    from fedsim.engine.ray.several import SharedRay

logger = logging.getLogger("fedsim")

POLL = 0.25
"""The longest that the controller waits for events, in seconds."""
IDLE = 5.0
"""Seconds after which a process without a job ends its actors on Ray."""
STOP, END = b"stop", b"end"
"""Orders to the current run; every other message is a job, with its share of Ray."""
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from fedsim.studies.processes import serve; serve(int(sys.argv[1]))"
)
"""The program of a process: it takes the controller's sys.path, then jobs from its pipe."""


class Process:
    """A process that does runs, and the controller's end of its pipe. It has a process group of its
    own, so that Ctrl-C at a terminal goes to the controller alone."""

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

    def kill(self) -> str:
        """Ends the process if it is alive; returns how it ended."""
        self.pipe.close()
        self.process.kill()
        status = self.process.wait()
        if status >= 0:
            return f"its process ended with status {status}"
        hint = ", perhaps for lack of memory" if -status == signal.SIGKILL else ""
        return f"its process was ended by {signal.Signals(-status).name}{hint}"


class Processes:
    """A number of processes; one that ends is replaced when its slot gets a job. A warning of
    Python's is reported once. Runs on Ray share ``ray``."""

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
        reservation = on_ray and on_ray.reservation
        self._made[slot].send(pickle.dumps((job, reservation)))
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
                reason = made.kill()
                if made.at_work:
                    tell(slot, Lost(reason))

    def stop(self) -> None:
        """Orders all runs to stop after their round."""
        for made in self._made.values():
            made.send(STOP)

    def end(self, slot: int) -> None:
        """Orders the run of a slot to finish after its round."""
        if slot in self._made:
            self._made[slot].send(END)

    def close(self) -> None:
        """Kills the processes; active runs go on from their checkpoints later."""
        while self._made:
            self._made.popitem()[1].kill()


class _Pipe:
    """The end of the pipe in a process: jobs and orders come in, events go out."""

    def __init__(self, fd: int) -> None:
        self.jobs: SimpleQueue[tuple[bytes, Orders]] = SimpleQueue()
        self._pipe, self._sending = Connection(fd), threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, event: Event) -> None:
        """Sends an event."""
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
        os._exit(0)  # the controller is gone


def serve(fd: int) -> None:
    """Does the runs of jobs from a pipe until it is closed: the main function of a process."""
    pipe = _Pipe(fd)
    logging.captureWarnings(True)
    for name in ("fedsim", "py.warnings"):
        logging.getLogger(name).addHandler(_Forward(pipe.tell))
    logging.getLogger("fedsim").setLevel(logging.INFO)
    for module in ("fedsim.engine.serial", "fedsim.training.driver"):
        importlib.import_module(module)  # what every run needs, while the controller still plans
    from fedsim.engine import devices
    from fedsim.studies.parallel import execute

    devices.keep_freed_memory()
    ray = pickle.loads(pipe.jobs.get()[0])
    if ray is not None:
        from fedsim.engine.ray.cluster import join

        join(ray)
    sessions = _Sessions()
    while True:
        message, orders = sessions.wait(pipe.jobs)
        job, reservation = pickle.loads(message)
        ended = execute(job, orders, pipe.tell, partial(sessions.get, reservation))
        sys.stdout.flush()  # what the user's code has printed: the process will be killed
        sys.stderr.flush()
        pipe.tell(ended)


class _Sessions:
    """The session of a process with Ray, kept from one run to the next with its client actors."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def get(self, reservation: Any) -> Session | None:
        """The session of a run on Ray; None of another one."""
        if reservation is None or self._session is not None:
            return self._session if reservation else None
        from fedsim.config.sections import EngineConfig
        from fedsim.engine.ray.pool import Session

        self._session = Session(EngineConfig(), reservation)
        return self._session

    def wait(self, jobs: SimpleQueue[tuple[bytes, Orders]]) -> tuple[bytes, Orders]:
        """The next job; another run may need the actors of an idle process."""
        if self._session is not None:
            with contextlib.suppress(Empty):
                return jobs.get(timeout=IDLE)
            self._session.close()
            self._session = None
        return jobs.get()


class _Forward(logging.Handler):
    """Reports this process's messages of fedsim's log and Python's warnings as events."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.INFO)
        self.tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self.tell(Logged(record.levelno, self.format(record), record.name == "py.warnings"))
