"""The rows of all tables: one class each, from which columns, their order and docs/TABLES.md come.

Every value may be None where it is not available; the CSV cell is then empty. Accuracies lie in
0..1, losses are means of the task's loss (cross-entropy) without regularisers, seconds and bytes
are totals. The measures of other tasks than of classes, and those that `evaluation.measures` asks
for, have further columns at the end: `val_rmse` and `test_rmse` in rounds.csv, `rmse` by class,
client or group, and `finetuned_rmse` in final_clients.csv.
"""

import typing
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, dataclass_transform

Real = float | None
Whole = int | None
Extra = Mapping[str, float | None]
"""By name the measures of a task, whose columns stand at the end."""
Name = str | None
OPTIONAL = "optional"
"""Mark of a column that a table has only where its first rows have a value in it."""
WHEN = ("final", "best", "last10")
"""The rounds that summary.csv takes the value of a score from: the last evaluated one, the one with
the best accuracy, the mean of those among the last ten."""


@dataclass(frozen=True)
class Metric:
    """What summaries, tables and curves know of a number by round; it marks its column.

    ``title`` stands in a heading; ``lowest``: small values are better; ``takes``: those of
    :data:`WHEN` that summary.csv has, at its end where they are ``late``.
    """

    title: str
    unit: Literal["%", "nats", ""] = "%"
    lowest: bool = False
    takes: tuple[str, ...] = ()
    late: bool = False


LOSS = Metric("loss", "nats", lowest=True)
ACCURACY = Metric("accuracy", takes=WHEN)
BALANCED = Metric("balanced accuracy", takes=WHEN)
MACRO_F1 = Metric("macro-F1", takes=WHEN)
AUC = Metric("AUC", takes=WHEN)
ECE = Metric("calibration error (ECE)", lowest=True, takes=WHEN, late=True)
TRAINING_LOSS = Metric("training loss", "nats", lowest=True)
CONFLICTS = Metric("conflicting client pairs", lowest=True)
STEP_NORM = Metric("norm of the server step", "")
BENIGN = Metric("test accuracy of benign clients", takes=("final", "last10"))
SUCCESS = Metric("attack success rate", lowest=True, takes=("final", "last10"))
EPSILON = Metric("epsilon", "", lowest=True)
DEPLOYMENT = Metric("epsilon of the deployment", "", lowest=True)


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
class Row(Mapping[str, Any]):
    """A row of a table: its values as attributes, or by the name of the column.

    Every subclass is a dataclass; its argument ``table`` is the table's name.
    """

    table: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, table: str = "") -> None:
        cls.table = table
        dataclass(frozen=True, kw_only=True, eq=False)(cls)

    @classmethod
    @cache
    def columns(cls) -> tuple[str, ...]:
        """The columns in their order, without those of a task's measures."""
        return tuple(one.name for one in fields(cls) if one.name != "extra")

    @classmethod
    def describe(cls) -> dict[str, str]:
        """What each column holds."""
        hints = typing.get_type_hints(cls, include_extras=True)
        return {name: hints[name].__metadata__[0] for name in cls.columns()}

    @classmethod
    @cache
    def optional(cls) -> frozenset[str]:
        """The columns marked :data:`OPTIONAL`."""
        hints = typing.get_type_hints(cls, include_extras=True)
        return frozenset(c for c in cls.columns() if OPTIONAL in hints[c].__metadata__[1:])

    @classmethod
    def measured(cls) -> bool:
        """Whether a task's measures have columns in it."""
        return "extra" in cls.__dataclass_fields__

    @property
    def further(self) -> Mapping[str, Any]:
        """By name the measures of the task, whose columns are the last."""
        extra: Mapping[str, Any] = self.__dict__.get("extra", {})
        return extra

    def __getitem__(self, column: str) -> Any:
        return self.__dict__[column] if column in self.__dict__ else self.further[column]

    def __iter__(self) -> Iterator[str]:
        return iter((*self.columns(), *self.further))

    def __len__(self) -> int:
        return len(self.columns()) + len(self.further)


