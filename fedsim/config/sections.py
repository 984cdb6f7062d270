"""The keys of a configuration: names, types, ranges, defaults and descriptions.

The text under a key is its only description: the help of the command line and the reports of
``analysis`` show it. This file is read for ``--help``, so that it may import nothing heavy.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo

from fedsim.config.asynchrony import AsyncConfig as AsyncConfig
from fedsim.config.attack import AttackConfig as AttackConfig
from fedsim.config.compress import CompressConfig as CompressConfig
from fedsim.config.dp import DpConfig as DpConfig
from fedsim.config.engine import EngineConfig as EngineConfig
from fedsim.config.section import Common, Key, Neutral, Placement, Section
from fedsim.core import settings
from fedsim.core.normalization import OF_DATASET, Normalization
from fedsim.systems import distributions
from fedsim.systems.clock import BOUNDS

OWN_ROUNDS = ("train.schedule=synchronous", "clock.mode=sync")
Decomposed = partial(Neutral, only_with=("evaluation.decompose_every",))


class DataConfig(Section):
    """Section ``data``: which images, and how clients own them."""

    prefix = "data."
    name: Annotated[str, Common("-d --dataset", names="datasets", column="dataset")] = "digits"
    """Data set: a name of `fedsim list datasets`, csv:FILE or csv:DIR, hf:DIR
    with a saved Hugging Face data set, or a function of your own, module:function or
    FILE.py:function."""
    dir: Annotated[str | None, Common("--data-dir", "DIR", path="dir", column=None)] = None
    """Folder that holds the data set's files, or that folder's parent; of csv the file, a folder of
    files, or FILE,FILE."""
    partition: Annotated[str | None, Common("--partition", names="partitions")] = None
    """How samples are split over clients: a name of `fedsim list partitions`, module:function or
    FILE.py:function; unset: the data set's own default."""
    partition_file: Annotated[str | None, Key(path="file")] = None
    """Folder with the split (split_1), or a CSV file: a run's split.csv, or client,index."""
    group: Annotated[Literal["none", "patient"] | None, Key("--group", "none|patient")] = None
    """patient: all samples of a patient go to one client and to one part; unset: patient where
    patients are known, but none with the partition files."""
    num_clients: Annotated[settings.Clients, Common("--clients", "K", column="num_clients")] = 50
    """Number of clients K; where files, sites or users fix it, another number is an error."""
    alpha: Annotated[settings.Alpha, Common("--alpha", "A", column="alpha", shape=False)] = 0.5
    """Concentration of the Dirichlet distribution of labels over clients; smaller is more
    heterogeneous."""
    shards_per_client: settings.Shards = 2
    """Shards that each client gets in the partition shards."""
    prior: Annotated[settings.Prior, Key(shape=False)] = "uniform"
    """Class prior in the partition dirichlet_per_client: uniform, or the class frequencies."""
    order: Annotated[settings.Order, Key(shape=False)] = "round_robin"
    """Order in which clients draw in the partition dirichlet_per_client: in turn, or one after
    another."""
    min_samples: settings.Count = 2
    """Minimum number of training samples of a client."""
    val_fraction: Annotated[settings.Share, Key("--val-fraction", "F")] = 0.0
    """Share of the training data held out as the common validation part."""
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of the data held out as the common test part, where the data set has none."""
    seed: Annotated[int, Field(ge=0, lt=2**32), Key("--data-seed", shape=False)] = 0
    """Seed of partition and splits; the same for every training seed."""
    image_size: int | None = Field(default=None, ge=1, le=8192)
    """Height and width of the images in pixels; unset: the data set's own size, or that of
    data.normalization."""
    normalization: str | None = None
    """Mean and standard deviation of the images: dataset (its own), or mean/std[/pixels] with a
    number per channel; unset: those (and the size) that a network of timm or torchvision was
    pretrained with where model.pretrained is true, else dataset."""
    columns: str | None = None
    """Names of the columns that hold target, site, patient or split in a table (or time and event,
    unset: none), or image, text, label, site, user or patient in a saved Hugging Face data set, as
    in label=fine_label,site=hospital, a pair with a comma in quotes; also one by one, as
    data.columns.label; unset: these names."""
    augment: str | None = None
    """Augmentation of training images; unset: the data set's default."""
    client_val_fraction: settings.Share = 0.0
    """Share of each client's samples held out as its own validation part."""
    client_test_fraction: settings.Share = 0.0
    """Share of each client's samples held out as its own test part."""
    heldout_clients: float | str = 0.0
    """Clients that never train: a number, or a share below 1, that data.seed draws, or names of
    sites or clients, as in [va, lund]; the final model is scored on them."""
    feature_shift: Annotated[
        Literal["none", "blur", "noise", "contrast", "colour", "intensity", "rotation"],
        Key("--feature-shift", "KIND"),
    ] = "none"
    """How clients' images differ; client 0 has the original images, the last client the strongest
    shift."""
    feature_strength: Annotated[settings.Fraction, Key("--feature-strength", "S")] = 1.0
    """Strength of the last client's feature shift, up to 1; client 0 has none."""
    shift_test: Literal["mixed", "clean"] = "mixed"
    """Feature shift of the common test and validation parts: each image that of some client, or
    none."""

    @model_validator(mode="before")
    @classmethod
    def _folder_in_name(cls, values: Any) -> Any:
        return settings.with_folder(values) if isinstance(values, Mapping) else values

    @field_validator("columns", mode="plain")
    @classmethod
    def _columns(cls, value: object) -> str | None:
        names = {} if value is None else settings.column_names(value)
        return settings.in_line(f"{role}={name}" for role, name in names.items()) or None

    @property
    def column_names(self) -> dict[str, str]:
        """``columns`` by what they hold."""
        return settings.column_names(self.columns or "")

    @field_validator("normalization")
    @classmethod
    def _mean_and_std(cls, value: str | None) -> str | None:
        return value if value in (None, OF_DATASET) else str(Normalization.parse(value))

    @field_validator("heldout_clients", mode="plain")
    @classmethod
    def _number_or_names(cls, value: object) -> float | str:
        return settings.clients_or_number(value)


