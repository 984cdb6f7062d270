"""Rounds of a run done again with one thing changed and all else equal: ``fedsim replay``.

Both start from the state of the run before the first of the rounds. What the change replaces on the
server starts without a state of its own, what it leaves alone keeps it: random numbers, cohorts and
the clients' states are those of the run. The run's directory stays as it is.
"""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsim.audit.rerun import Rerun, opened
from fedsim.audit.tables import Comparison, Difference, recorded
from fedsim.config import experiments
from fedsim.config.experiments import Setting, Settings
from fedsim.config.keys import FREE
from fedsim.config.resolve import resolve, with_normalization
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.types import F64, ClientTask, RoundContext, Vector, Vectors
from fedsim.identity.resume import placement
from fedsim.schedules.base import Pass, Roster, RoundPlan, Schedule
from fedsim.server.base import CohortAttack, CohortTransform, RuleState
from fedsim.storage.checkpoint import ServerState, layout_hash
from fedsim.storage.client_states import ClientStates
from fedsim.storage.run_dir import client_number
from fedsim.training import evaluate
from fedsim.training.assemble import assemble, make_executor, start_of
from fedsim.training.malicious import check_effects
from fedsim.training.rows import RoundLog
from fedsim.training.setup import Setup

REFUSED: Mapping[str, str] = {
    "data.": "the clients and their samples are those of the run",
    "model.": "the state before the round is that of the run's model",
    "dp.": "an epsilon is a statement about all rounds of a run",
    "clock.": "who answers, and when, follows from the rounds before",
    "async.": "who is at work in a round follows from the rounds before",
    **{key: "it changes no result; give it as a flag of the engine" for key in FREE},
}
"""What cannot be changed in the middle of a run, by the beginning of the key, and why not."""
MEASURED = "evaluation."
"""What these keys say holds for both sides: they change what is looked at, not what happens."""
WHO = ("attack.clients", "attack.fraction", "attack.start_round")
"""Options of an attack that another one in its place has too."""
COLUMNS = ("round", "client_id", "quantity", "original", "replayed", "difference")

logger = logging.getLogger("fedsim")


@dataclass(frozen=True)
class Without:
    """A schedule whose plan some clients are taken out of; nobody takes their place."""

    schedule: Schedule
    clients: frozenset[int]

    @property
    def asynchronous(self) -> bool:
        """As the schedule."""
        return self.schedule.asynchronous

    def plan(self, roster: Roster, state: Vectors, ctx: RoundContext, run: Pass, /) -> RoundPlan:
        """The plan of the schedule, without the clients."""
        plan = self.schedule.plan(roster, state, ctx, run)
        present = {c: each for c, each in plan.participation.items() if c not in self.clients}
        tasks, *ahead = (tuple(self._others(each)) for each in (plan.tasks, *plan.ahead))
        return replace(plan, tasks=tasks, participation=present, ahead=tuple(ahead))

    def _others(self, tasks: Sequence[ClientTask]) -> Iterator[ClientTask]:
        for task in tasks:
            left = tuple(c for c in task.clients if c not in self.clients)
            if left == task.clients:
                yield task
            elif left:  # pooled data: without the samples of these clients
                yield replace(task, client=left[0], owners=left)


