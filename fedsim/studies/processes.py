"""Run drivers as processes on this machine.

A process ends when the pipe from the controller is closed, so that none is left however the
controller ended; its current run stops after the round, with a checkpoint.
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
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from fedsim.core import reuse
from fedsim.core.errors import EngineLostError
from fedsim.training.events import ENDINGS, Event, Job, Logged, Lost, Orders, Tell

if TYPE_CHECKING:
    from fedsim.engine.ray.pool import Session

logger = logging.getLogger("fedsim")

POLL = 0.25
"""The longest that the controller waits for events, in seconds."""
STOP, END = b"stop", b"end"
"""Orders to the current run; every other message is a job, with where on Ray its actors are."""
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from fedsim.studies.processes import serve; serve(int(sys.argv[1]))"
)
"""The program of a process: it takes the controller's sys.path, then jobs from its pipe."""


class Process:
    """A driver process, and the controller's end of its pipe.

    It is a plain child and not one of :mod:`multiprocessing`, which would import the main module
    again: it belongs to a process group of its own from its first instruction, so that Ctrl-C at a
    terminal goes to the controller alone.
    """

    def __init__(self, ray: Mapping[str, Any] | None) -> None:
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
        self.ask(pickle.dumps(ray))

    def ask(self, message: bytes) -> None:
        """Sends a pickled job or an order; :meth:`told` notices a process that has ended."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(message)

    def told(self) -> tuple[list[Event], bool]:
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
    """A number of driver processes, which begin to import torch immediately.

    See :class:`~fedsim.studies.parallel.Drivers`. A warning of Python's is reported once, whichever
    processes and runs repeat it.

    Args:
        count: their number.
        ray: how they join Ray, see :func:`~fedsim.engine.ray.cluster.join`; None: they do not.
    """

    def __init__(self, count: int, ray: Mapping[str, Any] | None = None) -> None:
        self.slots = tuple(range(count))
        self._ray = ray
        self._warned: set[str] = set()
        self._made: dict[int, Process] = {slot: Process(ray) for slot in self.slots}

    @property
    def place(self) -> str:
        """See :class:`~fedsim.studies.parallel.Drivers`."""
        return f"in {len(self.slots)} process{'es' * (len(self.slots) != 1)}"

    def resize(self, count: int) -> None:
        """Changes the number of slots, while none has a job."""
        self.slots = tuple(range(count))
        for slot in [slot for slot in self._made if slot >= count]:
            self._made.pop(slot).end()

    def pid(self, slot: int) -> int:
        """The process of a slot.

        Raises:
            KeyError: it has none at the moment.
        """
        return self._made[slot].process.pid

    def submit(self, slot: int, job: Job, place: tuple[Any, Any] | None = None) -> None:
        """See :class:`~fedsim.studies.parallel.Drivers`; ``place``: group and register of a
        :class:`~fedsim.engine.ray.pool.Session`."""
        if slot not in self._made:
            self._made[slot] = Process(self._ray)
        self._made[slot].ask(pickle.dumps((job, place)))
        self._made[slot].at_work = True

    def events(self, tell: Callable[[int, Event], None]) -> None:
        """See :class:`~fedsim.studies.parallel.Drivers`."""
        wait([made.pipe for made in self._made.values()], POLL)
        for slot, made in list(self._made.items()):
            events, ended = made.told()
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
        """See :class:`~fedsim.studies.parallel.Drivers`."""
        for number, made in self._made.items():
            if slot in (None, number):
                made.ask(STOP)

    def end(self, slot: int) -> None:
        """See :class:`~fedsim.studies.parallel.Drivers`."""
        if slot in self._made:
            self._made[slot].ask(END)

    def close(self, at_once: bool = False) -> None:
        """See :class:`~fedsim.studies.parallel.Drivers`."""
        made, self._made = list(self._made.values()), {}
        for each in made:
            each.pipe.close()  # all at once: they end side by side
        for each in made:
            each.end(at_once)


def serve(fd: int) -> None:
    """Executes jobs from a pipe until it is closed: the main function of a driver process."""
    pipe, sending, joined = Connection(fd), threading.Lock(), threading.Event()
    jobs: SimpleQueue[tuple[bytes, Orders] | None] = SimpleQueue()

    def tell(event: Event) -> None:
        with sending, contextlib.suppress(OSError):  # without a controller nobody listens
            pipe.send(event)

    def listen() -> None:
        orders = Orders()
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = pipe.recv_bytes()
                if message == STOP:
                    orders.stop = True
                elif message == END:
                    orders.end = True
                else:
                    orders = Orders()
                    jobs.put((message, orders))
        orders.stop = True
        jobs.put(None)
        if not joined.is_set():  # Ray may try for minutes to join a cluster that is gone
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    _forward_log(tell)
    for module in ("fedsim.engine.serial", "fedsim.training.driver"):
        importlib.import_module(module)  # what every run needs, while the controller still plans
    from fedsim.engine import devices
    from fedsim.studies.parallel import execute

    devices.keep_freed_memory()
    first = jobs.get()
    if first is not None and (ray := pickle.loads(first[0])) is not None:
        from fedsim.engine.ray.cluster import join

        join(ray)
    joined.set()
    session: Session | None = None
    with reuse.across_runs():
        while (order := jobs.get()) is not None:
            (job, place), orders = pickle.loads(order[0]), order[1]
            try:
                session = _session(place, session) if place else session
                ended = execute(job, orders, tell, session if place else None)
            except EngineLostError as error:
                ended = Lost(str(error))
            sys.stdout.flush()  # what the user's code has printed: an idle process may be killed
            sys.stderr.flush()
            tell(ended)
    os._exit(0)  # the runs are on disk; taking torch down takes seconds


def _session(place: tuple[Any, Any], before: Session | None) -> Session:
    """The session of a place; that of the run before, with its actors, where it is the same one."""
    from fedsim.config.sections import EngineConfig
    from fedsim.engine.ray.pool import Session

    group, register = place
    if before is not None and before.group == group:
        return before
    if before is not None:
        before.close()
    return Session(EngineConfig(), group, register)


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