class ModelConfig(Section):
    """Section ``model``."""

    prefix = "model."
    name: Annotated[str | None, Common("--model", names="models", column="model")] = None
    """Network: a name of `fedsim list models`, timm:NAME, torchvision:NAME, module:function or
    FILE.py:function; unset: the data set's default."""
    norm: Literal["batch", "group"] = "batch"
    """Normalisation layers."""
    init: Literal["fedsim", "torch"] = "fedsim"
    """How the seed draws random start weights: from a stream of its own, or (torch) as
    torch.manual_seed(seed) before the network is built."""
    pretrained: Annotated[bool, Key("--pretrained/--no-pretrained")] = False
    """Start from published weights (ImageNet's, or those of timm and torchvision); an error if they
    cannot be had."""
    weights: Annotated[str | None, Key("--weights", "FILE|RUN", path="file")] = None
    """Start weights: a file, or the directory of a finished run; a head of another shape, or for
    other classes, is drawn anew."""
    projection: int = Field(default=0, ge=0, le=2**20)
    """Width of a projection head (linear, ReLU, linear) between features and classifier; 0:
    none."""
    trainable: str = "all"
    """Tensors that are trained and sent, the rest is frozen: all, head, norm (normalisation layers
    and head), lora(rank) or lora(rank, alpha) (adapters and head), or patterns of tensor names,
    separated by commas."""