@dataclass(frozen=True, kw_only=True)
class Done:
    """A round that was done again, its rows, and the model (D,) before and after it."""

    before: Vector
    after: Vector
    params: int  # the first of the D numbers, which are no statistics
    log: RoundLog

    @property
    def step(self) -> F64:
        """(P,) of the parameters."""
        return self.after[: self.params].astype(np.float64) - self.before[: self.params]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Rounds of a run, done again, beside the same rounds with a change, if there is one.

    ``changes`` and, in words, what started ``fresh``, without a state; ``unlike`` is the place
    where the original rounds are not those that the run wrote down, else empty.
    """

    original: Sequence[Done]
    replayed: Sequence[Done] = ()
    changes: Sequence[str] = ()
    fresh: Sequence[str] = ()
    unlike: str = ""

    @property
    def table(self) -> pd.DataFrame:
        """A row per round and quantity, the two side by side and their difference.

        Columns ``round``, ``client_id`` (missing where the quantity is none of a client's),
        ``quantity``, ``original``, ``replayed`` and ``difference``. Quantities are the columns of
        rounds.csv, decomposition.csv and server.csv (``server.<name>``), of clients.csv by client,
        and of the two models: ``step_cosine`` and ``step_distance`` of the steps of the round,
        ``model_distance`` after it, all over the parameters.
        """
        pairs = zip(self.original, self.replayed or self.original, strict=True)
        rows = [row for one, other in pairs for row in _rows(one, other)]
        frame = pd.DataFrame(rows, columns=COLUMNS)
        return frame.astype({"client_id": "Int64", "original": float, "replayed": float})


def replay(
    run: Path | str,
    round: int,
    until: int | None = None,
    *,
    without: Sequence[int | str] = (),
    server: str | None = None,
    margin: str | None = None,
    attack: str | None = None,
    settings: Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
    accept_changed_code: bool = False,
) -> Replay:
    """Does rounds of a run again, as they were and with something changed.

    Args:
        run: its directory; the run may be unfinished.
        round: the first one, from 1.
        until: the last one; None: the first.
        without: clients that take no part, by number or name.
        server: another server rule, as in ``fedgh,fedadam``.
        margin: another margin control, or ``none``.
        attack: an attack, by its name, with the malicious clients of the run where it has any; or
            ``none``.
        settings: other settings, by dotted key; of section ``evaluation`` they hold for both sides.
        overrides: settings of where the work is done, such as ``{"engine.kind": "ray"}``.
        accept_changed_code: go on although the user's own functions have changed.

    Raises:
        ConfigError, DataError: the run cannot be done again, or not with this change.
        FedsimError: a round failed.
    """
    path, last = Path(run), round if until is None else until
    flags = {"server": server, "margin": margin, "attack.name": attack}
    both: dict[str, Setting] = {}
    changed: dict[str, Setting] = {}
    for key, value in {**(settings or {}), **{k: v for k, v in flags.items() if v}}.items():
        setting = value if isinstance(value, Setting) else Setting(value, key)
        if key == "attack.name" and setting.value == "none":
            setting = replace(setting, value=None)
        (both if key.startswith(MEASURED) else changed)[key] = setting
    with opened(path, overrides, accept_changed_code=accept_changed_code) as rerun:
        check(rerun, changed, round, last)
        num_clients = rerun.setup.config.data.num_clients
        out = frozenset(client_number(path, num_clients, c, "--without") for c in without)
        config = configuration(path, rerun, both | changed)
        start = rerun.state(round - 1)
        measured = assemble_again(rerun.setup, configuration(path, rerun, both)) if both else None
        made = Replay(original=rounds(rerun, start, round, last, measured))
        if not both and (place := difference(path, made.original)):
            logger.warning("%s: %s is not what this machine computes", path, place)
            made = replace(made, unlike=place)
    if not changed and not out:
        return made
    setup = assemble_again(rerun.setup, config)
    check_effects(setup)
    state, fresh = carry_over(rerun.setup, setup, start)
    setup = replace(setup, schedule=Without(setup.schedule, out)) if out else setup
    changes = [f"{key}={setting.value}" for key, setting in changed.items()]
    changes += [f"without client {c}" for c in sorted(out)]
    replayed = rounds(rerun, state, round, last, setup)
    return replace(made, replayed=replayed, changes=changes, fresh=fresh)


def rounds(
    rerun: Rerun, state: ServerState, first: int, last: int, setup: Setup | None = None
) -> list[Done]:
    """Rounds from a state, of the run or of another setup, with the vectors before and after."""
    if setup is not None:
        with closing(make_executor(setup)) as executor:
            again = replace(rerun, setup=setup, executor=executor)
            return rounds(again, state, first, last)
    params, done = rerun.setup.layout.num_params, []
    for number in range(first, last + 1):
        before = state.params
        state, log = rerun.step(state, number)
        done.append(Done(before=before, after=state.params, params=params, log=log))
    return done


def check(rerun: Rerun, changed: Settings, first: int, last: int) -> None:
    """Refuses rounds that the run has not, and what cannot be changed in its middle."""
    rerun.check(first, "--round")
    rerun.check(last, "--until")
    if last < first:
        raise ConfigError(f"--until {last}: is before --round {first}")
    config = rerun.setup.config
    refused = {
        f"{config.data.name}.": REFUSED["data."],
        f"{config.data.partition}.": REFUSED["data."],
    }
    refused |= REFUSED
    if config.compress.name != "none":
        refused["compress."] = "clients keep what compress.name left of earlier rounds"
    if rerun.setup.schedule.asynchronous:
        refused["train."] = REFUSED["async."]
    for key, setting in changed.items():
        for start, reason in refused.items():
            if key.startswith(start):
                raise ConfigError(f"{setting.origin}: {key} cannot change in a replay: {reason}")


def configuration(run: Path, rerun: Rerun, changed: Settings) -> RunConfig:
    """The configuration of the run with other settings, where it is done again now."""
    written = experiments.read(run / "config.yaml").settings
    if "attack.name" in changed:  # the other options are those of the attack that it replaces
        kept = () if changed["attack.name"].value is None else WHO
        written = {
            key: value
            for key, value in written.items()
            if not key.startswith("attack.") or key in kept
        }
    config = rerun.setup.config
    here = placement(config) | {"data.dir": config.data.dir}
    places = {key: Setting(value, key) for key, value in here.items() if value is not None}
    return resolve(written, places, changed)


def assemble_again(setup: Setup, config: RunConfig) -> Setup:
    """The run with another configuration, on the data that are loaded; no start vector."""
    evaluate.check_parts(config, setup.dataset, setup.partition)
    kind, digests = setup.config.data.partition or "", setup.provenance.data
    other = assemble(with_normalization(config), setup.dataset, setup.partition, kind, digests)
    slots, problem = setup.layout.slots, ""
    if layout_hash(other.layout) != layout_hash(setup.layout):
        problem = "has another model than"
    elif [*map(other.algorithm.personal, slots)] != [*map(setup.algorithm.personal, slots)]:
        problem = "keeps other tensors on the clients than"
    if problem:
        raise ConfigError(
            f"algorithm {config.algorithm} {problem} {setup.config.algorithm}, so that it cannot "
            "go on from the state of the run"
        )
    return start_of(other)[0]


def parts(setup: Setup) -> dict[str, tuple[object, str]]:
    """The parts of a method that keep arrays, by their names in a checkpoint, and in words."""
    server, method = setup.algorithm.server, f"algorithm {setup.config.algorithm}"
    named: dict[str, tuple[object, str]] = {
        "probe": (setup.algorithm.probe, f"pass before training of {method}"),
        "reduce": (server.reduction, "server reduction"),
        "exchange": (server.exchange, f"exchange of {method}"),
    }
    for i, optimizer in enumerate(server.optimizers, 1):
        named["then" if i == 1 else f"then{i}"] = optimizer, f"server optimiser {i}"
    transforms: tuple[CohortAttack | CohortTransform, ...] = server.receive
    for transform in transforms if server.attack is None else (server.attack, *transforms):
        named[f"receive.{transform.name}"] = transform, f"server transform {transform.name}"
    return named


def carry_over(before: Setup, after: Setup, state: ServerState) -> tuple[ServerState, list[str]]:
    """The state for other settings, of what is unchanged that of the run, else nothing; and what
    was there and starts afresh, in words."""
    old, new = parts(before), parts(after)
    same = {name for name in old.keys() & new.keys() if equal(old[name][0], new[name][0])}
    arrays, fresh = {}, dict[str, None]()
    for name, array in state.server.flatten().items():
        part = ".".join(name.split(".")[: 2 if name.startswith("receive.") else 1])
        if part in same:
            arrays[name] = array
        else:
            fresh[new.get(part, old[part])[1]] = None
    clients, downlink, schedule = state.clients, state.downlink, state.schedule
    if before.config.algorithm != after.config.algorithm and len(clients):
        fresh["states of the clients"], clients = None, ClientStates()
    if downlink and not {"probe", "exchange"} <= same:
        fresh["what the server sends beside the model"], downlink = None, {}
    if schedule and not equal(before.schedule, after.schedule):
        fresh["schedule"], schedule = None, {}
    server = RuleState.unflatten(arrays)
    carried = replace(state, server=server, clients=clients, downlink=downlink, schedule=schedule)
    return carried, list(fresh)


def equal(one: object, other: object) -> bool:
    """Whether two parts of a method are the same rule with the same settings."""
    if type(one) is not type(other):
        return False
    try:
        return one == other or pickle.dumps(one) == pickle.dumps(other)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False


def difference(run: Path, original: Sequence[Done]) -> str:
    """The first place where the rows of rounds are not what the run wrote; empty where all are."""
    try:
        rows = recorded(run)
        for done in original:
            Comparison().compare(rows, done.log)
    except Difference as difference:
        return difference.place
    return ""


def _rows(one: Done, other: Done) -> Iterator[tuple[Any, ...]]:
    """The rows of :attr:`Replay.table` of a round."""
    sides = [_quantities(done) for done in (one, other)]
    for client, quantity in {**sides[0], **sides[1]}:
        a, b = (side.get((client, quantity), math.nan) for side in sides)
        yield one.log.round, client, quantity, a, b, b - a
    x, y, nan = one.step, other.step, math.nan
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    apart = one.after[: one.params].astype(np.float64) - other.after[: one.params]
    yield one.log.round, None, "step_cosine", nan, nan, float(x @ y) / lengths if lengths else nan
    yield one.log.round, None, "step_distance", nan, nan, float(np.linalg.norm(x - y))
    yield one.log.round, None, "model_distance", nan, nan, float(np.linalg.norm(apart))


def _quantities(done: Done) -> dict[tuple[int | None, str], float]:
    """The numbers of a round's rows by client and name; those of all clients first."""
    tables, values = done.log.tables, dict[tuple[int | None, str], float]()
    for table in ("rounds", "decomposition", "server", "clients"):
        for row in tables.get(table, ()):
            if table == "server":
                values[None, f"server.{row['name']}"] = float(row["value"])
                continue
            client = row["client_id"] if table == "clients" else None
            no_results = {"round"} if client is None else {"round", "client_id", "num_samples"}
            for name, value in row.items():
                if name not in no_results and isinstance(value, int | float | np.number):
                    values[client, name] = float(value)
    return values
