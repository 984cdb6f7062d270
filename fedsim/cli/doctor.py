"""``fedsim doctor``."""

from __future__ import annotations

import math
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedsim.cli.common import configuration
from fedsim.cli.options import SettingsCommand, preset_options, set_any_option, verbose_option
from fedsim.core.plurals import counted
from fedsim.core.terminal import echo
from fedsim.version import __version__

if TYPE_CHECKING:
    from fedsim.config.experiments import Settings
    from fedsim.config.run import RunConfig
    from fedsim.engine.ray.placement import Node, Plan


@click.command(cls=SettingsCommand)
@preset_options
@set_any_option
@verbose_option
def doctor(preset: str | None, config: str | None, flags: Settings) -> None:
    """Show this machine, and the placement that a run would get.

    Takes the options of 'fedsim run'. Starts nothing; with --address it queries that cluster. What
    does not fit is refused as by 'fedsim run', below the table of the machines.

    \b
      fedsim doctor
      fedsim doctor --clients 100 --gpus-per-client 0.25
      fedsim doctor --address auto
    """
    from fedsim.engine import registry as executors
    from fedsim.training.tables import show

    settings = configuration(preset, config, flags)
    show([{"": name, "here": value} for name, value in machine()])
    executors.check(settings.engine)
    if settings.engine.kind != "ray":
        alone = "one process for all clients" if settings.engine.kind == "serial" else "its own"
        rows = [("placement", f"{alone} (--engine {settings.engine.kind})")]
    else:
        from fedsim.engine.ray.cluster import connect, machines, plan_for

        if settings.engine.address is not None:
            connect(settings.engine)
        nodes = machines()
        echo()
        show([machine_row(node) for node in nodes])
        rows = plan_rows(plan_for(settings.engine, nodes, *size(settings)))
    echo()
    show([{"": name, "plan": value} for name, value in rows])


def machine() -> list[tuple[str, str]]:
    """Name and value: versions, processors, memory."""
    from importlib.metadata import version

    import torch

    affinity = hasattr(os, "sched_getaffinity")
    usable = len(os.sched_getaffinity(0)) if affinity else os.cpu_count()
    count = torch.cuda.device_count()
    gpus = [torch.cuda.get_device_properties(i) for i in range(count)]
    return [
        ("fedsim", __version__),
        ("Python", f"{platform.python_version()} ({sys.executable})"),
        ("torch", f"{torch.__version__}, torchvision {version('torchvision')}"),
        ("Ray", version("ray")),
        ("CPUs", f"{usable} usable of {os.cpu_count()}"),
        ("memory", memory()),
        *((f"GPU {i}", f"{g.name}, {g.total_memory / 2**30:.0f} GiB") for i, g in enumerate(gpus)),
        *([] if gpus else [("GPUs", "none that torch can use")]),
    ]


def machine_row(node: Node) -> dict[str, str]:
    """A row of the table: a machine and its resources for Ray."""
    known = math.isfinite(node.memory)
    return {
        "machine": node.name,
        "CPUs": f"{node.cpus:g}",
        "GPUs": f"{node.gpus:g}",
        "type": node.accelerator or "-",
        "GiB for actors": f"{node.memory / 2**30:.1f}" if known else "-",
    }


def plan_rows(plan: Plan) -> list[tuple[str, str]]:
    """Name and value: the actors of each machine, and their memory."""
    need = plan.memory / 2**30
    used = [(node, n) for node, n in zip(plan.nodes, plan.per_node, strict=True) if n]
    return [
        ("placement", str(plan)),
        (
            "memory needed",
            f"about {need:.2f} GiB for an actor, {plan.actors * need:.2f} GiB for all",
        ),
        *((f"on {node.name}", counted(n, "actor")) for node, n in used),
    ]


def size(settings: RunConfig) -> tuple[int, int, int]:
    """K, and the bytes of the model's vector and of its frozen tensors; reads the data only if
    their files decide any."""
    from fedsim import data
    from fedsim.training import setup
    from fedsim.training.slots import model_bytes

    info = data.find(settings.data.name)
    if info and settings.decides_num_clients and info.num_classes and info.channels:
        vector, frozen = model_bytes(settings)
        if vector:
            return settings.data.num_clients, vector, frozen
    random = settings.model.model_copy(update={"pretrained": False, "weights": None})
    ready = setup.prepare(settings.model_copy(update={"model": random}))
    return ready.partition.num_clients, ready.vector_bytes, ready.spec.frozen_bytes


def memory() -> str:
    """Free and total memory, where the system reports them."""
    path = Path("/proc/meminfo")
    if not path.exists():
        return "unknown on this system"
    lines = dict(line.split(":", 1) for line in path.read_text(encoding="ascii").splitlines())
    free, total = (int(lines[key].split()[0]) / 2**20 for key in ("MemAvailable", "MemTotal"))
    return f"{free:.1f} of {total:.1f} GiB free"
