"""What env.json says of a run when it begins, and whether that still holds when it is resumed."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.errors import DataError
from fedsim.core.machine import kind_of
from fedsim.core.types import Vectors
from fedsim.identity.provenance import Provenance, accepted, check_code, check_data
from fedsim.models import weights
from fedsim.storage.run_dir import RunStore
from fedsim.version import __version__


def versions() -> dict[str, object]:
    """Versions, platform and git commit, for env.json."""
    packages = ("torch", "torchvision", "ray", "numpy", "pandas", "scipy", "scikit-learn")
    return {
        "fedsim": __version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in packages},
    }


def _git_commit() -> str | None:
    """The commit of the checkout that fedsim is imported from, None outside one."""
    root = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--show-toplevel", "HEAD"],
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        return None
    lines = os.fsdecode(done.stdout).split("\n") if done.returncode == 0 else [""]
    return lines[1] if lines[0] and Path(lines[0]) == root else None


def files_of(config: RunConfig, frozen: Vectors) -> dict[str, str]:
    """By key of env.json the SHA-256 of the files that settings name, and of frozen tensors."""
    read: dict[str, Path] = {}
    if config.model.weights is not None:
        read["weights_sha256"] = weights.file_of(config.model.weights)
    if config.clock.trace is not None:
        read["trace_sha256"] = Path(config.clock.trace)
    if config.train.clients is not None and config.train.clients.endswith(".csv"):
        read["clients_sha256"] = Path(config.train.clients)
    digests = {key: files.sha256(path) for key, path in read.items()}
    if frozen:
        named = (part for name in sorted(frozen) for part in (name, frozen[name]))
        digests["frozen_sha256"] = files.sha256_of(*named)
    return digests


def check_begun(
    run: Path,
    config: RunConfig,
    now: Provenance,
    frozen: Vectors,
    *,
    accept_changed_code: bool = False,
) -> dict[str, object]:
    """Compares what a run is made of now with what it began with, as far as env.json says it;
    returns what env.json is to say as well: the code that was accepted."""
    before, began = RunStore(run).read_environment(), Provenance.read(run)
    changed = check_code(run, began, now.code, accept=accept_changed_code)
    check_data(run, began, now.data, "put the data back, or begin another run")
    origins = {
        "trace_sha256": f"clock.trace {config.clock.trace}: it has",
        "clients_sha256": f"train.clients {config.train.clients}: it has",
        "frozen_sha256": f"model.trainable={config.model.trainable}: the frozen weights have",
    }
    for key, digest in files_of(config, frozen).items():
        if key in origins and before.get(key) not in (None, digest):
            raise DataError(
                f"{origins[key]} changed since the run in {run} began; put that back, or begin "
                "another run"
            )
    return accepted(now.code) if changed else {}


def device_of(environment: Mapping[str, Any]) -> str:
    """What a run was done on, its last part if it was resumed: ``cpu``, or the name of a GPU."""
    parts = [p for p in (environment, *environment.get("resumed", ())) if isinstance(p, dict)]
    names = [kind_of(part).get("name") for part in parts]
    return next((str(name) for name in reversed(names) if name), "cpu")


NUMERICAL = ("torch", "numpy")
"""Packages whose versions may change the last digits of results."""


def other_versions(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """A line on the packages that were other ones when the run last went on, if any."""
    new = now["packages"]
    old = [before, *before.get("resumed", [])][-1].get("packages", new)
    changed = [name for name in NUMERICAL if old.get(name, new[name]) != new[name]]
    if not changed:
        return None
    were, are = (", ".join(f"{name} {each[name]}" for name in changed) for each in (old, new))
    return (
        f"the rounds so far were done with {were}, those that follow with {are}: the last digits "
        "may differ from those of a run without interruption"
    )