class PartitionRow(Row, table="partition"):
    """A row per client and label of which it owns any samples."""

    client_id: Annotated[int, "the client"]
    label: Annotated[int, "the class index; -1 for text with a label per token"]
    train_samples: Annotated[int, "training samples of the client with this label"]
    test_samples: Annotated[int, "of its own for testing; 0 with one common test part"]
    name: Annotated[Name, "of the client's site, user or file"] = None
    malicious: Annotated[Whole, "1 for a malicious client, else 0; there with any", OPTIONAL] = None


class SplitRow(Row, table="split"):
    """A row per sample in a part, clients first; `data.partition_file` reads it.

    A client's training samples stand in the order in which it has them. The columns from file on
    are there where they are known, and ``name`` where it does not follow from the clients' sites.
    """

    sample: Annotated[int, "its index in the data set, from 0"]
    part: Annotated[str, "train, val, test: common; own_val, own_test: a client's, out of train"]
    client_id: Annotated[Whole, "whose sample; of a common part whose site's or user's, or empty"]
    label: Annotated[int, "the class index; -1 for text with a label per token"]
    file: Annotated[Name, "relative to the folder of the data"] = None
    patient: Annotated[Name, "whose sample"] = None
    site: Annotated[Name, "or user"] = None
    name: Annotated[Name, "of the client's file or user"] = None
    malicious: Annotated[Whole, "1 where its client is malicious, else 0; there with any"] = None


class RowOfRound(Row):
    """A row of a table that grows with the rounds."""

    round: Annotated[int, "from 1"]


class RoundRow(RowOfRound, table="rounds"):
    """A row per round; the val and test columns are empty in rounds without evaluation."""

    lr: Annotated[float, "the clients' learning rate"]
    cohort_size: Annotated[int, "clients drawn, those that were dropped included"]
    dropped: Annotated[int, "clients of the cohort that do not count"]
    train_loss: Annotated[
        Real, "mean over the samples of all local epochs and clients", TRAINING_LOSS
    ] = None
    val_loss: Annotated[Real, "on the validation part", LOSS] = None
    val_accuracy: Annotated[Real, "on the validation part", ACCURACY] = None
    test_loss: Annotated[Real, "on the test part", LOSS] = None
    test_accuracy: Annotated[
        Real, "on the test part; of personalised methods the mean over clients", ACCURACY
    ] = None
    test_balanced_accuracy: Annotated[Real, "mean recall of classes with support", BALANCED] = None
    test_macro_f1: Annotated[Real, "mean F1 of the classes with support", MACRO_F1] = None
    test_auc: Annotated[
        Real, "macro one-vs-rest (two classes: of class 1); empty if one is absent", AUC
    ] = None
    conflict_ratio: Annotated[
        Real, "share of pairs of updates with negative inner product", CONFLICTS
    ] = None
    update_norm: Annotated[Real, "2-norm of the server's step in the parameters", STEP_NORM] = None
    gradient_diversity: Annotated[Real, "weighted mean of squared norms by that of the mean"] = None
    top_axis_share: Annotated[Real, "of the first principal axis in the squared length"] = None
    client_test_accuracy: Annotated[Real, "mean over the clients that own test samples"] = None
    simulated_seconds: Annotated[Real, "of the round on the virtual clock"] = None
    downlink_bytes: Annotated[Whole, "from the server to the cohort"] = None
    uplink_bytes: Annotated[Whole, "from the cohort to the server"] = None
    val_balanced_accuracy: Annotated[Real, "on the validation part", BALANCED] = None
    val_macro_f1: Annotated[Real, "on the validation part", MACRO_F1] = None
    val_auc: Annotated[Real, "on the validation part", AUC] = None
    test_ece: Annotated[Real, "expected calibration error, 15 bins of equal width", ECE] = None
    val_ece: Annotated[Real, "on the validation part", ECE] = None
    benign_test_accuracy: Annotated[
        Real,
        "mean over clients that are not malicious, on their own or the common test samples",
        OPTIONAL,
        BENIGN,
    ] = None
    attack_success_rate: Annotated[
        Real,
        "share of samples with a backdoor's trigger, or of the source class, in the target class",
        OPTIONAL,
        SUCCESS,
    ] = None
    epsilon: Annotated[
        Real, "of all rounds so far at dp.delta; there with dp", OPTIONAL, EPSILON
    ] = None
    deployment_epsilon: Annotated[
        Real, "of a deployment with dp.population and dp.noise_cohort", OPTIONAL, DEPLOYMENT
    ] = None
    extra: Extra = field(default_factory=dict)


