"""The contract of methods, for the tests of whoever writes one.

``check_method(build)`` runs a method for a few small rounds in each of several ways.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from fedsim import algorithms
from fedsim.algorithms.base import Algorithm, no_slot
from fedsim.config.run import RunConfig
from fedsim.core.errors import ContractError, FedsimError
from fedsim.core.imports import users_code
from fedsim.core.types import ClientUpdate
from fedsim.testing.rounds import (
    NUM_CLIENTS,
    ROUNDS,
    Round,
    config,
    difference,
    results,
    rounds,
    small,
)
from fedsim.training import driver
from fedsim.training.assemble import prepare
from fedsim.training.callbacks import Callback

T = TypeVar("T")
BLOCK_TOLERANCE = 1e-3
"""How far a client's arrays in a block may be from those of the client alone, as a part of their
norm: for float32 rounding, much below what a rule that mixes clients is off by."""


@dataclass
class Method:
    """The method that is checked: its name or ``module:function``, and its hyperparameters."""

    name: str
    hyperparameters: Mapping[str, Any]

    def load(self) -> Algorithm:
        """The method, built."""
        return algorithms.load(self.name, self.hyperparameters)

    @property
    def section(self) -> dict[str, Any]:
        """Its section of a configuration."""
        return {self.name: self.hyperparameters} if self.hyperparameters else {}

    def small(self, model: str = "cnn", **sections: Any) -> RunConfig:
        """The configuration of :func:`fedsim.testing.rounds.small`."""
        return small(self.name, model, **self.section, **sections)

    @cached_property
    def plain(self) -> str:
        """A model without BatchNorm, unless that is what the method's clients keep of a model."""
        personal = self.load().personal
        mlp = prepare(config("fedavg", "mlp")).layout
        return "mlp" if personal is no_slot or any(map(personal, mlp.slots)) else "cnn"

    @cached_property
    def undisturbed(self) -> list[Round]:
        """Three rounds of 4 of 8 clients, which several cases read."""
        return rounds(self.small())


def check_method(
    build: Callable[..., Any] | str, /, *, cases: Iterable[str] = (), **hyperparameters: Any
) -> None:
    """Checks that a method keeps what every run counts on; takes seconds.

    Args:
        build: the function that builds it, at the top of a module; or its name, as
            ``fedsim run -a`` takes it (``module:function``).
        cases: names in :data:`fedsim.testing.methods.CASES`; by default all.
        hyperparameters: with which it is built.

    Raises:
        ContractError: it does not; names the case and the first difference.
    """
    method = Method(name_of(build), hyperparameters)
    check_cases("the method", CASES, cases or CASES, method)


def name_of(function: Callable[..., Any] | str) -> str:
    """``module:function`` of a function, and a name as it is."""
    if isinstance(function, str):
        return function
    return f"{function.__module__}:{function.__qualname__}"


def check_cases(
    title: str, functions: Mapping[str, Callable[[T], None]], cases: Iterable[str], part: T
) -> None:
    """Tries a part in several ways; a ContractError names the case in which it fails."""
    for case in cases:
        broken = f"{title} breaks its contract, case {case!r}"
        with users_code(broken, ContractError):
            try:
                functions[case](part)
            except FedsimError as error:
                raise ContractError(f"{broken}: {error}") from error


def require(kept: bool, message: str) -> None:
    """Raises a ContractError unless a rule is kept."""
    if not kept:
        raise ContractError(message)


def builds(method: Method) -> None:
    """Two builds are equal and survive pickling: a method is sent to other processes."""
    first, again = method.load(), method.load()
    hint = "make its parts frozen dataclasses without lambdas"
    for part in ("local", "server", "criterion"):
        one, two = getattr(first, part), getattr(again, part)
        require(equal(one, two), f"two builds have a different {part}; {hint}")
        try:
            copy = pickle.loads(pickle.dumps(one))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ContractError(f"its {part} cannot be pickled ({error}); {hint}") from error
        require(equal(copy, one), f"its {part} is another one after pickling; {hint}")


def equal(one: object, two: object) -> bool:
    """Whether two parts of a method are the same; some without settings are no dataclasses."""
    return one == two or (type(one) is type(two) and vars(one) == vars(two))


def trains(made: Sequence[Round]) -> None:
    """No client's work fails, all numbers are finite, and some model moves."""
    for t, r in enumerate(made, start=1):
        arrays = {"the model": r.after.params}
        arrays |= {f"the server's {k}": a for k, a in r.after.server.flatten().items()}
        for client, state in r.after.clients.items():
            arrays |= {f"client {client}'s {k}": a for k, a in state.items()}
        columns = ("train_loss", "test_loss", "test_accuracy")
        arrays |= {c: np.array(r.row[c]) for c in columns if r.row.get(c) is not None}
        for name, array in arrays.items():
            finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
            require(finite, f"round {t}: {name} is not finite")
        for row in r.tables.get("clients", ()):
            status = f"round {t}: client {row['client_id']} has status {row['status']}"
            require(row["status"] == "ok", status)
    initial, after = made[0].before.params, made[-1].after
    kept = [array for state in after.clients.values() for array in state.values()]
    models = [after.params, *(array for array in kept if array.shape == initial.shape)]
    moved = any(not np.array_equal(model, initial) for model in models)
    require(moved, "no model has moved")


