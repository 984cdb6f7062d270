"""The interface of executors, which are stateless between calls: tasks, versions of the model and
client states go in, updates and new states come out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from fedsim.core.types import I64, ClientTask, ClientUpdate, Part, Sent, Vector, Vectors
from fedsim.metrics.outputs import Outputs, concatenated, samples_of, scores_of
from fedsim.metrics.samples import Samples as Reduced
from fedsim.metrics.samples import joined
from fedsim.metrics.scores import Scores
from fedsim.metrics.splits import Samples, group_positions
from fedsim.server.columns import Columns

T = TypeVar("T")
Model = tuple[Vector, Vectors]
"""A model to evaluate: the global vector (D,), and the state of the client it belongs to or {}."""
Models = Mapping[int, Sent]
"""Versions of the global model, by how many rounds they are the result of."""
EvaluationTask = tuple[Model, Part]
"""A model and the samples it is to be evaluated on."""


@dataclass(frozen=True)
class Measure(Generic[T]):
    """What an evaluation gives of a model's outputs, computed where the outputs are."""

    compute: Callable[[Outputs, Samples, Part, I64], T]
    """Of the outputs for some samples, the run's data, the part that they belong to, and their
    indices (n,) into the data set."""
    join: Callable[[Sequence[T]], T] | None = None
    """Makes those of several runs of samples, in order, one; None where ``compute`` needs the
    outputs of the whole part."""
    predicted: bool = False
    """Whether ``compute`` takes the predictions (n, ...) of a task that streams, not its sums."""


def _outputs(outputs: Outputs, _run: Samples, _part: Part, _index: I64) -> Outputs:
    return outputs


def _samples(outputs: Outputs, run: Samples, _part: Part, index: I64) -> Reduced:
    return samples_of(outputs, run.dataset, index)


def _scores(outputs: Outputs, run: Samples, part: Part, index: I64) -> Scores:
    groups = group_positions(run.dataset, index) if part == "test" else {}
    return scores_of(outputs, run.dataset, index, groups)


OUTPUTS = Measure(_outputs, concatenated)
"""The outputs themselves, for every sample."""
PREDICTIONS = Measure(_outputs, concatenated, predicted=True)
"""The predictions of a task that streams."""
SAMPLES = Measure(_samples, joined)
"""The scores of every sample."""
SCORES = Measure(_scores)
"""The scores of all samples together."""


@dataclass(frozen=True)
class Incident:
    """Work that was lost or failed: a row of errors.csv.

    ``client_id`` is None where no client's training was concerned, ``node`` empty where unknown.
    """

    client_id: int | None
    attempt: int
    node: str
    error: str


class Executor(Protocol):
    """Does the clients' work of one run, with the bits of the serial executor; lost work is done
    again."""

    @property
    def description(self) -> str:
        """One line for the user, such as ``ray, 2 actors, 1 CPU each``."""

    @property
    def environment(self) -> Mapping[str, object]:
        """For env.json: resources, device and placement plan."""

    def broadcast(self, models: Models) -> None:
        """Sends the models that the next tasks start from; :meth:`run` gets the same objects."""

    def run(
        self, tasks: Sequence[ClientTask], models: Models, states: Mapping[int, Vectors]
    ) -> list[ClientUpdate]:
        """Does tasks of one kind; an update for each client, sorted by client id.

        Where ``engine.on_client_failure`` is ``drop``, clients that failed are missing. The update
        of a task with several owners is that of each of them.

        Args:
            tasks: a client occurs once.
            models: by version at least those that the tasks start from.
            states: by client what it kept, where it kept something.

        Raises:
            WorkerError: a client's work failed; the message names round and client.
        """

    def prefetch(
        self, rounds: Sequence[Sequence[ClientTask]], models: Models, states: Mapping[int, Vectors]
    ) -> None:
        """Tells tasks of later rounds, which idle workers may do before their round.

        Each of ``rounds`` has all tasks of a round that start from ``models``; the states of their
        clients do not change until then.
        """

    def columns(
        self, updates: Sequence[ClientUpdate], models: Models, states: Mapping[int, Vectors]
    ) -> Columns | None:
        """The deltas of updates of :meth:`run` where they are elsewhere, else None; the rest is
        what :meth:`run` was given, since lost ones are computed again."""

    def evaluate(self, jobs: Sequence[EvaluationTask], measure: Measure[T]) -> list[T]:
        """What is made of each job's outputs for the samples of its part, in the part's order.

        Raises:
            DivergedError: a model's outputs are not finite, where scores are made of them.
            WorkerError: an evaluation failed.
        """

    def incidents(self) -> list[Incident]:
        """What was lost or failed since the last call."""

    def close(self) -> None:
        """Ends whatever the executor started."""