class ClientRow(RowOfRound, table="clients"):
    """A row per round and client of the cohort."""

    client_id: Annotated[int, "the client"]
    status: Annotated[str, "ok or dropped"]
    num_samples: Annotated[int, "its training samples"]
    num_steps: Annotated[int, "local steps; 0 if it was dropped"] = 0
    train_loss: Annotated[Real, "mean over the samples of all local epochs"] = None
    update_norm: Annotated[Real, "2-norm of its update, federated parameters alone"] = None
    simulated_seconds: Annotated[Real, "download, local steps and upload"] = None
    staleness: Annotated[Whole, "server steps since its start, from 0; asynchronous", OPTIONAL] = (
        None
    )
    version: Annotated[Whole, "rounds before it started; in asynchronous runs", OPTIONAL] = None
    attacker: Annotated[Whole, "1 where it is malicious, else 0; with an attack", OPTIONAL] = None
    epsilon: Annotated[
        Real, "of its samples in all rounds so far, at dp.delta; with dp.level=example", OPTIONAL
    ] = None


class ClassRow(RowOfRound, table="classes"):
    """A row per evaluated round and class, on the test part."""

    label: Annotated[int, "the class index"]
    support: Annotated[int, "test samples of the class"]
    recall: Annotated[Real, "empty without support"]
    precision: Annotated[Real, "0 without predictions"] = None
    auc: Annotated[Real, "of the class against the rest; empty where one has no samples"] = None
    extra: Extra = field(default_factory=dict)


class ConfusionRow(RowOfRound, table="confusion"):
    """A row per evaluated round, class and predicted class, where there are any, on the test part.

    The counts of personalised methods are summed over the clients' models. Not written where every
    token has a label.
    """

    label: Annotated[int, "the class index"]
    prediction: Annotated[int, "index of the predicted class"]
    count: Annotated[int, "test samples of the class with this prediction, at least 1"]


class EvaluationRow(RowOfRound, table="evaluations"):
    """A row per evaluated round and client (``client_id``) or group of test samples (``group``)."""

    client_id: Annotated[Whole, "whose model or data; empty for a group"] = None
    group: Annotated[Name, "of test samples; empty for a client"] = None
    split: Annotated[str, "val, test, or the client's own part: own_train, own_val, own_test"]
    num_samples: Annotated[int, "samples evaluated"]
    loss: Annotated[float, "mean cross-entropy, or loss of the task"]
    accuracy: Annotated[Real, "in 0..1; empty in tasks without classes"]
    extra: Extra = field(default_factory=dict)


class DecompositionRow(RowOfRound, table="decomposition"):
    """A row per decomposed round: local, shift and aggregation loss add up to the global loss.

    In personalised methods there is no one model after aggregation: the cohort's own models take
    its place, each with the weight of its client's training samples.
    """

    split: Annotated[str, "the data: train, val or test of the clients, or common_test"]
    scope: Annotated[str, "whose data: cohort or population"]
    local_loss: Annotated[float, "of local models on their own clients' data"]
    shift_loss: Annotated[float, "what they lose in addition on everybody's data"]
    aggregation_loss: Annotated[float, "what aggregation adds"]
    global_loss: Annotated[
        float,
        "of the model after aggregation; of personalised methods the mean over the cohort's "
        "own models, weighted by training samples, each on the data of all owners",
    ]
    shift_spread: Annotated[float, "the shift without its signs: sum_ij p_i q_j |L_ij - L_ii|"]
    aggregation_spread: Annotated[float, "without its signs: sum_i p_i |L(w) - L(w_i)|"]


class LossMatrixRow(RowOfRound, table="loss_matrix"):
    """A row per decomposed round, model and owner of data."""

    model: Annotated[str, "a client's local model, 'after', or 'after:K' for client K's own"]
    owner: Annotated[str, "whose data: a client, or 'test' for the common test part"]
    loss: Annotated[float, "mean cross-entropy"]