def absent_clients(method: Method) -> None:
    """Who takes no part in a round keeps its state, unless the server answers every client."""
    if method.load().server.exchange is not None:
        return
    for t, r in enumerate(method.undisturbed, start=1):
        for client in set(range(NUM_CLIENTS)) - set(r.clients):
            before, after = (
                {k: a.tobytes() for k, a in state.clients.get(client, {}).items()}
                for state in (r.before, r.after)
            )
            changed = f"round {t}: client {client} took no part, but its state has changed"
            require(before == after, changed)


def order_of_updates(method: Method) -> None:
    """The order in which clients finish changes no bit."""
    turned = rounds(method.small(), arrival=lambda updates: [*updates[2:], *updates[:2][::-1]])
    same(method.undisturbed, turned, "the same updates in another order")


def another_process(method: Method) -> None:
    """The last round, by another executor, is a function of the state before it."""
    *before, last = method.undisturbed
    again = rounds(method.small(), start=last.before, first=ROUNDS - 1)
    of = "the process that did the rounds before; is something kept on an object?"
    same(method.undisturbed, [*before, *again], of)


def same(wanted: Sequence[Round], made: Sequence[Round], of: str) -> None:
    """Raises a ContractError with what two runs differ in first."""
    problem = difference([r.content() for r in wanted], [r.content() for r in made], of)
    require(problem is None, str(problem))


class StopAfter(Callback):
    """Ends a run as Ctrl-C does, after its second round."""

    def on_round_end(self, round: int, rows: Any) -> None:  # noqa: ARG002
        """Ends it."""
        if round == 2:
            raise KeyboardInterrupt


def stopped_and_resumed(method: Method) -> None:
    """A run that is killed and resumed from its files leaves the same bytes."""
    settings = config(method.name, **method.section)
    with TemporaryDirectory() as folder:
        through = results(driver.run(settings, Path(folder) / "through"))
        stopped = Path(folder) / "stopped"
        with suppress(KeyboardInterrupt):
            driver.run(settings, stopped, [StopAfter()])
        resumed = results(driver.resume(stopped))
    for name in through.keys() | resumed.keys():
        other = f"{name} of a run that was stopped after two rounds and resumed has other bytes"
        require(through.get(name) == resumed.get(name), other)


def update_of_zero(method: Method) -> None:
    """The first client of each round has an update of zero."""

    def arrival(updates: list[ClientUpdate]) -> list[ClientUpdate]:
        first, *others = updates
        return [replace(first, delta=np.zeros_like(first.delta)), *others]

    trains(rounds(method.small(), arrival=arrival))


def blocks(method: Method) -> None:
    """Clients that are trained in blocks are those of one by one, if the method says so."""
    if method.load().local.stackable is not True:
        return
    for one, other in zip(updates(method, 1), updates(method, 3), strict=True):
        pairs = {"update": (one.delta, other.delta)}
        pairs |= {f"state {k}": (a, other.state[k]) for k, a in one.state.items()}
        pairs |= {f"upload {k}": (a, other.extras[k]) for k, a in one.extras.items()}
        for name, (wanted, actual) in pairs.items():
            away, norm = float(np.linalg.norm(actual - wanted)), float(np.linalg.norm(wanted))
            off = f"the {name} of client {one.client_id} in a block is off by {away:.2g} of"
            require(away <= BLOCK_TOLERANCE * norm, f"{off} {norm:.2g}; see LocalRule.stackable")


def updates(method: Method, size: int) -> list[ClientUpdate]:
    """The updates of two rounds whose clients are trained in blocks of ``size``."""
    seen: list[ClientUpdate] = []

    def arrival(updates: list[ClientUpdate]) -> list[ClientUpdate]:
        seen.extend(updates)
        return updates

    engine = {"kind": "serial", "client_batch": size}
    train = {"sample_rate": 1.0, "rounds": 2}
    rounds(method.small(method.plain, train=train, engine=engine), arrival=arrival)
    return seen


ONE = {"data": {"num_clients": 1}, "train": {"sample_rate": 1.0}}
WARMUP = {"rounds": 2, "lr_schedule": "warmup_round", "weight_decay": 0.01}
"""Begins at a learning rate of 0."""
CASES: Mapping[str, Callable[[Method], None]] = {
    "builds and pickles": builds,
    "a model with BatchNorm": lambda method: trains(method.undisturbed),
    "a model without BatchNorm": lambda method: trains(rounds(method.small(method.plain))),
    "clients that take no part": absent_clients,
    "the order of updates": order_of_updates,
    "another process": another_process,
    "stopped and resumed": stopped_and_resumed,
    "one client": lambda method: trains(rounds(method.small(method.plain, **ONE))),
    "a learning rate of zero": lambda method: trains(rounds(method.small(train=WARMUP))),
    "an update of zero": update_of_zero,
    "blocks of clients": blocks,
}
"""By name the ways in which a method is tried."""
