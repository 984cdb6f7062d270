"""Waits until a Ray cluster has as many nodes as an experiment counts on.

fedsim begins with the nodes that are there and takes in, between rounds, those that join. Run this
in front of it so that all take part from the first round, and so that what needs them all is not
refused: ``python launch/wait_for_nodes.py 3 && fedsim sweep table3 --address auto``.
"""

from __future__ import annotations

import argparse
import sys
import time

import ray  # noqa: TID251
from ray.exceptions import RayError  # noqa: TID251


def alive() -> int:
    """Nodes of the connected cluster that are alive."""
    return sum(node["Alive"] for node in ray.nodes())


def main() -> str | None:
    """Returns None once the nodes are there, and else in one line what is wrong."""
    parser = argparse.ArgumentParser(description="Wait for the nodes of a Ray cluster.")
    parser.add_argument("nodes", type=int, help="how many, the head counted")
    parser.add_argument("--address", default="auto", help="host:port of the head [auto]")
    parser.add_argument("--timeout", type=float, default=600, help="seconds [600]")
    given = parser.parse_args()
    deadline = time.monotonic() + given.timeout
    try:
        ray.init(address=given.address, log_to_driver=False, logging_level="ERROR")
        while (found := alive()) < given.nodes:
            if time.monotonic() > deadline:
                return f"error: {found} of {given.nodes} nodes after {given.timeout:g} s"
            time.sleep(0.2)
    except (ConnectionError, RayError) as error:
        reason = " ".join(str(error).split())
        return (
            f"error: --address {given.address}: there is no cluster, or it does not accept this "
            f"token ({reason})"
        )
    return None


if __name__ == "__main__":
    sys.exit(main())
