"""Proposes the trials of a search and stops them early, with Optuna.

A trial depends only on the search's settings and on given earlier trials: every proposal is that of
a study made anew, with a sampler of its own seed, so that a search that was killed continues to the
same table.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from fedsim.config.search import Dimension, Space
from fedsim.core import rng
from fedsim.core.errors import ConfigError
from fedsim.core.measures import Measures
from fedsim.core.settings import Scalar
from fedsim.storage.trials import Trial, lowest
from fedsim.version import DISTRIBUTION

STARTUP = 10
"""TPE draws at random until this many trials are complete or pruned."""
MEDIAN_TRIALS, MEDIAN_PART = 5, 4
"""The median pruner waits for five complete trials and a fourth of the rounds."""
ASHA_FACTOR, ASHA_RUNGS = 3, 2
"""Successive halving: the best third goes on, at each of two rungs."""


def optuna() -> ModuleType:
    """The package, imported when it is needed; a ConfigError says how to install it."""
    try:
        import optuna as package
    except ImportError as error:
        raise ConfigError(
            f"fedsim tune needs Optuna, which cannot be imported ({error}): "
            f"pip install '{DISTRIBUTION}[tune]'"
        ) from error
    package.logging.set_verbosity(package.logging.WARNING)
    return package


@dataclass
class Proposal:
    """A proposed trial; ``trial`` is Optuna's, in a study of its own."""

    number: int
    params: Mapping[str, Scalar]
    trial: Any

    def report(self, round: int, value: float) -> bool:
        """Reports the value after a round, from 1; returns whether the pruner stops the trial."""
        self.trial.report(value, round)
        return bool(self.trial.should_prune())

    @property
    def marks(self) -> dict[str, Any]:
        """What the pruner has recorded of this trial, for the trials after it."""
        noted = self.trial.study.get_trials(deepcopy=False)[-1].system_attrs
        return {key: value for key, value in noted.items() if key.startswith("completed_rung")}


@dataclass(frozen=True, kw_only=True)
class Proposer:
    """Search space, sampler and pruner, from which trials are proposed."""

    space: Space
    by: str  # a column of rounds.csv
    sampler: str  # grid: all combinations, the last key varying fastest
    pruner: str  # asha: successive halving
    seed: int  # of the sampler
    rounds: int  # of a whole run
    measures: Measures = field(default_factory=Measures)

    def __post_init__(self) -> None:
        optuna()
        for key, dimension in self.space.items() if self.sampler == "grid" else ():
            if dimension.listed is None:
                raise ConfigError(
                    f"{dimension.origin}: --sampler grid needs choice(...) or int(...), "
                    f"not {dimension}; name the values of {key}, or take another sampler"
                )

    @property
    def size(self) -> int | None:
        """The number of combinations of a grid; None: without limit."""
        if self.sampler != "grid":
            return None
        return math.prod(len(dimension.listed or ()) for dimension in self.space.values())

    def propose(
        self, number: int, ended: Sequence[Trial], running: Sequence[Mapping[str, Scalar]] = ()
    ) -> Proposal:
        """Proposes a trial by its number, from earlier ones, in their order; TPE avoids the values
        of those that are ``running``."""
        package = optuna()
        distributions = {key: _distribution(package, d) for key, d in self.space.items()}
        states = package.trial.TrialState
        past = [
            {
                "state": states.FAIL if trial.state == "failed" else states[trial.state.upper()],
                "value": trial.value,
                "params": dict(trial.params),
                "system_attrs": dict(trial.marks),
                "intermediate_values": dict(trial.reports),
            }
            for trial in ended
        ]
        past += [{"state": states.RUNNING, "params": dict(params)} for params in running]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", package.exceptions.ExperimentalWarning)
            study = package.create_study(
                direction="minimize" if lowest(self.by, self.measures) else "maximize",
                sampler=self._sampler(package, number),
                pruner=self._pruner(package),
            )
            for trial in past:
                made = package.trial.create_trial(distributions=distributions, **trial)
                study.add_trial(made)
            if self.sampler == "grid":
                study.enqueue_trial(self._grid_point(number))
            trial = study.ask(distributions)
        return Proposal(number, {key: trial.params[key] for key in self.space}, trial)

    def _sampler(self, package: ModuleType, number: int) -> Any:
        seed = rng.seed_for(self.seed, "search", number) % 2**32
        if self.sampler == "tpe":
            return package.samplers.TPESampler(
                seed=seed, n_startup_trials=STARTUP, multivariate=True, constant_liar=True
            )
        return package.samplers.RandomSampler(seed=seed)

    def _pruner(self, package: ModuleType) -> Any:
        if self.pruner == "median":
            return package.pruners.MedianPruner(
                n_startup_trials=MEDIAN_TRIALS, n_warmup_steps=self.rounds // MEDIAN_PART
            )
        if self.pruner == "asha":
            return package.pruners.SuccessiveHalvingPruner(
                min_resource=max(1, self.rounds // ASHA_FACTOR**ASHA_RUNGS),
                reduction_factor=ASHA_FACTOR,
            )
        return package.pruners.NopPruner()

    def _grid_point(self, number: int) -> dict[str, Scalar]:
        """The combination of that number; the last key varies fastest."""
        point: dict[str, Scalar] = {}
        for key, dimension in reversed([*self.space.items()]):
            values = dimension.listed or ()
            number, position = divmod(number, len(values))
            point[key] = values[position]
        return {key: point[key] for key in self.space}


def _distribution(package: ModuleType, dimension: Dimension) -> Any:
    kinds = package.distributions
    if dimension.form == "choice":
        return kinds.CategoricalDistribution(dimension.values)
    low, high = dimension.bounds
    if dimension.form == "int":
        return kinds.IntDistribution(int(low), int(high))
    return kinds.FloatDistribution(low, high, log=dimension.form == "loguniform")
