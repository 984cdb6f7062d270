"""``fedsim doctor``."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fedsim.cli.common import configuration
from fedsim.cli.options import SettingsCommand, preset_options, set_any_option, verbose_option
from fedsim.core.machine import available_memory, cores
from fedsim.core.terminal import echo
from fedsim.core.text import counted
from fedsim.core.types import GIB
from fedsim.version import __version__

if TYPE_CHECKING:
    from fedsim.config.experiments import Settings
    from fedsim.config.run import RunConfig


SHOWN = ("data.", "model.", "engine.", "train.sample_rate")
"""Beginnings of keys whose flags the help lists."""


@click.command(cls=SettingsCommand, shown=lambda key: key.startswith(SHOWN))
@preset_options
@set_any_option
@verbose_option
def doctor(preset: str | None, config: str | None, flags: Settings) -> None:
    """Show this machine, and the placement that a run would get.

    Starts nothing; with --address it queries that cluster.

    \b
      fedsim doctor
      fedsim doctor --clients 100 --gpus-per-client 0.25
      fedsim doctor --address auto
    """
    from fedsim.display.tables import show
    from fedsim.engine import registry as executors

    settings = configuration(preset, config, flags)
    show([{"": name, "here": value} for name, value in machine()])
    executors.check(settings.engine)
    rows = [("placement", f"its own (--engine {settings.engine.kind})")]
    if settings.engine.kind == "serial":
        rows = [("placement", "one process for all clients (--engine serial)")]
    elif settings.engine.kind == "ray":
        rows = _on_ray(settings)
    echo()
    show([{"": name, "plan": value} for name, value in rows])


def _on_ray(settings: RunConfig) -> list[tuple[str, str]]:
    """Shows the machines; name and value of the plan: actors, their memory, a GPU's."""
    from fedsim.display.tables import show
    from fedsim.engine.ray.cluster import connect, machines, plan_for

    if settings.engine.address is not None:
        connect(settings.engine)
    nodes = machines()
    echo()
    show(
        [
            {
                "machine": node.name,
                "CPUs": f"{node.cpus:g}",
                "GPUs": f"{node.gpus:g}",
                "type": node.accelerator or "-",
                "GiB for actors": f"{node.memory / GIB:.1f}" if math.isfinite(node.memory) else "-",
            }
            for node in nodes
        ]
    )
    plan = plan_for(settings.engine, nodes, *size(settings))
    need = plan.memory / GIB
    memory = f"about {need:.2f} GiB for an actor, {plan.actors * need:.2f} GiB for all"
    rows = [("placement", str(plan)), ("memory needed", memory)]
    used = zip(plan.nodes, plan.per_node, strict=True)
    rows += [(f"on {node.name}", counted(n, "actor")) for node, n in used if n]
    return [*rows, *(gpu_rows(settings, plan.share.gpus) if plan.share.gpus else ())]


def machine() -> list[tuple[str, str]]:
    """Name and value: versions, processors, memory."""
    from importlib.metadata import version

    import torch

    count = torch.cuda.device_count()
    gpus = [torch.cuda.get_device_properties(i) for i in range(count)]
    return [
        ("fedsim", __version__),
        ("Python", f"{platform.python_version()} ({sys.executable})"),
        ("torch", f"{torch.__version__}, torchvision {version('torchvision')}"),
        ("Ray", version("ray")),
        ("CPUs", f"{cores()} usable of {os.cpu_count()}"),
        ("memory", f"{available_memory() / GIB:.1f} GiB free"),
        *((f"GPU {i}", f"{g.name}, {g.total_memory / GIB:.0f} GiB") for i, g in enumerate(gpus)),
        *([] if gpus else [("GPUs", "none that torch can use")]),
    ]


def gpu_rows(settings: RunConfig, gpus: float) -> Iterator[tuple[str, str]]:
    """Name and value: what of a GPU an actor has, and what training a client takes of it."""
    from fedsim.engine import devices, footprint, transfer
    from fedsim.training.sizes import gpu_need

    total = devices.total_memory()
    if total:
        yield "GPU memory", f"{min(gpus, 1.0) * total / GIB:.1f} GiB for an actor"
    room = transfer.room(total, gpus) if total else math.inf
    need = gpu_need(settings, room)
    if need is None:
        yield "GPU memory needed", "not known for this model"
        return
    if total:
        footprint.check(need, total, gpus)
    samples = f" where they take at most {room / GIB:.1f} GiB" if total else ""
    yield "GPU memory needed", f"about {need / GIB:.1f} GiB for an actor, and samples{samples}"


def size(settings: RunConfig) -> tuple[int, int, int]:
    """K, and the bytes of the model's vector and of its frozen tensors."""
    from fedsim import data
    from fedsim.training import assemble
    from fedsim.training.sizes import model_bytes

    info = data.find(settings.data.name)
    if info and settings.decides_num_clients and info.num_classes and info.channels:
        vector, frozen = model_bytes(settings)
        if vector:
            return settings.data.num_clients, vector, frozen
    random = settings.model.model_copy(update={"pretrained": False, "weights": None})
    ready = assemble.prepare(settings.model_copy(update={"model": random}))
    return ready.partition.num_clients, ready.vector_bytes, ready.spec.frozen_bytes
