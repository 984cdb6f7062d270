"""The data types that every part of fedsim agrees on. Computes nothing.

Dimension letters: K clients, m clients in the cohort of a round, P trained parameters,
B float statistics (running means and variances), D = P + B, N images, C classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedsim.core.task import Task

Array = NDArray[Any]
GIB = 2**30
"""Bytes of a gibibyte."""
Vector = NDArray[np.float32]
"""(D,): the P parameters in ``named_parameters()`` order, then the B float buffers."""
Vectors = Mapping[str, Array]
"""Named arrays: what a rule keeps, sends or uploads beside the vector itself."""
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where one tensor of the model lies in a :data:`Vector`.

    ``batchnorm`` and ``head`` are decided by module, never by name: a BatchNorm module's tensors,
    and those of the model's last linear layer.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    role: Literal["param", "stat"] = "param"
    batchnorm: bool = False
    head: bool = False

    @property
    def where(self) -> slice:
        """The slot's coordinates."""
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Layout:
    """The slots of a model in vector order: parameters first, then statistics."""

    slots: tuple[Slot, ...]

    @property
    def num_params(self) -> int:
        """P, the number of trained parameters."""
        return max((s.stop for s in self.slots if s.role == "param"), default=0)

    @property
    def size(self) -> int:
        """D, the length of a vector."""
        return self.slots[-1].stop if self.slots else 0


@dataclass(frozen=True, kw_only=True)
class RoundContext:
    """What every part may know of a round. ``round`` counts from 0; the CSV files say one more.

    ``num_clients`` may be drawn, ``num_held_out`` more never train.
    """

    round: int
    num_rounds: int
    num_clients: int
    lr: float
    seed: int
    num_held_out: int = 0


Kind = Literal["train", "probe", "finetune", "personalise", "loss", "root"]
"""A kind of client work: local training, the pass before it that some methods need, fine-tuning of
the final model, what some methods make of the model before it is scored, the loss of the received
model on the training samples, or the server's own training on validation samples."""


BESIDE_ROUNDS = {"finetune": "fine-tuning", "personalise": "a client's own model"}
"""The work that belongs to no round, as messages name it."""


@dataclass(frozen=True, kw_only=True)
class ClientTask:
    """A client's work as a value: with its base model and its client's state all that it needs.

    The client's random numbers are keyed by ``stream``, or the round, beside the client; it stops
    after ``max_steps``, and sees the samples of ``owners``, pooled, or its own.
    """

    client: int
    ctx: RoundContext
    work: Kind = "train"
    stream: int | None = None
    max_steps: int | None = None
    owners: tuple[int, ...] = ()

    @property
    def version(self) -> int:
        """The model that it starts from: the global one after so many rounds."""
        return self.ctx.round

    @property
    def key(self) -> int:
        """Key of its random numbers beside the client."""
        return self.ctx.round if self.stream is None else self.stream

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients whose samples it sees."""
        return self.owners or (self.client,)

    @property
    def title(self) -> str:
        """When it is done, in messages: ``round 3``, counted from 1, or what it is for."""
        if self.work in BESIDE_ROUNDS:
            return BESIDE_ROUNDS[self.work]
        purpose = ", the server's own training" if self.work == "root" else ""
        return f"round {self.ctx.round + 1}{purpose}"


Sent = tuple[Vector, Vectors]
"""A version of the global model as clients receive it: vector (D,), and the downlink with it."""


NO_DELTA = np.empty(0, np.float32)
"""One object for all updates without a delta: pickling sends it once."""


@dataclass(frozen=True, kw_only=True)
class ClientUpdate:
    """The result of a client's round: one value from local training to the server.

    Args:
        client_id: 0 to K - 1.
        num_samples: training samples of the client.
        num_steps: SGD steps; 0 in a probe.
        delta: (D,) float32, local - global; empty where there is none, or it is held elsewhere.
        train_loss: plain cross-entropy, mean over the samples seen; NaN without a step.
        extras: what the method sends beside the delta.
        state: what the client keeps for its next participation.
        diverged: what is NaN or infinite in all this, None if everything is finite.
        held: where an executor left the delta on its nodes.
        version: of the model that it started from; ``staleness``: steps of the server since then.
        wire_bytes: of the delta in a message; None where it is sent as it is.
    """

    client_id: int
    num_samples: int
    num_steps: int
    delta: Array = field(default_factory=lambda: NO_DELTA)
    train_loss: float = float("nan")
    extras: Vectors = field(default_factory=dict)
    state: Vectors = field(default_factory=dict)
    diverged: str | None = None
    held: object = None
    version: int = 0
    staleness: int = 0
    wire_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """How stored uint8 images become a model's input: ``size`` is height and width in pixels, mean
    and std are per channel, of values in 0..1; data, so that it travels to the actors.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str = "none"


