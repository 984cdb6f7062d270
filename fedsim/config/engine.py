"""The keys of section ``engine``: where clients train, and how the work is dealt out."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from fedsim.config.section import Key, Placement, Section
from fedsim.core.settings import MOST, Arithmetic, Count, CountOrZero, word_or_number

OfRay = partial(Placement, of_ray=True)
SMALLEST_AMOUNT = 1e-4
"""The smallest amount of a CPU or GPU that Ray assigns."""
AmountOrNone = Annotated[float | None, Field(gt=0, le=MOST)]


class EngineConfig(Section):
    """Section ``engine``: where the work is done.

    Results depend on the kinds of device that train and aggregate, on ``precision``,
    ``deterministic``, ``client_batch`` and ``on_client_failure``, on nothing else.
    """

    prefix = "engine."
    kind: Annotated[str, Placement("--engine", "ray|serial", common=True)] = "ray"
    """Where clients train: on Ray, or in one process (serial)."""
    actors: Annotated[
        Literal["auto", "per-client"] | int,
        OfRay("--actors", "auto|per-client|N"),
    ] = "auto"
    """Worker processes that hold the clients."""
    client_batch: Annotated[Literal["auto"] | int, Key("--client-batch", "N|auto")] = 1
    """Number of clients that train together as one stacked model, which is faster for small models;
    auto: by model, data and kind of device, 1: one by one."""
    gpus_per_client: Annotated[
        float | None, Field(ge=0, le=MOST), Key("--gpus-per-client", "F", role="device")
    ] = None
    """GPUs for each client, a fraction up to 1 or a whole number, 0: none; unset: chosen by the
    engine."""
    cpus_per_client: Annotated[float, Field(gt=0, le=MOST), OfRay("--cpus-per-client", "F")] = 1.0
    """CPU cores for each client, a fraction up to 1 or a whole number."""
    address: Annotated[str | None, OfRay("--address", "ADDR")] = None
    """Ray cluster to join: its address, or auto for the one that runs here; local or unset: start
    one."""
    working_dir: Annotated[str | None, Placement("--working-dir", "DIR", path="dir")] = None
    """Folder with your own modules, shipped to the workers."""
    memory_per_client: Annotated[AmountOrNone, Placement()] = None
    """GiB of memory that an actor needs; unset: an estimate."""
    client_timeout: Annotated[AmountOrNone, OfRay("--client-timeout", "SECONDS")] = None
    """Seconds until a client's work in a round counts as lost; unset: ten times the slowest work
    of its size, at least 60 s."""
    max_retries: Annotated[CountOrZero, OfRay("--max-retries")] = 3
    """How often a client's lost work is retried before the client counts as failed."""
    on_client_failure: Annotated[Literal["raise", "drop"], Key("--on-client-failure")] = "raise"
    """What happens when a client fails or diverges; raise: the run ends, drop: the client is left
    out of its round."""
    checkpoint_every: Annotated[CountOrZero, Placement("--checkpoint-every")] = 1
    """Rounds from one checkpoint to the next; 0: only when the run is interrupted or fails."""
    keep_checkpoints: Annotated[Count, Placement()] = 2
    """Number of the newest checkpoints that are kept."""
    keep_every: Annotated[CountOrZero, Placement()] = 0
    """Keep a checkpoint of every so many rounds beside the newest, from which `fedsim verify` and
    `fedsim replay` start; 0: the newest alone."""
    save_model: Annotated[bool, Placement()] = True
    """Leave the final models in the run directory (model.safetensors, clients.safetensors): not
    needed for tables and `fedsim verify`, but for predictions."""
    state_memory: Annotated[float, Field(ge=0, le=MOST), Placement()] = 1.0
    """GiB of client states that may wait in memory until they are written to files."""
    aggregation_shards: Annotated[
        Literal["auto"] | int, OfRay("--aggregation-shards", "N|auto")
    ] = 1
    """Number of parameter ranges that are summed up on several nodes; auto: one per node, 1: on the
    driver."""
    server_device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where the server multiplies and sums updates, in float64 in any case; auto: on this process's
    GPU where clients train on GPUs and it has one, gpu: there, or the run is refused."""
    data_from: Annotated[Literal["object_store", "node"], OfRay()] = "object_store"
    """How data reach the actors: through Ray's object store, or each node reads data.dir itself."""
    allow_mixed_devices: Annotated[bool, Key(role="device")] = False
    """Accept a cluster with several types of accelerator."""
    precision: Annotated[Arithmetic, Key("--precision")] = "float32"
    """Arithmetic of networks on a GPU; tf32: products of matrices and convolutions with 10 bits of
    mantissa, bf16: forward passes in bfloat16 and images with channels last, the rest as tf32.
    Weights, updates and all that the server does stay as they are; a CPU computes in float32."""
    deterministic: bool = True
    """On a GPU: kernels whose bits repeat; false: autotuned kernels and atomic sums, whose bits may
    differ from run to run."""

    @field_validator("actors", "client_batch", "aggregation_shards", mode="plain")
    @classmethod
    def _words_or_numbers(cls, value: object, info: ValidationInfo) -> str | int:
        words = ("auto", "per-client") if info.field_name == "actors" else ("auto",)
        return word_or_number(value, words)

    @field_validator("gpus_per_client", "cpus_per_client")
    @classmethod
    def _amount_that_ray_assigns(cls, value: float | None) -> float | None:
        if value and value < SMALLEST_AMOUNT:
            raise ValueError(f"must be {SMALLEST_AMOUNT:g} or more: Ray assigns no smaller amounts")
        if value is not None and value > 1 and not value.is_integer():
            raise ValueError(
                f"must be at most 1 or a whole number (nearest: {math.floor(value)} or "
                f"{math.ceil(value)})"
            )
        return value