class TrainConfig(Section):
    """Section ``train``: rounds, sampling and the local training that all methods share."""

    prefix = "train."
    rounds: Annotated[settings.Count, Common("--rounds", column="rounds", shape=False)] = 100
    """Number of communication rounds."""
    patience: Annotated[settings.CountOrNone, Key("--patience", shape=False)] = None
    """Stop after N evaluations in a row without a better validation accuracy; unset: after
    train.rounds."""
    sample_rate: Annotated[
        settings.Fraction, Common("--sample-rate", "RATE", column="sample_rate")
    ] = 0.1
    """Share of the clients drawn in each round: m = max(1, floor(rate * K))."""
    cohort: Annotated[
        Literal["fixed", "poisson"],
        Key(only_with=("train.selection=uniform", *OWN_ROUNDS), column_with="cohort"),
    ] = "fixed"
    """Size of the cohort: m clients (fixed), or each client by itself with probability m / K
    (poisson), so that m are expected and there may be none."""
    secure_aggregation: Annotated[
        bool, Key("--secure-aggregation/--no-secure-aggregation", column_with="secure_aggregation")
    ] = False
    """Refuse what secure aggregation excludes: server rules that need more than the sum of the
    clients' messages; the sum is the same, so that no result changes."""
    local_epochs: Annotated[settings.Count, Common("--local-epochs --epochs")] = 1
    """Passes over a client's data in each round."""
    local_steps: settings.CountOrNone = None
    """Steps of each client in each round, in place of local_epochs; batches carry on over rounds,
    and a client's data are shuffled again when they are used up."""
    shuffle: Literal["fedsim", "dataloader"] = "fedsim"
    """Order of the batches with local_steps: from a stream for each client, or (dataloader) that of
    PyTorch's DataLoaders in one process that trains all clients in turn."""
    batch_size: Annotated[settings.Count, Common("--batch-size")] = 50
    """Samples per training step."""
    optimizer: Annotated[Literal["sgd", "adamw"], Key("--optimizer")] = "sgd"
    """Optimiser of the clients; adamw: betas 0.9 and 0.999, eps 1e-8. Its state starts empty in
    every round."""
    lr: Annotated[settings.Positive, Common("--lr", shape=False)] = 0.01
    """Learning rate of the clients' optimiser."""
    lr_head: Annotated[float | None, Field(gt=0), Key(shape=False)] = None
    """Learning rate of the head's tensors, scheduled as train.lr is; unset: train.lr."""
    schedule: Annotated[str, Key(only_with=("clock.mode=sync",))] = "synchronous"
    """Who works in a round, on which version of the model: synchronous (a cohort drawn uniformly,
    on the newest), or module:function, which returns a schedule."""
    selection: Annotated[
        Literal["uniform", "size", "power_of_choice", "oort", "round_robin", "fixed"],
        Key(only_with=OWN_ROUNDS, column_with="selection", names="selections"),
    ] = "uniform"
    """The clients of a synchronous round: drawn uniformly or by training samples (size), those with
    the highest losses of some candidates (power_of_choice), drawn by losses and speed (oort), in
    turn (round_robin), or those of train.clients (fixed); FILE.py:NAME of your own is a
    train.schedule."""
    clients: Annotated[
        str | None, Key(path="file", only_with=("train.selection=fixed",), column_with="clients")
    ] = None
    """Clients of train.selection=fixed: ids, as in 0,3,7, for every round, or a CSV file with the
    columns round (from 1) and client_id; their number is the cohort's size."""
    candidates: Annotated[
        int | None,
        Field(ge=1, le=10**7),
        Key(only_with=("train.selection=power_of_choice",), column_with="selection"),
    ] = None
    """Candidates d of train.selection=power_of_choice, asked for their losses; unset: 2 m."""
    lr_schedule: Annotated[
        Literal["constant", "cosine", "warmup_round"], Key("--lr-schedule", "NAME", shape=False)
    ] = "constant"
    """Learning rate over the rounds; warmup_round: lr * min(1, local_epochs * round / 5), round
    from 0."""
    momentum: Annotated[settings.Decay, Key("--momentum", shape=False)] = 0.5
    """Momentum of the clients' SGD (AdamW has none); its buffers start empty in every round."""
    weight_decay: Annotated[settings.NonNegative, Key("--weight-decay", shape=False)] = 5e-4
    """Weight decay of the clients' optimiser: an L2 penalty in SGD, decoupled in AdamW."""
    threads: Annotated[int, Field(ge=1, le=4096), Neutral()] = 1
    """Torch threads per client."""
    frozen_bn: bool = False
    """Train with BatchNorm in evaluation mode, as the released FedLD code does."""
    clip_norm: Annotated[float | None, Field(gt=0), Key(shape=False)] = None
    """Maximum norm of a step's gradient; unset: no clipping."""

    @model_validator(mode="before")
    @classmethod
    def _own_selection(cls, values: Any) -> Any:
        """A selection of the user's own is a schedule."""
        name = values.get("selection") if isinstance(values, Mapping) else None
        if ":" not in str(name):
            return values
        if values.get("schedule") not in (None, "synchronous", name):
            reason = f"{name} given beside train.schedule={values['schedule']}"
            raise settings.InvalidSetting("train.selection", reason)
        return {**values, "schedule": name, "selection": "uniform"}

    @field_validator("clients", mode="plain")
    @classmethod
    def _ids_or_file(cls, value: object) -> str | None:
        if value is None or str(value).endswith(".csv"):
            return None if value is None else str(value)
        return settings.client_ids(value, ", or a file FILE.csv")