Inputs = Literal["images", "features", "tokens"]
"""What a sample is to a model."""


@runtime_checkable
class Preparation(Protocol):
    """A ``prepare`` of :class:`LabelledSamples` that a run keeps for new samples."""

    def __call__(self, training: I64, /) -> Array:
        """All samples, by those of them that are for training (n,)."""

    def record(self, training: I64, /) -> Mapping[str, Any]:
        """What new samples are prepared by then, as JSON."""


@dataclass(frozen=True, kw_only=True)
class LabelledSamples:
    """Decoded samples, and what is known of each of them.

    Args:
        x: images (N, channels, H, W) uint8; or features (N, d) float32, which the model sees as
            they are; or token ids (N, T) int32 in 0..vocabulary-1.
        y: the targets, as the task has them: (N,) int64 class indices in 0..num_classes-1; or
            (N, T), one for each token, -1 where a token does not count (at least one counts in
            every sample); of other tasks see :class:`~fedsim.core.task.Task`.
        class_names: one per class, or of other tasks one per output of the model.
        site: (N,) int64 index into ``site_names``, or None where samples have no site.
        site_names: names of the sites.
        clients: training indices per client where the files bring client lists, by client name.
        groups: indices of test samples by the name of a group, whose accuracies are also reported.
        vocabulary: the number of different tokens, 0 for images and features.
        words: what the first tokens stand for, in the order of their numbers; empty where that is
            not known. The token after them, where there is one, stands for every other word.
        never_right: classes that count as wrong wherever they are predicted (padding, unknown).
        sites_are_users: the sites are people: their partition is called ``natural``.
        patient: (N,) int64 index into ``patient_names`` of whose a sample is, or None where that is
            not known. Patients at different sites are different ones, whatever their names.
        patient_names: names of the patients.
        files: the file of each sample, relative to the folder of the data, where it has one.
        remarks: what somebody should look at before training, a line each.
        prepare: gives ``x`` where it depends on which samples (n,) int64 are for training, as
            scaled features do; None: it does not. A :class:`Preparation` is kept with a run.
        task: what is learnt; None: a class for each sample, or for each token.
    """

    x: Array
    y: I64
    class_names: tuple[str, ...]
    site: I64 | None = None
    site_names: tuple[str, ...] = ()
    clients: Mapping[str, I64] | None = None
    groups: Mapping[str, I64] = field(default_factory=dict)
    vocabulary: int = 0
    never_right: tuple[int, ...] = ()
    sites_are_users: bool = False
    patient: I64 | None = None
    patient_names: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    prepare: Callable[[I64], Array] | None = field(default=None, compare=False)
    task: "Task | None" = None

    @property
    def per_token(self) -> bool:
        """Whether every token has a label of its own."""
        return self.y.ndim == 2 if self.task is None else self.task.output == "token"

    @property
    def strata(self) -> I64 | None:
        """(N,) the class by which samples are dealt and split; None where the task has none."""
        if self.task is not None:
            return self.task.stratum(self.y)
        return None if self.per_token else self.y


@dataclass(frozen=True, kw_only=True)
class Dataset(LabelledSamples):
    """Samples of all parts and how they are read.

    Args:
        name: the data set's name.
        train: indices into x of the training part; ``val``, which may be empty, and ``test``: of
            the common validation and test part.
        pipeline: normalisation and augmentation of images; None for features and tokens.
        own_test: of samples that only their sites are tested on, apart from all other parts; where
            there are none, sites own what is theirs of ``test``.
    """

    name: str
    train: I64
    val: I64
    test: I64
    pipeline: Pipeline | None
    own_test: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def with_parts(self, *, train: I64, val: I64, test: I64, own_test: I64) -> Self:
        """Other parts in place of its own, with the samples that follow from them."""
        x = self.x
        if self.prepare is not None and not np.array_equal(train, self.train):
            x = self.prepare(train)
        return replace(self, x=x, train=train, val=val, test=test, own_test=own_test)

    @property
    def num_classes(self) -> int:
        """C, the number of classes, or of a model's outputs for other tasks."""
        return len(self.class_names)

    @property
    def inputs(self) -> Inputs:
        """What its samples are."""
        if self.vocabulary:
            return "tokens"
        return "features" if self.pipeline is None else "images"


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Which samples each client owns: K index arrays into ``Dataset.x`` per part.

    ``names``: of each client's site, file or user, if any; ``val`` and ``test`` are empty where
    clients have no such parts of their own. The clients ``held_out``, ascending, never train.
    """

    train: tuple[I64, ...]
    names: tuple[str, ...] = ()
    val: tuple[I64, ...] = ()
    test: tuple[I64, ...] = ()
    held_out: tuple[int, ...] = ()

    @property
    def num_clients(self) -> int:
        """K, the number of clients."""
        return len(self.train)

    @property
    def participants(self) -> tuple[int, ...]:
        """The clients that are not held out, ascending."""
        out = set(self.held_out)
        return tuple(c for c in range(self.num_clients) if c not in out)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as one array per part: one for each of 100,000 clients takes seconds."""
        parts = map(_joined, (self.train, self.val, self.test))
        return _partition, (self.names, self.held_out, *parts)


