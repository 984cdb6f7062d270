"""The sections of a configuration: keys, types, ranges and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedsim.config.validation import InvalidSetting, complaint
from fedsim.core.errors import nearest
from fedsim.systems import distributions
from fedsim.systems.clock import BOUNDS

REMOVED = {
    "engine.client_resources": "clients cannot ask for different resources any more: "
    "engine.cpus_per_client and engine.gpus_per_client hold for all; allowed is null",
}
"""Keys of earlier versions, accepted at their old default null, and why they are refused else."""


class Section(BaseModel):
    """A frozen group of settings; unknown keys, NaN and truth values for numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    prefix: ClassVar[str] = ""

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("must not be true or false")
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _one_line(cls, values: Any, handler: ModelWrapValidatorHandler[Section]) -> Section:
        if isinstance(values, Mapping):
            for key in REMOVED.keys() & {cls.prefix + str(leaf) for leaf in values}:
                given = values[key.removeprefix(cls.prefix)]
                if given is not None:
                    raise InvalidSetting(key, f"{given!r} given, but {REMOVED[key]}")
            values = {k: v for k, v in values.items() if f"{cls.prefix}{k}" not in REMOVED}
        try:
            return handler(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = cls.prefix + str(first["loc"][0] if first["loc"] else "")
            if first["type"] == "extra_forbidden":
                raise InvalidSetting(key, cls.unknown(key)) from None
            raise InvalidSetting(key, complaint(error)) from None

    @classmethod
    def unknown(cls, key: str) -> str:
        """Why the dotted ``key`` is refused, with the nearest key that exists."""
        known = [cls.prefix + leaf for leaf in cls.model_fields]
        return f"unknown key {key!r}{nearest(key, known)}"


class DataConfig(Section):
    """Section ``data``: which images, and how clients own them.

    Args:
        name: a data set of ``fedsim list datasets``, or ``module:function``.
        dir: the folder that holds the data set's files, or that folder's parent.
        partition: None for the data set's own default.
        partition_file: the split folder's name (``split_1``) or a CSV file ``client,index``.
        num_clients: K; files, sites and users fix it, another number is then an error.
        alpha: concentration of the Dirichlet partitions.
        shards_per_client: of the partition ``shards``.
        prior: of ``dirichlet_per_client``: the classes count alike, or by their frequencies.
        order: of ``dirichlet_per_client``: clients draw in turn, or one after the other.
        min_samples: fewest training samples of a client.
        val_fraction: part of the training images held out for validation.
        test_fraction: test part of data that come without one.
        seed: of partition and splits; the same for every training seed.
        image_size: pixels; None for the data set's own size.
        augment: name of the training augmentation; None for the data set's default.
        correlation: of a site's mark with the disease, of the data set ``shortcut``; the sites are
            spread around it by 0.1.
        samples_per_client: training images of each site of ``shortcut``.
        synthetic_alpha: alpha of the data set ``synthetic``: the standard deviation of the means of
            the users' models (which changes no label).
        synthetic_beta: beta of it: the standard deviation of the means of the users' features.
        synthetic_iid: the users of ``synthetic`` do not differ.
        client_val_fraction: part of a client's own samples that it holds out for its validation.
        client_test_fraction: part of them that it holds out for its test.
        feature_shift: how the clients' images differ; client 0 has the images as they are, the last
            client the strongest shift.
        feature_strength: of the last client's shift.
        shift_test: ``mixed`` gives each image of the common test and validation parts the shift of
            a client, ``clean`` none.
    """

    prefix = "data."
    name: str = "digits"
    dir: str | None = None
    partition: str | None = None
    partition_file: str | None = None
    num_clients: int = Field(50, ge=1)
    alpha: float = Field(0.5, gt=0)
    shards_per_client: int = Field(2, ge=1)
    prior: Literal["uniform", "frequencies"] = "uniform"
    order: Literal["round_robin", "sequential"] = "round_robin"
    min_samples: int = Field(2, ge=1)
    val_fraction: float = Field(0.0, ge=0, lt=1)
    test_fraction: float = Field(0.2, gt=0, lt=1)
    seed: int = Field(0, ge=0, lt=2**32)
    image_size: int | None = Field(None, ge=1)
    augment: str | None = None
    correlation: float = Field(0.9, ge=0, le=1)
    samples_per_client: int = Field(60, ge=2)
    synthetic_alpha: float = Field(0.0, ge=0)
    synthetic_beta: float = Field(0.0, ge=0)
    synthetic_iid: bool = False
    client_val_fraction: float = Field(0.0, ge=0, lt=1)
    client_test_fraction: float = Field(0.0, ge=0, lt=1)
    feature_shift: Literal[
        "none", "blur", "noise", "contrast", "colour", "intensity", "rotation"
    ] = "none"
    feature_strength: float = Field(1.0, gt=0, le=1)
    shift_test: Literal["mixed", "clean"] = "mixed"


class ModelConfig(Section):
    """Section ``model``.

    Args:
        name: a model of ``fedsim list models`` or ``module:function``; None for the data's default.
        norm: normalisation layers.
        pretrained: start from ImageNet weights; an error where they cannot be had.
        weights: a local file of start weights.
        projection: width of a projection head (linear, ReLU, linear) between features and
            classifier; 0 for none.
    """

    prefix = "model."
    name: str | None = None
    norm: Literal["batch", "group"] = "batch"
    pretrained: bool = False
    weights: str | None = None
    projection: int = Field(0, ge=0)


class TrainConfig(Section):
    """Section ``train``: rounds, sampling and the local SGD that all methods share.

    Args:
        rounds: number of rounds.
        sample_rate: share of the clients drawn per round; m = floor(rate K), at least 1.
        local_epochs: passes over the client's data per round.
        batch_size: samples per step.
        lr: learning rate.
        lr_schedule: ``warmup_round`` is lr min(1, local_epochs round / 5), round from 0.
        momentum: of SGD; buffers are fresh in every round.
        weight_decay: L2 penalty inside the step.
        threads: torch threads per client.
        frozen_bn: train with BatchNorm in evaluation mode (the released FedLD code does).
        clip_norm: largest norm of the gradient of a step; None for any.
    """

    prefix = "train."
    rounds: int = Field(100, ge=1)
    sample_rate: float = Field(0.1, gt=0, le=1)
    local_epochs: int = Field(1, ge=1)
    batch_size: int = Field(50, ge=1)
    lr: float = Field(0.01, gt=0)
    lr_schedule: Literal["constant", "cosine", "warmup_round"] = "constant"
    momentum: float = Field(0.5, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0)
    threads: int = Field(1, ge=1)
    frozen_bn: bool = False
    clip_norm: float | None = Field(None, gt=0)


class EvaluationConfig(Section):
    """Section ``evaluation``.

    Args:
        every: evaluate every so many rounds, and after the last one.
        batch_size: images per forward pass.
        personal: whose models count for personalised methods (fedbn, fedpac): those of all
            clients, or of the cohort before or after local training.
        decompose_every: split the global loss into its three terms every so many rounds and after
            the last one; 0 for never.
        decompose_split: the data for it: the clients' own ``train``, ``val`` or ``test`` parts, or
            ``common_test``, where the scope has no effect.
        decompose_scope: whose data: the ``cohort``'s, or those of the whole ``population``.
        decompose_max_samples: images of a client at most, drawn once for the run; None for all.
        loss_matrix: also write every model's loss on every client's data.
        clients_every: evaluate on each client's own data every so many rounds and after the last
            one; 0 for never.
        cosines: also write the cosine of each pair of updates and the spectrum of their Gram
            matrix.
        target_accuracy: of the test part; summary.csv says when it was first reached. None for
            none.
    """

    prefix = "evaluation."
    every: int = Field(1, ge=1)
    batch_size: int = Field(256, ge=1)
    personal: Literal["all_clients", "cohort_before", "cohort_after"] = "all_clients"
    decompose_every: int = Field(0, ge=0)
    decompose_split: Literal["train", "val", "test", "common_test"] = "train"
    decompose_scope: Literal["cohort", "population"] = "cohort"
    decompose_max_samples: int | None = Field(None, ge=1)
    loss_matrix: bool = False
    clients_every: int = Field(0, ge=0)
    cosines: bool = False
    target_accuracy: float | None = Field(None, gt=0, le=1)

    @property
    def own_split(self) -> Literal["train", "val", "test"]:
        """The part of the clients' own data that a decomposition looks at."""
        return "train" if self.decompose_split == "common_test" else self.decompose_split


class ClockConfig(Section):
    """Section ``clock``: how fast clients are and whether they answer, simulated; nothing sleeps.

    What differs between clients is a number or a distribution: ``choice(a, b, ...)``,
    ``uniform(low, high)`` or ``lognormal(median, sigma)``.

    Args:
        samples_per_second: that a client trains on; drawn once for each client, as the next three.
        download_mb_s: MB (10^6 bytes) per second to a client.
        upload_mb_s: MB per second from a client.
        availability: chance that a client of the cohort answers in a round.
        trace: CSV file with ``client_id`` and some of these four, in place of the keys; a column
            ``round`` (from 1) lets them change, the newest row counts.
        work: share of its local steps that a client does, at least one; drawn for each client in
            each round.
        deadline: seconds of a round; None for any.
        late: a client that would be later is left out (``drop``), or does the steps that fit
            (``partial``).
    """

    prefix = "clock."
    samples_per_second: float | str | None = None
    download_mb_s: float | str | None = None
    upload_mb_s: float | str | None = None
    availability: float | str | None = None
    trace: str | None = None
    work: float | str = 1.0
    deadline: float | None = Field(None, gt=0)
    late: Literal["drop", "partial"] = "drop"

    @field_validator(*BOUNDS, mode="plain")
    @classmethod
    def _law(cls, value: object, info: ValidationInfo) -> float | str | None:
        if value is None and info.field_name != "work":
            return None
        distributions.parse_within(value, *BOUNDS[info.field_name or ""])
        return distributions.written(value)

    @model_validator(mode="after")
    def _late_without_a_deadline(self) -> ClockConfig:
        if self.late != "drop" and self.deadline is None:
            raise InvalidSetting("clock.late", f"{self.late!r} given; give clock.deadline too")
        return self


class EngineConfig(Section):
    """Section ``engine``: where the work is done.

    Results depend on the kind of device, on ``fast`` and on ``on_client_failure``, on nothing else.

    Args:
        kind: ``ray``, or ``serial`` for one process.
        actors: ``auto``, ``per-client`` or a number.
        gpus_per_client: a fraction up to 1 or a whole number; None lets the engine decide.
        cpus_per_client: likewise; the default is one core per client.
        address: of an existing Ray cluster.
        working_dir: a folder with your own modules, shipped to the workers.
        memory_per_client: GiB of memory that an actor needs; None for an estimate.
        client_timeout: seconds for one client's work in a round, after which it counts as lost;
            None for the larger of 60 s and ten times the median of the run so far.
        max_retries: how often a client's lost work is done again before it counts as failed.
        on_client_failure: whether a client that fails or diverges ends the run or is left out of
            its round.
        checkpoint_every: write a checkpoint after so many rounds, as fast as the disk takes them; 0
            for none but when the run is interrupted or fails.
        keep_checkpoints: how many of them stay.
        state_memory: GiB of client states that the driver keeps in memory; the rest is on disk.
        aggregation_shards: ranges of parameters that the updates are cut into, to be summed up on
            several nodes; ``auto`` is one per node, 1 leaves it to the driver.
        data_from: how the data reach the actors: through Ray's ``object_store``, or each ``node``
            reads them from ``data.dir`` itself.
        allow_mixed_devices: accept a cluster with several types of accelerator.
        fast: on a GPU bfloat16 forward passes, TF32, channels last, autotuned kernels; bits may
            differ between runs.
    """

    prefix = "engine."
    kind: Literal["ray", "serial"] = "ray"
    actors: Literal["auto", "per-client"] | int = "auto"
    gpus_per_client: float | None = Field(None, ge=0)
    cpus_per_client: float = Field(1.0, gt=0)
    address: str | None = None
    working_dir: str | None = None
    memory_per_client: float | None = Field(None, gt=0)
    client_timeout: float | None = Field(None, gt=0)
    max_retries: int = Field(3, ge=0)
    on_client_failure: Literal["raise", "drop"] = "raise"
    checkpoint_every: int = Field(1, ge=0)
    keep_checkpoints: int = Field(2, ge=1)
    state_memory: float = Field(1.0, ge=0)
    aggregation_shards: Literal["auto"] | int = 1
    data_from: Literal["object_store", "node"] = "object_store"
    allow_mixed_devices: bool = False
    fast: bool = False

    @field_validator("actors", mode="plain")
    @classmethod
    def _actors(cls, value: object) -> str | int:
        text = str(value)
        number = int(text) if text.isascii() and text.isdigit() else 0
        if text not in ("auto", "per-client") and number < 1:
            raise ValueError("must be auto, per-client or a whole number of at least 1")
        return number or text

    @field_validator("aggregation_shards", mode="plain")
    @classmethod
    def _shards(cls, value: object) -> str | int:
        text = str(value)
        number = int(text) if text.isascii() and text.isdigit() else 0
        if text != "auto" and number < 1:
            raise ValueError("must be auto or a whole number of at least 1")
        return number or text

    @field_validator("gpus_per_client", "cpus_per_client")
    @classmethod
    def _whole_above_one(cls, value: float | None) -> float | None:
        if value is not None and value > 1 and not value.is_integer():
            raise ValueError(
                f"must be at most 1 or a whole number (nearest: {math.floor(value)} or "
                f"{math.ceil(value)})"
            )
        return value
