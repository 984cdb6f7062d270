"""Starting Ray or joining a cluster, its machines, and the placement of a run on them."""

import contextlib
import logging
import math
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants

from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, FedsimError, Interrupted, one_line
from fedsim.core.machine import PROCESS, available_memory, cores, model_copies, num_gpus
from fedsim.core.types import GIB
from fedsim.engine.ray.placement import Node, Placement, Share, plan_placement

logger = logging.getLogger("fedsim")
LOCAL = "local"
"""The address of a Ray that starts and ends with the run, as without any."""
NETWORK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's variable that lets other machines reach its processes, on any system."""
OBJECT_STORE = 0.3
"""The part of the free memory that Ray keeps for its object store, unless told otherwise."""


_connected = _forked = False
"""Whether this process was ever connected to Ray, and whether its parent was when it was forked."""


def _after_fork() -> None:
    global _forked  # noqa: PLW0603 - of the process
    _forked = _forked or _connected or ray.is_initialized()


os.register_at_fork(after_in_child=_after_fork)


def connect(engine: EngineConfig) -> Callable[[], None]:
    """Starts Ray on this machine, quietly, or joins the cluster at ``engine.address``.

    Returns what ends the connection, which does nothing where this process already had one. A
    ConfigError where a setting cannot be met, a FedsimError where Ray does not come up here.
    """
    global _connected  # noqa: PLW0603 - of the process
    if _forked:
        raise ConfigError(
            "engine.kind=ray: this process was forked from one that had connected to Ray, whose "
            "threads it lacks: start it with multiprocessing.get_context('spawn'), or set "
            "engine.kind=serial"
        )
    if ray.is_initialized():
        refused = [key for key in ("address", "working_dir") if getattr(engine, key) is not None]
        if refused:
            raise ConfigError(f"engine.{refused[0]}: this process is connected to Ray already")
        return lambda: None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if engine.working_dir is not None:
        if not Path(engine.working_dir).is_dir():
            raise ConfigError(f"--working-dir {engine.working_dir}: there is no such folder")
        options["runtime_env"] = {"working_dir": engine.working_dir}
    address = engine.address or LOCAL
    _connected = True
    try:
        with _keep_sigterm_handler():
            if address == LOCAL:
                _start(options)
            else:
                _check_reachable(address)
                ray.init(address=address, **options)
    except FedsimError:
        raise
    except Exception as error:  # a time-out is a plain Exception
        if address != LOCAL:
            said = f"--address {address}: cannot join the cluster ({one_line(error)})"
            raise ConfigError(said) from error
        kind = FedsimError if type(error) is Exception else ConfigError
        raise kind(f"Ray cannot start ({one_line(error)}); --engine serial needs no Ray") from error
    return ray.shutdown


def joining() -> dict[str, Any]:
    """What another process on this machine needs to :func:`join` the Ray of this one."""
    here = ray.get_runtime_context()
    return {"address": here.gcs_address, "runtime_env": here.runtime_env.to_dict()}


def join(ray_of_another: Mapping[str, Any]) -> None:
    """Joins the Ray that another process on this machine is connected to, see :func:`joining`."""
    loopback = ray_of_another["address"].startswith("127.0.0.1:")
    with _keep_sigterm_handler(), _loopback_only() if loopback else contextlib.nullcontext():
        ray.init(**ray_of_another, log_to_driver=False, logging_level="ERROR")


def _start(options: Mapping[str, Any]) -> None:
    """Starts Ray on this machine; processes that it leaves where it fails end with this one."""
    here = local_node()
    size = {"num_cpus": int(here.cpus), "num_gpus": int(here.gpus)}
    os.environ.update(_auth_token())
    with _loopback_only():
        ray.init(address=LOCAL, include_dashboard=False, **size, **options)


@contextlib.contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """Puts back the handler of SIGTERM that Ray replaces when it starts, where there was one.

    Its own leaves Python with status 15; that becomes :class:`Interrupted`.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as end:
        raise Interrupted(signal.SIGTERM) from end
    finally:
        if before is not signal.SIG_DFL and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _loopback_only() -> Iterator[None]:
    """A Ray that starts meanwhile listens on the loopback address, as it does on macOS.

    Ray has no setting for this. This process has read the variable when Ray was imported; the
    processes that it starts read it then.
    """
    constant, variable = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(NETWORK)
    ray_constants.ENABLE_RAY_CLUSTER, os.environ[NETWORK] = False, "0"
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant
        os.environ.pop(NETWORK)
        if variable is not None:
            os.environ[NETWORK] = variable


def _auth_token() -> dict[str, str]:
    """A secret of this process for the Rays that it starts, unless the user has set one up; Ray
    would leave it in the home folder."""
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        return {}
    with contextlib.suppress(RuntimeError):  # this user has no home folder
        if (Path.home() / ".ray" / "auth_token").exists():
            return {}
    return {"RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _check_reachable(address: str) -> None:
    """Refuses host:port where nothing listens; Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise ConfigError(
            f"--address {address}: nothing answers there ({error}); "
            f"--address {LOCAL} starts Ray on this machine"
        ) from error


def alive_nodes() -> list[str]:
    """Ray's ids of all nodes of the cluster."""
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])


def machines() -> list[Node]:
    """The machines of the connected cluster that are alive, or this one where there is none."""
    if not ray.is_initialized():
        return [local_node()]
    return [
        node_of(node["Resources"], node["NodeManagerAddress"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def node_of(resources: Mapping[str, float], name: str) -> Node:
    """A machine from the resources that Ray says it has."""
    kinds = [key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")]
    cpus, gpus = (resources.get(name, 0.0) for name in ("CPU", "GPU"))
    return Node(cpus, gpus, name, ", ".join(sorted(kinds)), resources.get("memory", math.inf))


def local_node() -> Node:
    """This machine, as an embedded Ray will see it."""
    memory = available_memory() * (1 - OBJECT_STORE)
    return Node(cores(), num_gpus(), memory=memory)


def plan_for(
    engine: EngineConfig,
    nodes: Sequence[Node],
    num_clients: int,
    model_bytes: int = 0,
    frozen_bytes: int = 0,
) -> Placement:
    """The placement on the given machines; a ConfigError where it does not fit.

    The memory of an actor follows from the sizes of the model's vector and of its frozen tensors;
    images are shared by all of a machine.
    """
    share, memory = share_of(engine, nodes), memory_of(engine, model_bytes, frozen_bytes)
    return plan_placement(nodes, share, memory, num_clients, engine.actors)


def share_of(engine: EngineConfig, nodes: Sequence[Node]) -> Share:
    """What a client actor holds on these machines: a whole GPU, or what there is of one, unless
    ``gpus_per_client`` says it."""
    gpus = engine.gpus_per_client
    if gpus is None:
        gpus = min(1.0, max((n.gpus for n in nodes), default=0.0))
    return Share(engine.cpus_per_client, gpus)


def memory_of(engine: EngineConfig, model_bytes: int, frozen_bytes: int = 0) -> int:
    """Bytes that a client actor needs."""
    if engine.memory_per_client is not None:
        return math.ceil(engine.memory_per_client * GIB)
    return PROCESS + model_copies(engine.client_batch) * model_bytes + frozen_bytes