def _joined(part: tuple[I64, ...]) -> tuple[I64, list[int]]:
    """All indices of a part, and how many each client has."""
    return np.concatenate(part or [np.empty(0, np.int64)]), list(map(len, part))


def _partition(
    names: tuple[str, ...], held_out: tuple[int, ...], *joined: tuple[I64, list[int]]
) -> Partition:
    """The inverse of :func:`_joined` for the parts train, val and test."""
    parts = [
        tuple(index[start:stop] for start, stop in pairwise(accumulate(sizes, initial=0)))
        for index, sizes in joined
    ]
    return Partition(train=parts[0], names=names, val=parts[1], test=parts[2], held_out=held_out)


@dataclass(frozen=True)
class Owned:
    """The samples of the ``owners``, one client after the other, to evaluate models on: of the part
    ``split``, ``most`` of a client, drawn once for a run.
    """

    split: Literal["train", "val", "test"]
    owners: tuple[int, ...]
    most: int | None = None


@dataclass(frozen=True)
class Triggered:
    """The samples of the common test part whose class, ``source`` or any, an attack wants to be
    ``target``; ``pixels`` is the side of the square that triggers it, 0 for none.
    """

    target: int
    source: int | None = None
    pixels: int = 0

    def concerns(self, y: I64) -> NDArray[np.bool_]:
        """Which of some labels are those of such samples."""
        return y != self.target if self.source is None else y == self.source


Part = str | Owned | Triggered
"""``"val"`` or ``"test"`` for a common part, what clients own, or what an attack is about."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model as data: name (or ``module:function``), input and output sizes, start weights.

    Args:
        name: of the catalogue, or ``module:function``.
        num_classes: C, the outputs.
        in_channels: of an image; the numbers of a sample of features; the size of a vocabulary.
        image_size: height and width in pixels; 1 for features; T, the tokens of a sample.
        norm: BatchNorm, or GroupNorm in its place.
        pretrained: start from ImageNet weights; ``weights``: from those of a file.
        inputs: what a sample is; ``per_token``: a class for every token is predicted, (B, T, C);
            ``per_pixel``: outputs for every pixel, (B, C, H, W).
        projection: width of a head (linear, ReLU, linear) below the classifier, 0 for none.
        trainable: which tensors train, see :mod:`fedsim.models.trainable`.
        init: the run's seed draws random weights by its stream "model", or (torch) as
            ``torch.manual_seed`` before the network is built.
    """

    name: str
    num_classes: int
    in_channels: int
    image_size: int
    norm: Literal["batch", "group"] = "batch"
    pretrained: bool = False
    weights: str | None = None
    inputs: Inputs = "images"
    per_token: bool = False
    projection: int = 0
    trainable: str = "all"
    init: Literal["fedsim", "torch"] = "fedsim"
    per_pixel: bool = False

    def output_shape(self, n: int) -> tuple[int, ...]:
        """That of the outputs for n samples."""
        if self.per_pixel:
            return n, self.num_classes, self.image_size, self.image_size
        return (n, *[self.image_size] * self.per_token, self.num_classes)

    @property
    def without_weights(self) -> "ModelSpec":
        """The same network with random weights: building it reads and downloads nothing."""
        return replace(self, pretrained=False, weights=None)


@dataclass(frozen=True)
class PrivateSteps:
    """Differential privacy of a client's samples: norm C of a sample's gradient, and z."""

    clip: float
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True)
class Training:
    """The hyperparameters of local training that all methods share.

    ``lr`` is the learning rate before its schedule, ``lr_head`` that of the head; None: the same.
    ``private``: steps of DP-SGD. ``local_steps`` are those of a round, with batches that carry on
    from round to round; None: epochs, from the start in every round.
    """

    local_epochs: int = 1
    local_steps: int | None = None
    shuffle: Literal["fedsim", "dataloader"] = "fedsim"
    batch_size: int = 50
    momentum: float = 0.5
    weight_decay: float = 5e-4
    frozen_bn: bool = False
    clip_norm: float | None = None
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 1.0
    lr_head: float | None = None
    private: PrivateSteps | None = None
