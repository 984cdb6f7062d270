"""Clients as Ray actors; the only package that imports ray."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.config.sections import EngineConfig
    from fedsim.engine.ray.executor import RayExecutor
    from fedsim.engine.ray.pool import Session
    from fedsim.engine.spec import WorkerSpec

for _name, _value in {
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_worker_niceness": "0",  # its own 15 would make a run wait for everything else
    "RAY_max_direct_call_object_size": str(1 << 20),  # small updates come with a call's answer
}.items():
    os.environ.setdefault(_name, _value)  # Ray reads them when it is imported


def make_executor(
    spec: WorkerSpec,
    engine: EngineConfig,
    *,
    update_bytes: int,
    session: Session | None = None,
    **options: Any,
) -> RayExecutor:
    """See :class:`fedsim.engine.registry.MakeExecutor`."""
    from fedsim.engine.ray.executor import RayExecutor

    return RayExecutor(spec, engine, update_bytes, session=session, **options)
