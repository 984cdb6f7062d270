"""The keys of section ``engine``: where clients train, and how the work is dealt out."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from fedsim.config.section import Key, Section
from fedsim.core.settings import MOST, Arithmetic, Count, CountOrZero, word_or_number

SMALLEST_AMOUNT = 1e-4
"""The smallest amount of a CPU or GPU that Ray assigns."""
AmountOrNone = Annotated[float | None, Field(gt=0, le=MOST)]


class EngineConfig(Section):
    """Section ``engine``: where the work is done.

    Results depend on the kinds of device that train and aggregate, on ``precision``,
    ``deterministic``, ``client_batch`` and ``on_client_failure``, on nothing else.
    """

    prefix = "engine."
    kind: Annotated[str, Key("--engine", "ray|serial", role="placement", common=True)] = "ray"
    """Where clients train: on Ray, or in one process (serial)."""
    actors: Annotated[
        Literal["auto", "per-client"] | int,
        Key("--actors", "auto|per-client|N", role="placement", of_ray=True),
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
    cpus_per_client: Annotated[
        float, Field(gt=0, le=MOST), Key("--cpus-per-client", "F", role="placement", of_ray=True)
    ] = 1.0
    """CPU cores for each client, a fraction up to 1 or a whole number."""
    address: Annotated[str | None, Key("--address", "ADDR", role="placement", of_ray=True)] = None
    """Ray cluster to join: its address, or auto for the one that runs here; local or unset: start
    one."""
    working_dir: Annotated[
        str | None, Key("--working-dir", "DIR", path="dir", role="placement")
    ] = None
    """Folder with your own modules, shipped to the workers."""
    memory_per_client: Annotated[AmountOrNone, Key(role="placement")] = None
    """GiB of memory that an actor needs; unset: an estimate."""
    client_timeout: Annotated[
        AmountOrNone, Key("--client-timeout", "SECONDS", role="placement", of_ray=True)
    ] = None
    """Seconds until a client's work in a round counts as lost; unset: ten times the slowest work
    of its size, at least 60 s."""
    max_retries: Annotated[CountOrZero, Key("--max-retries", role="placement", of_ray=True)] = 3
    """How often a client's lost work is retried before the client counts as failed."""
    on_client_failure: Annotated[Literal["raise", "drop"], Key("--on-client-failure")] = "raise"
    """What happens when a client fails or diverges; raise: the run ends, drop: the client is left
    out of its round."""
    checkpoint_every: Annotated[CountOrZero, Key("--checkpoint-every", role="placement")] = 1
    """Rounds from one checkpoint to the next; 0: only when the run is interrupted or fails."""
    keep_checkpoints: Annotated[Count, Key(role="placement")] = 2
    """Number of the newest checkpoints that are kept."""
    keep_every: Annotated[CountOrZero, Key(role="placement")] = 0
    """Keep a checkpoint of every so many rounds beside the newest, from which `fedsim verify` and
    `fedsim replay` start; 0: the newest alone."""
    save_model: Annotated[bool, Key(role="placement")] = True
    """Leave the final models in the run directory (model.safetensors, clients.safetensors): not
    needed for tables and `fedsim verify`, but for predictions."""
    state_memory: Annotated[float, Field(ge=0, le=MOST), Key(role="placement")] = 1.0
    """GiB of client states that the driver keeps in memory; the rest is on disk."""
    aggregation_shards: Annotated[
        Literal["auto"] | int, Key("--aggregation-shards", "N|auto", role="placement", of_ray=True)
    ] = 1
    """Number of parameter ranges that are summed up on several nodes; auto: one per node, 1: on the
    driver."""
    server_device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where the server multiplies and sums updates, in float64 in any case; auto: on this process's
    GPU where clients train on GPUs and it has one, gpu: there, or the run is refused."""
    data_from: Annotated[Literal["object_store", "node"], Key(role="placement", of_ray=True)] = (
        "object_store"
    )
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
