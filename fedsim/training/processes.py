"""Run drivers as processes on this machine, without Ray, for runs on the CPU.

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
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue

from fedsim.engine.drivers import ENDINGS, Event, Job, Logged, Lost, Orders, forward_log

logger = logging.getLogger("fedsim")

POLL = 0.25
"""The longest that the controller waits for events, in seconds."""
STOP, END = b"stop", b"end"
"""Orders to the current run; every other message is a job."""
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from fedsim.training.processes import serve; serve(int(sys.argv[1]))"
)
"""The program of a process: it takes the controller's sys.path, then jobs from its pipe."""


class Slot:
    """A driver process, and the controller's end of its pipe.

    It is a plain child and not one of :mod:`multiprocessing`, which would import the main module
    again: it belongs to a process group of its own from its first instruction, so that Ctrl-C at a
    terminal goes to the controller alone.
    """

    def __init__(self) -> None:
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

    def ask(self, message: bytes) -> None:
        """Sends a pickled job or an order; :meth:`told` notices a process that has ended."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(message)

    def told(self) -> tuple[list[Event], bool]:
        """The events that the process has sent, and whether it has ended."""
        found: list[Event] = []
        try:
            while self.pipe.poll():
                found.append(self.pipe.recv())
        except (EOFError, OSError):
            return found, True
        return found, self.process.poll() is not None and not self.pipe.poll()

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

    See :class:`fedsim.engine.drivers.Drivers`.
    """

    def __init__(self, count: int) -> None:
        self.slots = tuple(range(count))
        self._made: dict[int, Slot] = {slot: Slot() for slot in self.slots}

    @property
    def place(self) -> str:
        """See :class:`~fedsim.engine.drivers.Drivers`."""
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

    def submit(self, slot: int, job: Job) -> None:
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        if slot not in self._made:
            self._made[slot] = Slot()
        self._made[slot].ask(pickle.dumps(job))
        self._made[slot].at_work = True

    def events(self, tell: Callable[[int, Event], None]) -> None:
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        wait([made.pipe for made in self._made.values()], POLL)
        for slot, made in list(self._made.items()):
            found, ended = made.told()
            for event in found:
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
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        for number, made in self._made.items():
            if slot in (None, number):
                made.ask(STOP)

    def end(self, slot: int) -> None:
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        if slot in self._made:
            self._made[slot].ask(END)

    def close(self, at_once: bool = False) -> None:
        """See :class:`~fedsim.engine.drivers.Drivers`."""
        made, self._made = list(self._made.values()), {}
        for each in made:
            each.pipe.close()  # all at once: they end side by side
        for each in made:
            each.end(at_once)


def serve(fd: int) -> None:
    """Executes jobs from a pipe until it is closed: the main function of a driver process."""
    pipe, sending = Connection(fd), threading.Lock()
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

    threading.Thread(target=listen, daemon=True).start()
    forward_log(tell)
    for module in ("fedsim.engine.serial", "fedsim.training.driver"):
        importlib.import_module(module)  # what every run needs, while the controller still plans
    from fedsim.engine import devices
    from fedsim.training.parallel import execute

    devices.keep_freed_memory()
    while (order := jobs.get()) is not None:
        job, orders = order
        ended = execute(pickle.loads(job), orders, tell, None)
        sys.stdout.flush()  # what the user's code has printed: an idle process may be killed
        sys.stderr.flush()
        tell(ended)
    os._exit(0)  # the runs are on disk; taking torch down takes seconds
