"""The machines that Ray knows: starting it, joining it, and what fits on it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

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
        ConfigError: there is no cluster at the address, no such working_dir, or Ray cannot start.
    """
    if ray.is_initialized():
        given = [key for key in ("address", "working_dir") if getattr(engine, key) is not None]
        if given:
            raise ConfigError(f"engine.{given[0]}: this process is connected to Ray already")
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if engine.working_dir is not None:
        if not Path(engine.working_dir).is_dir():
            raise ConfigError(f"--working-dir {engine.working_dir}: there is no such folder")
        options["runtime_env"] = {"working_dir": engine.working_dir}
    if engine.address is None:
        here = local_node()
        options |= {"num_cpus": int(here.cpus), "num_gpus": int(here.gpus)}
        options |= {"include_dashboard": False}
    else:
        _reach(engine.address)
    try:
        ray.init(address=engine.address or "local", **options)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"--address {engine.address}: cannot join the cluster"
        raise ConfigError(f"{where if engine.address else 'Ray cannot start'} ({error})") from error
    return True


def _reach(address: str) -> None:
    """Asks whether anything listens at host:port; Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise ConfigError(f"--address {address}: nothing answers there ({error})") from error


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

    Raises:
        ConfigError: it does not fit, or the GPUs are of several types and that is not allowed.
    """
    gpus = engine.gpus_per_client
    if gpus is None:
        gpus = 0.5 if any(n.gpus >= 1 for n in nodes) else 0.0
    kinds = {n.accelerator for n in nodes if n.gpus >= 1}
    if gpus > 0 and len(kinds) > 1 and not engine.allow_mixed_devices:
        refuse_mixed(kinds)
    return plan(nodes, num_clients, engine.cpus_per_client, gpus, engine.actors)


def refuse_mixed(kinds: Iterable[str]) -> NoReturn:
    """Refuses a cluster on which results would depend on who trains where."""
    names = ", ".join(sorted(kind or "unknown" for kind in kinds))
    raise ConfigError(
        f"the cluster mixes devices ({names}), so results depend on who trains where; "
        "--set engine.allow_mixed_devices=true accepts that"
    )
