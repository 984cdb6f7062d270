"""``fedsim doctor``."""

from __future__ import annotations

import math
import os
import platform
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fedsim.cli.common import configuration
from fedsim.cli.options import (
    SettingsCommand,
    preset_options,
    set_any_option,
    several_option,
    verbose_option,
)
from fedsim.core.errors import ConfigError
from fedsim.core.machine import available_memory, cores
from fedsim.core.terminal import echo
from fedsim.core.text import counted
from fedsim.version import __version__

if TYPE_CHECKING:
    from fedsim.config.experiments import Settings
    from fedsim.config.run import RunConfig
    from fedsim.engine.ray.placement import Node, Placement

CPUS_PER_GPU = 8
"""Of an assumed machine, as in those that clouds rent."""


@dataclass(frozen=True)
class Assumed:
    """Machines that are not here; ``memory`` is that of a GPU in GB, 0 where it is not said."""

    machines: int
    gpus: int
    memory: float

    @property
    def nodes(self) -> list[Node]:
        """The machines, with :data:`CPUS_PER_GPU`."""
        from fedsim.engine.ray.placement import Node

        kind = f"assumed, {self.memory:g} GB" if self.memory else "assumed"
        return [
            Node(CPUS_PER_GPU * self.gpus, self.gpus, f"machine {i + 1}", kind)
            for i in range(self.machines)
        ]


class GpusType(click.ParamType[Any]):
    """``[MACHINESx]GPUS[:MEMORY]``, such as ``2x8:80GB``."""

    name = "NxG:MEMORY"
    form = re.compile(r"(?:([1-9]\d{0,3})x)?([1-9]\d{0,2})(?::(\d+(?:\.\d+)?)\s?Gi?B?)?", re.I)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Assumed:
        """The machines; refuses anything else."""
        match = self.form.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} given; must be such as 8, 2x8 or 2x8:80GB", param, ctx)
        return Assumed(int(match[1] or 1), int(match[2]), float(match[3] or 0))


def _of_placement(key: str) -> bool:
    """Whether the help lists the flag of a key."""
    return key.startswith(("data.", "model.", "engine.")) or key == "train.sample_rate"


@click.command(cls=SettingsCommand, shown=_of_placement)
@preset_options
@set_any_option
@several_option(
    "--assume-gpus",
    "assumed",
    type=GpusType(),
    metavar="NxG:MEMORY",
    help="Plan for GPUs that are not here: machines x GPUs each, and the memory of one, as in "
    "2x8:80GB.",
)
@verbose_option
def doctor(
    preset: str | None, config: str | None, assumed: Assumed | None, flags: Settings
) -> None:
    """Show this machine, and the placement that a run would get.

    Starts nothing; with --address it queries that cluster. What
    does not fit is refused as by 'fedsim run', below the table of the machines.

    \b
      fedsim doctor
      fedsim doctor --clients 100 --gpus-per-client 0.25
      fedsim doctor --address auto
      fedsim doctor --clients 100 --assume-gpus 2x8:80GB --gpus-per-client 0.5
    """
    from fedsim.display.tables import show
    from fedsim.engine import registry as executors

    settings = configuration(preset, config, flags)
    show([{"": name, "here": value} for name, value in machine()])
    executors.check(settings.engine)
    if settings.engine.kind != "ray":
        alone = "one process for all clients" if settings.engine.kind == "serial" else "its own"
        rows = [("placement", f"{alone} (--engine {settings.engine.kind})")]
    else:
        from fedsim.engine.devices import total_memory
        from fedsim.engine.ray.cluster import connect, machines, plan_for

        if settings.engine.address is not None and assumed is None:
            connect(settings.engine)
        nodes = machines() if assumed is None else assumed.nodes
        echo()
        show([machine_row(node) for node in nodes])
        try:
            plan = plan_for(settings.engine, nodes, *size(settings))
        except ConfigError as error:
            if not settings.engine.gpus_per_client or any(node.gpus for node in nodes):
                raise
            hint = "--assume-gpus 1x8:80GB plans for GPUs that are not here"
            raise ConfigError(f"{error}; {hint}") from None
        rows = plan_rows(plan)
        if plan.share.gpus:
            total = total_memory() if assumed is None else int(assumed.memory * 10**9)
            share = min(plan.share.gpus, 1.0) * (total or 0) / 2**30
            rows += [("GPU memory", f"{share:.1f} GiB for an actor")] if total else []
    echo()
    show([{"": name, "plan": value} for name, value in rows])


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
        ("memory", f"{available_memory() / 2**30:.1f} GiB free"),
        *((f"GPU {i}", f"{g.name}, {g.total_memory / 2**30:.0f} GiB") for i, g in enumerate(gpus)),
        *([] if gpus else [("GPUs", "none that torch can use")]),
    ]


def machine_row(node: Node) -> dict[str, str]:
    """A row of the table: a machine and its resources for Ray."""
    return {
        "machine": node.name,
        "CPUs": f"{node.cpus:g}",
        "GPUs": f"{node.gpus:g}",
        "type": node.accelerator or "-",
        "GiB for actors": f"{node.memory / 2**30:.1f}" if math.isfinite(node.memory) else "-",
    }


def plan_rows(plan: Placement) -> list[tuple[str, str]]:
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