class CosineRow(RowOfRound, table="cosines"):
    """A row per round and pair of clients of the cohort."""

    client_a: Annotated[int, "the first client"]
    client_b: Annotated[int, "the second client"]
    cosine: Annotated[float, "between their updates; 0 where one is zero"]


class SpectrumRow(RowOfRound, table="spectrum"):
    """A row per round and principal axis of the updates."""

    axis: Annotated[int, "from 1, the largest first"]
    share: Annotated[float, "of the axis in the updates' squared length"]


class ServerRow(RowOfRound, table="server"):
    """A row per round and number that a server rule reports of its step."""

    name: Annotated[str, "of the number; a second part's of a chain is `clipped2`"]
    value: Annotated[float, "the number"]


class ModelRow(RowOfRound, table="models"):
    """A row per round: by it `fedsim verify` knows the model after each."""

    sha256: Annotated[str, "of the global vector after the round, float32 (little-endian)"]


class TimingRow(RowOfRound, table="timings"):
    """A row per round and phase; the only table beside errors.csv that differs between machines."""

    phase: Annotated[str, "such as train, aggregate, evaluate, checkpoint or total"]
    seconds: Annotated[
        float, "wall-clock; of what is written beside the next round, its total has the wait alone"
    ]
    bytes: Annotated[int, "moved or written, 0 where that says nothing"]


class ErrorRow(RowOfRound, table="errors"):
    """A row per piece of work that was lost, failed or left out."""

    client_id: Annotated[Whole, "whose work; empty where no client's training was concerned"]
    attempt: Annotated[int, "from 1; 0 if the client was not asked to train"]
    node: Annotated[str, "where, as far as known"]
    error: Annotated[str, "the cause"]


class FinalClientRow(Row, table="final_clients"):
    """A row per client that owns test samples: its scores by the final model, before and after
    fine-tuning on its training samples.

    Written after the last round, with `data.heldout_clients` or `evaluation.finetune_epochs`.
    Where no held-out client owns test samples, all held-out clients are scored on their training
    samples.
    Personalised methods start from the client's own model; a held-out client has the global one.
    """

    client_id: Annotated[int, "the client"]
    held_out: Annotated[int, "1 where it never trained, else 0"]
    split: Annotated[str, "own_test, or own_train for held-out clients without test samples"]
    num_samples: Annotated[int, "samples evaluated"]
    loss: Annotated[float, "mean cross-entropy of the final model"]
    accuracy: Annotated[Real, "of the final model; empty in tasks without classes"]
    finetuned_loss: Annotated[Real, "after fine-tuning; empty where there is none"] = None
    finetuned_accuracy: Annotated[Real, "after fine-tuning"] = None
    extra: Extra = field(default_factory=dict)


def metric_column(part: str, metric: str, when: str = "") -> str:
    """The column of a metric: ``test_auc`` in rounds.csv, ``best_test_auc`` in summary.csv."""
    return "_".join(filter(None, (when, part, metric)))


_HINTS = typing.get_type_hints(RoundRow, include_extras=True)
METRICS: Mapping[str, Metric] = {
    column: mark
    for column in RoundRow.columns()
    for mark in _HINTS[column].__metadata__
    if isinstance(mark, Metric)
}
"""By column of rounds.csv."""
SCORES: Mapping[str, Metric] = {
    column.removeprefix("test_"): metric
    for column, metric in sorted(METRICS.items(), key=lambda item: item[1].unit != "%")
    if column.startswith("test_")
}
"""Those of a model on data, by name, losses last: the test and the validation part have a column
of each."""
EPSILONS = ("epsilon", "deployment_epsilon")
"""Columns of rounds.csv of runs with user-level privacy."""


_BY_ROUND: tuple[type[Row], ...] = tuple(RowOfRound.__subclasses__())
_ROWS: tuple[type[Row], ...] = (PartitionRow, SplitRow, *_BY_ROUND, FinalClientRow)
TABLES: Mapping[str, type[Row]] = {row.table: row for row in _ROWS}
"""Every table of a run directory but summary.csv, whose columns depend on the settings."""