class EvaluationConfig(Section):
    """Section ``evaluation``: when and how models are tested."""

    prefix = "evaluation."
    every: Annotated[settings.Count, Key("--evaluate-every")] = 1
    """Evaluate every N rounds, and after the last one."""
    batch_size: Annotated[settings.Count, Neutral()] = 256
    """Samples per forward pass of the evaluation."""
    personal: Literal["all_clients", "cohort_before", "cohort_after"] = "all_clients"
    """Whose models are evaluated for personalised methods: those of all clients, or of the cohort
    before or after local training."""
    decompose_every: Annotated[
        settings.CountOrZero, Neutral("--decompose-every", "K", common=True)
    ] = 0
    """Split the loss into local, shift and aggregation loss every K rounds and after the last one;
    0: never."""
    decompose_split: Annotated[
        Literal["train", "val", "test", "common_test"],
        Decomposed("--decompose-split"),
    ] = "train"
    """Data of the decomposition: the clients' own parts, or the common test part (the scope then
    has no effect)."""
    decompose_scope: Annotated[
        Literal["cohort", "population"],
        Decomposed("--decompose-scope"),
    ] = "cohort"
    """Whose data the decomposition uses: those of the round's clients, or of all clients."""
    decompose_max_samples: Annotated[
        settings.CountOrNone, Decomposed("--decompose-max-samples")
    ] = None
    """Maximum number of samples of each client in the decomposition, drawn once for the run; unset:
    all."""
    loss_matrix: Annotated[bool, Decomposed("--loss-matrix/--no-loss-matrix")] = False
    """Also write every model's loss on every client's data."""
    clients_every: Annotated[settings.CountOrZero, Neutral("--evaluate-clients-every", "K")] = 0
    """Evaluate on each client's own data every K rounds and after the last one; 0: never."""
    cosines: Annotated[bool, Neutral("--cosines/--no-cosines")] = False
    """Write the cosines between the updates, and the spectrum of their Gram matrix, in the rounds
    that evaluation.conflicts names."""
    conflicts: Literal["always", "never"] | int = "always"
    """Rounds whose conflict_ratio, gradient_diversity and top_axis_share, by inner products of all
    pairs of updates, are computed: always, never, or every K rounds and after the last one."""
    target_accuracy: Annotated[
        float | None,
        Field(gt=0, le=1),
        Neutral("--target-accuracy", "A", column="target_accuracy"),
    ] = None
    """Target test accuracy, above 0 and up to 1; summary.csv says when it was first reached."""
    measures: Annotated[settings.Names | None, Neutral()] = None
    """Further measures of the task, as in auc,sensitivity@0.9: columns of rounds.csv, and by client
    of evaluations.csv and final_clients.csv."""
    finetune_epochs: settings.CountOrZero = 0
    """After the last round each client fine-tunes a copy of the final model for N epochs, scored on
    its own test part before and after; 0: none."""

    @field_validator("conflicts", mode="plain")
    @classmethod
    def _rounds(cls, value: object) -> str | int:
        return settings.word_or_number(value, ("always", "never"))

    @property
    def conflicts_every(self) -> int:
        """Rounds between two that ``conflicts`` asks for; 0: never."""
        if isinstance(self.conflicts, int):
            return self.conflicts
        return 1 if self.conflicts == "always" else 0

    @property
    def own_split(self) -> Literal["train", "val", "test"]:
        """The part of the clients' own data that a decomposition looks at."""
        return "train" if self.decompose_split == "common_test" else self.decompose_split


