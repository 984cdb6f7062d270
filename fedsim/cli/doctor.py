"""``fedsim doctor``."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedsim.cli.configuration import configuration
from fedsim.cli.options import GroupedCommand, settings_options, verbose_option
from fedsim.version import __version__

if TYPE_CHECKING:
    from fedsim.config import RunConfig


@click.command(cls=GroupedCommand)
@settings_options()
@verbose_option
def doctor(preset: str | None, config: str | None, **values: Any) -> None:
    """Show what is here, and what placement a run would get.

    Takes the options of 'fedsim run'. Starts nothing; with --address it asks that cluster.

    \b
      fedsim doctor
      fedsim doctor --clients 100 --gpus-per-client 0.25
      fedsim doctor --address auto
    """
    from fedsim.tables import show

    settings = configuration(preset, config, values)
    rows = [*machine(), ("placement", placement(settings))]
    show([{"": name, "here": value} for name, value in rows])


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
        ("CPUs", f"{_usable_cpus()} usable of {os.cpu_count()}"),
        ("memory", memory()),
        *((f"GPU {i}", f"{g.name}, {g.total_memory / 2**30:.0f} GiB") for i, g in enumerate(gpus)),
        *([] if gpus else [("GPUs", "none that torch can use")]),
    ]


def placement(settings: RunConfig) -> str:
    """The line that describes where the clients of a run would be.

    Raises:
        ConfigError: the fractions do not fit, the cluster cannot be reached.
    """
    engine = settings.engine
    if engine.kind == "serial":
        return "one process for all clients (--engine serial)"
    from fedsim.engine.cluster import connect, machines, plan_for

    if engine.address is not None:
        connect(engine)
    return plan_for(engine, machines(), num_clients(settings)).describe()


def num_clients(settings: RunConfig) -> int:
    """K; reads the data only where files or sites decide it."""
    if settings.decides_num_clients:
        return settings.data.num_clients
    from fedsim import setup

    return setup.make_partition(settings, *setup.load_dataset(settings)).num_clients


def memory() -> str:
    """Free and total memory, where the system says it."""
    path = Path("/proc/meminfo")
    if not path.exists():
        return "unknown on this system"
    lines = dict(line.split(":", 1) for line in path.read_text(encoding="ascii").splitlines())
    free, total = (int(lines[key].split()[0]) / 2**20 for key in ("MemAvailable", "MemTotal"))
    return f"{free:.1f} of {total:.1f} GiB free"


def _usable_cpus() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
