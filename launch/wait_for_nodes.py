"""Waits until a Ray cluster has as many nodes as an experiment counts on.

fedsim begins with the nodes that are there and takes in, between rounds, those that join. Run this
in front of it so that all take part from the first round, and so that what needs them all is not
refused: ``python launch/wait_for_nodes.py 3 && fedsim sweep table3 --address auto``.

A cluster that is not there yet is waited for, too; once a minute a line on stderr says what is
missing. The process ends with status 1 after ``--timeout`` seconds, or at once where this process
has no token for the cluster.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import socket
import sys
import time
from multiprocessing.connection import Connection

INTERVAL = 0.2
"""Seconds between two looks at the nodes of a cluster."""
PAUSE = 1.0
"""Seconds between two tries to reach one."""
PATIENCE = 5.0
"""The longest that an answer is waited for, in seconds, before the time is looked at."""
MINUTE = 60.0
"""Seconds between two lines that say what is missing."""


def unanswered(address: str, seconds: float) -> str | None:
    """Why a connection to host:port cannot be made; None: it can, or the address is another."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return None
    try:
        socket.create_connection((host, int(port)), timeout=seconds).close()
    except (OSError, OverflowError) as error:
        return f"nothing answers there ({error})"
    return None


def report(address: str, answers: Connection) -> None:
    """Sends the number of nodes that are alive, again and again, or why there is no answer.

    In a process of its own: nothing bounds ``ray.init``, and Ray itself writes on its output.
    """
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    import ray  # noqa: TID251
    from ray.exceptions import AuthenticationError, RayError  # noqa: TID251

    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        while True:
            answers.send(sum(node["Alive"] for node in ray.nodes()))
            time.sleep(INTERVAL)
    except BrokenPipeError:
        return  # nobody asks any more
    except AuthenticationError as error:
        reason = one_line(error).partition(". ")[0]  # advice for a token of one's own follows
        answers.send(PermissionError(f"no token for it, or not the right one ({reason})"))
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        answers.send(f"no cluster, or not with this token ({one_line(error)})")


def one_line(error: BaseException) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split())


class Reporter:
    """The process that asks the cluster, started where there is none and something listens.

    Args:
        address: of the cluster.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._process: multiprocessing.process.BaseProcess | None = None
        self._answers: Connection

    def ask(self, seconds: float) -> int | str | None:
        """The number of nodes, or what is wrong; None if no answer comes in so many seconds.

        Raises:
            PermissionError: no question can ever be answered.
        """
        if self._process is None:
            problem = unanswered(self._address, seconds)
            if problem:
                return problem
            spawn = multiprocessing.get_context("spawn")
            self._answers, theirs = spawn.Pipe(duplex=False)
            self._process = spawn.Process(target=report, args=(self._address, theirs), daemon=True)
            self._process.start()
            theirs.close()
        if not self._answers.poll(seconds):
            return None
        try:
            answer: int | str | PermissionError = self._answers.recv()
        except EOFError:
            answer = "Ray ended the process that asked it"
        if not isinstance(answer, int):
            self.close()
        if isinstance(answer, PermissionError):
            raise answer
        return answer

    def close(self) -> None:
        """Ends the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def main() -> str | None:
    """Returns None once the nodes are there, and else in one line what is wrong."""
    parser = argparse.ArgumentParser(
        description="Wait for a Ray cluster and its nodes.",
        epilog="Ends with status 1 after the timeout, or at once without a token for the cluster.",
    )
    parser.add_argument("nodes", type=int, help="how many, the head counted")
    parser.add_argument("--address", default="auto", help="host:port of the head [auto]")
    parser.add_argument("--timeout", type=float, default=600, help="seconds [600]")
    given = parser.parse_args()
    where = f"--address {given.address}"
    begun, told, state = time.monotonic(), -MINUTE, "Ray does not answer there"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # after the end of the reporter
    reporter = Reporter(given.address)
    try:
        while True:
            left = begun + given.timeout - time.monotonic()
            found = reporter.ask(max(INTERVAL, min(left, PATIENCE)))
            if isinstance(found, int) and found >= given.nodes:
                return None
            if found is not None:
                state = found if isinstance(found, str) else f"{found} of {given.nodes} nodes"
            waited = time.monotonic() - begun
            if waited - told >= MINUTE:
                told = waited
                sys.stderr.write(f"{where}: {state}; waiting, for {given.timeout:g} s in all\n")
            if waited >= given.timeout:
                return f"error: {where}: {state}, after {given.timeout:g} s"
            if isinstance(found, str):
                time.sleep(min(PAUSE, given.timeout - waited))
    except PermissionError as error:
        return f"error: {where}: {error}"
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        reporter.close()


if __name__ == "__main__":
    sys.exit(main())
