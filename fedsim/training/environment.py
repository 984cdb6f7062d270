"""What env.json says of a run when it begins, and whether that still holds when it is resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.machine import kind_of, processor
from fedsim.engine.devices import Kind
from fedsim.models import weights
from fedsim.storage.run_dir import RunStore, environment
from fedsim.training.provenance import Provenance, accepted, check_code, check_data
from fedsim.training.setup import Setup


def describe(setup: Setup) -> dict[str, object]:
    """What env.json says of the run beside the executor's part; hashes and asks git once."""
    known = environment() | {"processor": processor(), "classes": list(setup.dataset.class_names)}
    known |= setup.provenance.record()
    known["server_device"] = Kind.of(setup.server_device or torch.device("cpu")).name
    if setup.drops:
        known["dropout"] = DROPOUT
    if setup.dataset.site is not None and not setup.dataset.sites_are_users:
        known["sites"] = list(setup.dataset.site_names)
    if setup.partition.held_out:
        known["heldout_clients"] = list(setup.partition.held_out)
    if setup.malicious:
        known["malicious_clients"] = list(setup.malicious)
    if setup.model.weights is not None:
        known["weights_sha256"] = files.sha256(weights.file_of(setup.model.weights))
    if setup.start.drawn:
        known["head_drawn_anew"] = list(setup.start.drawn)
    if setup.frozen:
        known["frozen_sha256"] = _frozen_sha256(setup)
    if setup.config.clock.trace is not None:
        known["trace_sha256"] = files.sha256(Path(setup.config.clock.trace))
    if (listed := _listed(setup.config)) is not None:
        known["clients_sha256"] = files.sha256(listed)
    return known


def check_begun(
    setup: Setup, store: RunStore, *, accept_changed_code: bool = False
) -> dict[str, object]:
    """Compares what a run is made of now with what it began with, as far as env.json says it.

    Returns:
        What env.json is to say as well: the code that was accepted.

    Raises:
        ConfigError: a user's code has changed, and that is not accepted; or env.json is damaged.
        DataError: data, trace, listed clients or frozen weights have changed.
    """
    run, now, before = store.path, setup.provenance, store.read_environment()
    began = Provenance.read(run)
    changed = check_code(run, began, now.code, accept=accept_changed_code)
    check_data(run, began, now.data, "put the data back, or begin another run")
    trace = setup.config.clock.trace
    _check_file("clock.trace", None if trace is None else Path(trace), "trace_sha256", run, before)
    _check_file("train.clients", _listed(setup.config), "clients_sha256", run, before)
    _check_frozen(setup, store, before)
    return accepted(now.code) if changed else {}


def _listed(config: RunConfig) -> Path | None:
    """The file of ``train.clients``, where it names one."""
    clients = config.train.clients
    return Path(clients) if clients is not None and clients.endswith(".csv") else None


def _check_file(
    key: str, file: Path | None, digest: str, run: Path, before: Mapping[str, Any]
) -> None:
    """Refuses the file of a key that is another one than the run began with."""
    if file is not None and before.get(digest) not in (None, files.sha256(file)):
        raise DataError(
            f"{key} {file}: it has changed since the run in {run} began; put it back, or begin "
            "another run"
        )


def _check_frozen(setup: Setup, store: RunStore, before: Mapping[str, Any]) -> None:
    """Refuses frozen tensors that are other ones than the run began with."""
    began = before.get("frozen_sha256")
    if setup.frozen and began not in (None, _frozen_sha256(setup)):
        raise DataError(
            f"model.trainable={setup.model.trainable}: the frozen weights are not those that the "
            f"run in {store.path} began with; put them back, or begin another run"
        )


def _frozen_sha256(setup: Setup) -> str:
    """The SHA-256 of the frozen tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name, array in sorted(setup.frozen.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def device_of(environment: Mapping[str, Any]) -> str:
    """What a run was done on, its last part if it was resumed: ``cpu``, or the name of a GPU."""
    parts = [p for p in (environment, *environment.get("resumed", ())) if isinstance(p, dict)]
    names = [kind_of(part).get("name") for part in parts]
    return next((str(name) for name in reversed(names) if name), "cpu")


DROPOUT = "philox4x64-10"
"""Of env.json: how dropout draws. Earlier versions, which do not say it, drew other numbers."""


def check_dropout(setup: Setup, run: Path, before: Mapping[str, Any]) -> None:
    """Refuses to do rounds again in which dropout drew other numbers; ``before`` is env.json.

    Raises:
        ConfigError: names the version that did them.
    """
    for part in (before, *before.get("resumed", ())):
        if setup.drops and "fedsim" in part and part.get("dropout") != DROPOUT:
            raise ConfigError(
                f"{run}: its rounds cannot be done again by this version: dropout drew other "
                f"random numbers in fedsim {part['fedsim']} (git {part.get('git_commit')}), with "
                "which it was done"
            )


NUMERICAL = ("torch", "numpy")
"""Packages whose versions may change the last digits of results."""


def other_versions(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """A line on what was another one when the run last went on, packages or how dropout draws.

    None where nothing was.

    Args:
        before: env.json of a run that is resumed.
        now: what it will say of the part that follows.
    """
    parts = before.get("resumed", [])
    last = parts[-1] if isinstance(parts, list) and parts else before
    old = last.get("packages") if isinstance(last, Mapping) else None
    new = now["packages"]
    if isinstance(old, Mapping) and "dropout" in now and "dropout" not in last:
        return (
            "dropout drew other random numbers in the version that did the rounds so far: the "
            "results are not those of a run without interruption"
        )
    changed = [p for p in NUMERICAL if isinstance(old, Mapping) and old.get(p, new[p]) != new[p]]
    if not changed or not isinstance(old, Mapping):
        return None
    were, are = (", ".join(f"{p} {versions[p]}" for p in changed) for versions in (old, new))
    return (
        f"the rounds so far were done with {were}, those that follow with {are}: the last digits "
        "may differ from those of a run without interruption"
    )