class ClockConfig(Section):
    """Section ``clock``: how fast clients are and whether they answer, simulated; nothing sleeps.

    What differs between clients is a number or a distribution: ``choice(a, b, ...)``,
    ``uniform(low, high)`` or ``lognormal(median, sigma)``.
    """

    prefix = "clock."
    mode: Annotated[Literal["sync", "async"], Key(column_with="mode")] = "sync"
    """sync: a round lasts until its slowest client or the deadline; async: it is one step of the
    server, for the updates that have arrived by then, see section async."""
    samples_per_second: float | str | None = None
    """Samples per second that a client trains on; drawn once for each client, as are the next
    three."""
    download_mb_s: float | str | None = None
    """MB (10^6 bytes) per second from the server to a client."""
    upload_mb_s: float | str | None = None
    """MB (10^6 bytes) per second from a client to the server."""
    availability: float | str | None = None
    """Probability that a client of the cohort answers in a round."""
    trace: Annotated[str | None, Key(path="file")] = None
    """CSV file with client_id and some of the four keys above, in their place; with a column round
    (from 1) they change over time, the newest row counts."""
    work: float | str = 1.0
    """Share of its local steps that a client does, at least one; drawn for each client in each
    round."""
    deadline: Annotated[float | None, Field(gt=0), Key(only_with=("clock.mode=sync",))] = None
    """Seconds until the server stops waiting in a round; unset: no deadline."""
    late: Annotated[Literal["drop", "partial"], Key(only_with=("clock.deadline",))] = "drop"
    """A client that would miss the deadline is left out, or does the steps that fit."""

    @field_validator(*BOUNDS, mode="plain")
    @classmethod
    def _law(cls, value: object, info: ValidationInfo) -> float | str | None:
        if value is None and info.field_name != "work":
            return None
        law = distributions.parse_within(value, *BOUNDS[info.field_name or ""])
        if info.field_name == "availability" and law.bounds[1] == 0:
            raise ValueError("must be above 0 for some clients: none of them would ever answer")
        return distributions.normalised(value)


class RunSettings(Section):
    """All keys of a run; :class:`fedsim.config.run.RunConfig` checks that they go together."""

    algorithm: Annotated[str, Common("-a --algorithm", names="algorithms", column="algorithm")] = (
        "fedld"
    )
    """Method: a name of `fedsim list algorithms`, module:function or FILE.py:function."""
    server: Annotated[str | None, Common("--server", "NAME[,NAME]", names="algorithms")] = None
    """Server rule in place of the algorithm's own: a method whose rule it is, or FILE.py:function;
    of several, as in fedgh,fedadam, the reduction and server optimisers of the first, then the
    server optimisers of the others."""
    margin: Annotated[str | None, Common("--margin", "FORM")] = None
    """Form of margin control: none (plain cross-entropy), marg_log, softmax_frob, spectral,
    logit_hinge, sigma_damp, sigma_damp_kappa or sigma_stitch; unset: the method's own."""
    margin_weight: Annotated[float | None, Field(ge=0)] = None
    """Weight lambda of margin control; unset: the method's own."""
    margin_threshold: Annotated[float | None, Field(gt=0)] = None
    """Threshold (tau, T or u) of margin control, in forms that have one; unset: the form's own."""
    task: Annotated[str | None, Common("--task", names="tasks")] = None
    """What is learnt: a name of `fedsim list tasks`, module:function or FILE.py:function; unset:
    the data set's own."""
    label: Annotated[str | None, Field(min_length=1, max_length=200), Placement("--label")] = None
    """Name of the run in tables and figures; unset: that of its row in a grid, else the method."""
    seed: Annotated[int, Field(ge=0, lt=2**64), Common("--seed")] = 0
    """Seed of training: start weights, cohorts and the order of batches."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    clock: ClockConfig = ClockConfig()
    __annotations__["async"] = AsyncConfig  # a keyword; in Python its name is asynchrony
    vars()["async"] = AsyncConfig()
    attack: AttackConfig = AttackConfig()
    compress: CompressConfig = CompressConfig()
    dp: DpConfig = DpConfig()
    engine: EngineConfig = EngineConfig()
    hyperparameters: Mapping[str, Mapping[str, settings.Scalar]] = Field(default_factory=dict)
    """By method or data set, filled from the sections of their names."""

    @property
    def asynchrony(self) -> AsyncConfig:
        """Section ``async``."""
        section: AsyncConfig = getattr(self, "async")
        return section


SECTIONS = tuple(k for k, f in RunSettings.model_fields.items() if isinstance(f.default, Section))
"""The names of the sections."""


@functools.cache
def fields() -> Mapping[str, FieldInfo]:
    """The field of each dotted key, but for the options of methods and data sets."""
    by_key: dict[str, FieldInfo] = {}
    for name, field in RunSettings.model_fields.items():
        if isinstance(field.default, Section):
            by_key |= {f"{name}.{k}": f for k, f in type(field.default).model_fields.items()}
        elif name != "hyperparameters":
            by_key[name] = field
    return by_key
