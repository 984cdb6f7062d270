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
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsim.audit.recorded import COMPARED, Comparison, Difference, Recorded
from fedsim.audit.rerun import Rerun, opened
from fedsim.config import experiments
from fedsim.config.experiments import Setting, Settings
from fedsim.config.keys import FREE
from fedsim.config.resolve import resolve
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.types import F64, ClientTask, RoundContext, Vector, Vectors
from fedsim.schedules.base import Pass, Roster, RoundPlan, Schedule
from fedsim.server.base import RuleState
from fedsim.storage.checkpoint import ServerState, layout_hash
from fedsim.storage.client_states import ClientStates
from fedsim.storage.run_dir import RunStore
from fedsim.training import evaluate
from fedsim.training.export import client_number
from fedsim.training.loading import with_normalization
from fedsim.training.log import RoundLog
from fedsim.training.setup import Setup, assemble, check_effects, make_executor, start_of

REFUSED: Mapping[str, str] = {
    "data.": "the clients and their samples are those of the run",
    "model.": "the state before the round is that of the run's model",
    "dp.": "an epsilon is a statement about all rounds of a run",
    "clock.": "who answers, and when, follows from the rounds before",
    "async.": "who is at work in a round follows from the rounds before",
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
    """A schedule whose plan some clients are taken out of; nobody takes their place.

    Cohort and random numbers of the others are those of the schedule.
    """

    schedule: Schedule
    clients: frozenset[int]

    @property
    def asynchronous(self) -> bool:
        """As the schedule."""
        return self.schedule.asynchronous

    def plan(self, roster: Roster, state: Vectors, ctx: RoundContext, run: Pass, /) -> RoundPlan:
        """The plan of the schedule, without the clients."""
        plan = self.schedule.plan(roster, state, ctx, run)
        present = {c: own for c, own in plan.participation.items() if c not in self.clients}
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
    """A round that was done again.

    Args:
        number: from 1.
        before: (D,) the model before it.
        after: (D,) the model after it.
        params: the first of the D numbers, which are no statistics.
        log: its rows.
    """

    number: int
    before: Vector
    after: Vector
    params: int
    log: RoundLog

    @property
    def step(self) -> F64:
        """(P,) of the parameters."""
        return self.after[: self.params].astype(np.float64) - self.before[: self.params]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Rounds of a run beside the same rounds with a change.

    Args:
        run: its directory.
        original: the rounds of the run, done again.
        replayed: the same with the change; empty where there is none.
        changes: in words.
        fresh: what started without a state, in words.
        unlike: where the original rounds are not those that the run wrote down, else empty.
    """

    run: Path
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
    path, given = Path(run), dict(settings or {})
    named = {"server": server, "margin": margin, "attack.name": attack}
    for key, value in named.items():
        if value is not None and key in given:
            raise ConfigError(f"{key}: given twice")
    given |= {key: value for key, value in named.items() if value is not None}
    wanted = {
        key: value if isinstance(value, Setting) else Setting(value, key)
        for key, value in given.items()
    }
    if "attack.name" in wanted and wanted["attack.name"].value == "none":
        wanted["attack.name"] = replace(wanted["attack.name"], value=None)
    measured = {key: value for key, value in wanted.items() if key.startswith(MEASURED)}
    changed = {key: value for key, value in wanted.items() if key not in measured}
    last = round if until is None else until
    with (
        opened(path, overrides, accept_changed_code=accept_changed_code) as rerun,
        ExitStack() as stack,
    ):
        check(rerun, changed, round, last)
        out = frozenset(client_number(path, rerun.setup.config, c, "--without") for c in without)
        config = configuration(path, rerun, {**measured, **changed})
        attacked = any(key.startswith("attack.") for key in changed)
        if attacked and config.attack.name is not None and config.attack.start_round > last:
            raise ConfigError(
                f"attack.start_round: {config.attack.start_round} given; the attack starts after "
                f"the replayed rounds, the last of which is {last}; --attack none replays them "
                "without one"
            )
        start = rerun.state(round - 1)
        if measured:
            plain = assembled(rerun.setup, configuration(path, rerun, measured))
            executor = stack.enter_context(closing(make_executor(plain)))
            rerun = replace(rerun, setup=plain, executor=executor)
        original, unlike = [], ""
        for done in rounds(rerun, start, round, last):
            original.append(done)
            if not measured and not unlike:
                unlike = difference(rerun.store, done)
        if out:
            check_taken_out(out, original)
    if unlike:
        logger.warning(
            "%s: %s is not what this machine computes; the original is done again beside the "
            "replay, so that both are of this machine",
            path,
            unlike,
        )
    if not changed and not out:
        return Replay(run=path, original=original, unlike=unlike)
    setup = assembled(rerun.setup, config)
    check_effects(setup)
    state, fresh = carried(rerun.setup, setup, start)
    if out:
        setup = replace(setup, schedule=Without(setup.schedule, out))
    with closing(make_executor(setup)) as executor:
        other = replace(rerun, setup=setup, executor=executor)
        replayed = list(rounds(other, state, round, last))
    changes = [f"{key}={value.value}" for key, value in changed.items()]
    changes += [f"without client {c}" for c in sorted(out)]
    return Replay(
        run=path, original=original, replayed=replayed, changes=changes, fresh=fresh, unlike=unlike
    )


def rounds(rerun: Rerun, state: ServerState, first: int, last: int) -> Iterator[Done]:
    """Rounds from a state, with the vectors before and after."""
    for number in range(first, last + 1):
        before = state.params
        state, log = rerun.step(state, number)
        params = rerun.setup.layout.num_params
        yield Done(number=number, before=before, after=state.params, params=params, log=log)


def check(rerun: Rerun, changed: Settings, first: int, last: int) -> None:
    """Refuses rounds that the run has not, and what cannot be changed in its middle.

    Raises:
        ConfigError: so it is; says why.
    """
    if not rerun.rounds:
        raise ConfigError("--round: the run has no complete round")
    for flag, number in (("--round", first), ("--until", last)):
        if not 1 <= number <= rerun.rounds:
            raise ConfigError(f"{flag} {number}: the run has rounds 1 to {rerun.rounds}")
    if last < first:
        raise ConfigError(f"--until {last}: is before --round {first}")
    config = rerun.setup.config
    refused = {**REFUSED, **{f"{name}.": REFUSED["data."] for name in _of_the_data(config)}}
    for key, setting in changed.items():
        for start, why in refused.items():
            if key.startswith(start):
                raise ConfigError(f"{setting.origin}: {key} cannot change in a replay: {why}")
        if key in FREE:
            raise ConfigError(
                f"{setting.origin}: {key} changes no result; give it as a flag of the engine"
            )
        if key.startswith("compress.") and config.compress.name != "none":
            raise ConfigError(
                f"{setting.origin}: {key} cannot change in a replay: what clients keep of earlier "
                f"rounds is of compress.name={config.compress.name}"
            )
        if key.startswith("train.") and rerun.setup.schedule.asynchronous:
            raise ConfigError(
                f"{setting.origin}: {key} cannot change in a replay: {REFUSED['async.']}"
            )


def _of_the_data(config: RunConfig) -> set[str]:
    """Sections with options of the data set and the partition."""
    return {name for name in (config.data.name, config.data.partition) if name is not None}


def check_taken_out(clients: frozenset[int], original: Sequence[Done]) -> None:
    """Refuses clients that take part in none of the rounds, by a ConfigError."""
    cohorts = {row["client_id"] for done in original for row in done.log.tables.get("clients", ())}
    for client in sorted(clients - cohorts):
        there = ", ".join(map(str, sorted(cohorts)))
        raise ConfigError(
            f"--without {client}: the client is in the cohort of none of these rounds; those that "
            f"are: {there}"
        )


def configuration(run: Path, rerun: Rerun, given: Settings) -> RunConfig:
    """The configuration of the run with other settings, where it is done again now."""
    written = experiments.read(run / "config.yaml").settings
    if "attack.name" in given:  # the other options are those of the attack that it replaces
        kept = () if given["attack.name"].value is None else WHO
        written = {
            key: value
            for key, value in written.items()
            if not key.startswith("attack.") or key in kept
        }
    engine = rerun.setup.config.engine
    here = {f"engine.{leaf}": value for leaf, value in engine if f"engine.{leaf}" in FREE}
    places = {key: Setting(value, key) for key, value in here.items()}
    if rerun.setup.config.data.dir is not None:
        places["data.dir"] = Setting(rerun.setup.config.data.dir, "data.dir")
    return resolve(written, places, given)


def assembled(setup: Setup, config: RunConfig) -> Setup:
    """The run with another configuration, on the data that are loaded; no start vector.

    Raises:
        ConfigError: they do not fit, or the model's vector is another one.
    """
    evaluate.check_parts(config, setup.dataset, setup.partition)
    kind = setup.config.data.partition or ""
    made = assemble(
        with_normalization(config), setup.dataset, setup.partition, kind, setup.provenance.data
    )
    if layout_hash(made.layout) != layout_hash(setup.layout):
        raise ConfigError(
            f"algorithm {config.algorithm} has another model than {setup.config.algorithm}, so "
            "that it cannot go on from the state of the run"
        )
    slots = setup.layout.slots
    if [*map(made.algorithm.personal, slots)] != [*map(setup.algorithm.personal, slots)]:
        raise ConfigError(
            f"algorithm {config.algorithm} keeps other tensors on the clients than "
            f"{setup.config.algorithm}, so that it cannot go on from the state of the run"
        )
    return start_of(made)[0]


def carried(before: Setup, after: Setup, state: ServerState) -> tuple[ServerState, list[str]]:
    """The state for other settings: of what is unchanged that of the run, else nothing.

    Returns:
        It, and what was there and starts afresh, in words.
    """
    one, other, kept = before.algorithm, after.algorithm, state.server
    fresh: list[str] = []

    def part(name: str, own: Any, same: bool) -> Any:
        if not same and own:
            fresh.append(name)
        return own if same else type(own)()

    method = f"algorithm {after.config.algorithm}"
    rules = one.server.optimizers, other.server.optimizers
    optimizers = [
        part(f"server optimiser {i + 1}", dict(own), equal(*(r[i : i + 1] for r in rules)))
        for i, own in enumerate(kept.optimizers)
    ]
    exchange = equal(one.server.exchange, other.server.exchange)
    server = RuleState(
        probe=part(
            f"pass before training of {method}", dict(kept.probe), equal(one.probe, other.probe)
        ),
        reduction=part(
            "server reduction",
            dict(kept.reduction),
            equal(one.server.reduction, other.server.reduction),
        ),
        optimizers=tuple(optimizers[: len(rules[1])]),
        exchange=part(f"exchange of {method}", dict(kept.exchange), exchange),
        receive={
            name: own
            for name, whole in kept.receive.items()
            if (
                own := part(
                    f"server transform {name}",
                    dict(whole),
                    equal(*(_transform(setup, name) for setup in (before, after))),
                )
            )
        },
    )
    clients = state.clients
    if before.config.algorithm != after.config.algorithm and len(clients):
        fresh.append("states of the clients")
        clients = ClientStates()
    answers = exchange and equal(one.probe, other.probe)
    downlink = part("what the server sends beside the model", dict(state.downlink), answers)
    schedule = part("schedule", dict(state.schedule), equal(before.schedule, after.schedule))
    return (
        replace(state, server=server, clients=clients, downlink=downlink, schedule=schedule),
        fresh,
    )


def _transform(setup: Setup, name: str) -> object:
    """The cohort transform of this name, of the server or of the attack."""
    if setup.attack is not None and setup.attack.name == name:
        return setup.attack
    return next((t for t in setup.algorithm.server.receive if t.name == name), None)


def equal(one: object, other: object) -> bool:
    """Whether two parts of a method are the same rule with the same settings."""
    if type(one) is not type(other):
        return False
    try:
        return one == other or pickle.dumps(one) == pickle.dumps(other)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False


def difference(store: RunStore, done: Done) -> str:
    """The first place where the rows of a round are not what the run wrote, see
    :class:`fedsim.audit.recorded.Difference`; empty where all are the same."""
    n = done.number
    tables = {table: Recorded.read(store.path, table, n, n) for table in COMPARED}
    try:
        Comparison().compare(tables, done.log)
    except Difference as found:
        return found.place
    return ""


def _rows(one: Done, other: Done) -> Iterator[tuple[Any, ...]]:
    """The rows of :attr:`Replay.table` of a round."""
    sides = [_quantities(done) for done in (one, other)]
    for client, quantity in {**sides[0], **sides[1]}:
        a, b = (side.get((client, quantity), math.nan) for side in sides)
        yield one.number, client, quantity, a, b, b - a
    x, y, nan = one.step, other.step, math.nan
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    apart = one.after[: one.params].astype(np.float64) - other.after[: one.params]
    yield one.number, None, "step_cosine", nan, nan, float(x @ y) / lengths if lengths else nan
    yield one.number, None, "step_distance", nan, nan, float(np.linalg.norm(x - y))
    yield one.number, None, "model_distance", nan, nan, float(np.linalg.norm(apart))


def _quantities(done: Done) -> dict[tuple[int | None, str], float]:
    """The numbers of a round's rows by client and name; those of all clients first."""
    tables, found = done.log.tables, dict[tuple[int | None, str], float]()
    for table in ("rounds", "decomposition"):
        for row in tables.get(table, ()):
            found |= {(None, name): value for name, value in _numbers(row) if name != "round"}
    for row in tables.get("server", ()):
        found[None, f"server.{row['name']}"] = float(row["value"])
    for row in tables.get("clients", ()):
        known = {"round", "client_id", "num_samples"}
        own = [(name, value) for name, value in _numbers(row) if name not in known]
        found |= {(row["client_id"], name): value for name, value in own}
    return found


def _numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, int | float | np.number):
            yield name, float(value)
