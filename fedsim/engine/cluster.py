"""The machines that Ray knows: starting it, joining it, and what fits on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")  # read when ray is imported
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")

import ray
import torch

from fedsim.engine.placement import Node, Plan, plan
from fedsim.errors import ConfigError
from fedsim.sections import EngineConfig


def connect(engine: EngineConfig) -> bool:
    """Starts Ray on this machine, quietly, or joins the cluster at ``engine.address``.

    Returns:
        Whether the connection is the caller's to end; False where this process already had one.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if engine.working_dir is not None:
        quiet["runtime_env"] = {"working_dir": engine.working_dir}
    if engine.address is None:
        here = local_node()
        resources = {"num_cpus": int(here.cpus), "num_gpus": int(here.gpus)}
        ray.init(address="local", include_dashboard=False, **resources, **quiet)
        return True
    try:
        ray.init(address=engine.address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"--address {engine.address}: no Ray cluster there ({error})") from error
    return True


def machines() -> list[Node]:
    """The machines of the connected cluster that are alive, or this one where there is none."""
    if not ray.is_initialized():
        return [local_node()]
    return [
        Node(
            n["Resources"].get("CPU", 0.0), n["Resources"].get("GPU", 0.0), n["NodeManagerAddress"]
        )
        for n in ray.nodes()
        if n["Alive"]
    ]


def local_node() -> Node:
    """This machine, as an embedded Ray will see it."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Node(cpus or 1, torch.cuda.device_count())


def plan_for(engine: EngineConfig, nodes: Sequence[Node], num_clients: int) -> Plan:
    """The placement on the given machines.

    Without ``gpus_per_client`` an actor takes half a GPU where there are GPUs.
    """
    gpus = engine.gpus_per_client
    if gpus is None:
        gpus = 0.5 if any(n.gpus >= 1 for n in nodes) else 0.0
    return plan(nodes, num_clients, engine.cpus_per_client, gpus, engine.actors)
