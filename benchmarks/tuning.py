"""Whether TPE finds a good learning rate in fewer trials than random search: a sign test.

A planted problem stands in for the validation accuracy by learning rate: it rises slowly with the
logarithm of the rate, is flat around its best value, and falls off steeply where training diverges.
A seed searches nine of them, with the best rate at 0.0001 to 1: where it lies beside the few points
that a seed draws at random is luck. The values go through the code of ``fedsim tune`` itself,
without any training. ``--noise`` adds normal
noise to each value. ``--runs`` also does a small search with real runs.

    python -m benchmarks.tuning [--trials 25] [--seeds 10] [--noise 0.003] [--runs]
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from scipy import stats

from fedsim.config import experiments, search
from fedsim.core import rng
from fedsim.storage.trials import Trial, best
from fedsim.studies.proposals import Proposer

SPACE = "search: {train.lr: 'loguniform(0.00001, 10)'}\n"
PLANTED = tuple(10 ** (exponent / 2) for exponent in range(-8, 1))
"""The best learning rates of the planted problems."""


def lost(lr: float, planted: float) -> float:
    """The accuracy that a learning rate loses against the planted one, on average."""
    decades = math.log10(lr / planted)
    return (0.06 if decades < 0 else 0.35) * decades**2


def search_once(planted: float, sampler: str, seed: int, count: int, noise: float) -> float:
    """What the best trial of one search loses, without the noise."""
    experiment = experiments.parse(SPACE, "planted.yaml")
    space = search.make_space(experiment.search, {}, {})
    proposer = Proposer(
        space=space, by="val_accuracy", sampler=sampler, pruner="none", seed=seed, rounds=1
    )
    draw = rng.generator(seed, "planted")
    trials: list[Trial] = []
    for number in range(count):
        params = proposer.propose(number, trials).params
        value = 0.9 - lost(rate(params), planted) + noise * draw.standard_normal()
        trials.append(Trial(number=number, params=params, state="complete", value=value))
    return lost(rate(best(trials, "val_accuracy")[0].params), planted)


def rate(params: Mapping[str, object]) -> float:
    """The learning rate of a trial."""
    return float(str(params["train.lr"]))


def compare(
    count: int, seeds: int, noise: float = 0.0, say: Callable[[str], object] = print
) -> float:
    """One row per seed, and the p value of the sign test of TPE against random search.

    Compared are means over the planted problems. Both samplers begin with the same ten trials.
    """
    losses: dict[str, list[float]] = {"tpe": [], "random": []}
    say(f"accuracy lost against the planted learning rate, {count} trials, noise {noise:g}")
    say("| seed | tpe | random |")
    say("|---|---|---|")
    for seed in range(seeds):
        for sampler, means in losses.items():
            scores = [search_once(planted, sampler, seed, count, noise) for planted in PLANTED]
            means.append(fmean(scores))
        say(f"| {seed} | {losses['tpe'][-1]:.5f} | {losses['random'][-1]:.5f} |")
    pairs = list(zip(losses["tpe"], losses["random"], strict=True))
    wins, defeats = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    p = float(stats.binomtest(wins, wins + defeats, alternative="greater").pvalue)
    say(
        f"tpe is better on {wins} seeds, worse on {defeats}, equal on {seeds - wins - defeats}; "
        f"one-sided sign test p = {p:.4f}; mean {fmean(losses['tpe']):.5f} against "
        f"{fmean(losses['random']):.5f}"
    )
    return p


REAL = """
algorithm: fedavg
data: {num_clients: 10, val_fraction: 0.2}
model: {name: mlp}
train: {rounds: 10, sample_rate: 0.5}
engine: {kind: serial}
search: {train.lr: 'loguniform(0.0001, 10)'}
grid: {seed: [0, 1]}
"""


def real(count: int, say: Callable[[str], object] = print) -> None:
    """A search with real runs on the digits, and the default learning rate beside it."""
    from fedsim import run
    from fedsim.studies import execute
    from fedsim.studies import plan as plans

    experiment = replace(experiments.parse(REAL, "real.yaml"), trials=count)
    with tempfile.TemporaryDirectory() as folder:
        made = plans.make(experiment, {}, parallel=1)
        (tuning,) = execute.run(made, Path(folder, "search"), execute.RunOptions()).tunings
        plan, values = tuning.plan, []
        for seed in plan.seeds:
            config = plan.config({"train.lr": 0.01}, seed)
            done = run(config, Path(folder, f"default-{seed}"), progress=False)
            values.append(float(done.rounds["val_accuracy"].iloc[-1]))
        leader = best(tuning.ended, "val_accuracy")[0]
        states = [trial.state for trial in tuning.ended]
        say(
            f"digits, {count} trials ({states.count('pruned')} pruned): learning rate "
            f"{leader.params['train.lr']:.4g}, validation accuracy {leader.value:.4f}; with the "
            f"default 0.01 it is {fmean(values):.4f}"
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=25)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--noise", type=float, default=0.0, help="standard deviation of a value")
    parser.add_argument("--runs", action="store_true", help="also a small search with real runs")
    args = parser.parse_args()
    p = compare(args.trials, args.seeds, args.noise)
    if args.runs:
        real(args.trials)
    sys.exit(p >= 0.05)


if __name__ == "__main__":
    main()
