"""The study of docs/FEDERATIONS.md: attacks and robust rules, clocks, compression, privacy.

    python docs/study/federations.py grids GRIDS     the files for fedsim sweep
    python docs/study/federations.py make SWEEPS     docs/results.zip from the sweeps, then the page
    python docs/study/federations.py make            the page alone, from docs/results.zip
    python docs/study/federations.py curves SWEEPS   the curves of its figure into docs/results.zip

A grid is run by ``fedsim sweep GRIDS/NAME.yaml --out SWEEPS/NAME``. The archive has the scores of
all runs, federations/NAME.csv, from which every number of the page is computed, and the accuracy
by simulated seconds, federations/clocks_digits_curves.csv, of which make draws FIGURE.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import archive  # noqa: E402

from analysis.figures import style  # noqa: E402
from analysis.figures.grid import WIDTH, legend  # noqa: E402
from analysis.stats import Estimate, estimate  # noqa: E402

Settings = dict[str, Any]
PAGE = ROOT / "docs" / "FEDERATIONS.md"
FIGURE = ROOT / "docs" / "study" / "seconds.png"
CURVES = "federations/clocks_digits_curves.csv"
POINTS = 60
"""Points in time of a curve."""
BLOCK = re.compile(r"(<!-- table (\w+)((?: \S+=\S+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
PARTITIONS, SEEDS = list(range(5)), [0, 1]
ENGINE: Settings = {"kind": "serial", "checkpoint_every": 0}
MEAN: Settings = {"algorithm": "fedavg", "fedavg.weights": "uniform"}
RULES: dict[str, Settings] = {
    "fedavg": MEAN,
    "fedld": {"algorithm": "fedld"},
    "krum": {"algorithm": "krum"},
    "multikrum": {"algorithm": "multikrum"},
    "geometric_median": {"algorithm": "geometric_median"},
    "centered_clipping": {"algorithm": "centered_clipping", "centered_clipping.tau": 0.5},
    "mda": {"algorithm": "mda"},
    "coordinate_median": {"algorithm": "coordinate_median"},
    "trimmed_mean": {"algorithm": "trimmed_mean"},
    "bulyan": {"algorithm": "bulyan", "bulyan.f": 0.2},
    "nnm, krum": {"algorithm": "fedavg", "server": "nnm,krum"},
    "nnm, geometric_median": {"algorithm": "fedavg", "server": "nnm,geometric_median"},
    "nnm, trimmed_mean": {"algorithm": "fedavg", "server": "nnm,trimmed_mean"},
}
"""All take four of 20 clients to be faulty, as many as are; every client has the same weight."""
ATTACKS: dict[str, Settings] = {
    "none": {},
    "sign_flip": {"attack.name": "sign_flip", "attack.scale": 5},
    "label_flip": {"attack.name": "label_flip"},
    "alie": {"attack.name": "alie"},
    "ipm": {"attack.name": "ipm"},
    "min_max": {"attack.name": "min_max"},
}
DIGITS: Settings = {"name": "digits", "num_clients": 20}
CLOCK: Settings = {"samples_per_second": "lognormal(20, 1)"}
WAITING: dict[str, Settings] = {
    "synchronous": {"train.sample_rate": 0.2, "train.rounds": 60},
    "deadline, late clients dropped": {
        "train.sample_rate": 0.2, "train.rounds": 60, "clock.deadline": 3,
    },
    "deadline, partial work": {
        "train.sample_rate": 0.2, "train.rounds": 60, "clock.deadline": 3, "clock.late": "partial",
    },
    "FedBuff, buffer 5": {
        "train.sample_rate": 0.1, "train.rounds": 120, "clock.mode": "async",
        "async.concurrency": 10, "evaluation.every": 2,
    },
    "FedBuff, buffer 10, twice as many at a time": {
        "train.sample_rate": 0.2, "train.rounds": 60, "clock.mode": "async",
        "async.concurrency": 20,
    },
    "FedAsync": {
        "train.sample_rate": 0.2, "train.rounds": 600, "clock.mode": "async", "async.buffer": 1,
        "async.mixing": 0.5, "evaluation.every": 10,
    },
}  # fmt: skip
"""600 updates each, of 50 clients."""
COMPRESSORS: dict[str, Settings] = {
    "none": {},
    "top_k 10 %": {"compress.name": "top_k", "compress.fraction": 0.1},
    "top_k 1 %": {"compress.name": "top_k", "compress.fraction": 0.01},
    "top_k 1 %, EF21": {
        "compress.name": "top_k", "compress.fraction": 0.01, "compress.error_feedback": "ef21",
    },
    "top_k 1 %, no feedback": {
        "compress.name": "top_k", "compress.fraction": 0.01, "compress.error_feedback": "none",
    },
    "random_k 10 %": {"compress.name": "random_k", "compress.fraction": 0.1},
    "random_k 10 %, EF14": {
        "compress.name": "random_k", "compress.fraction": 0.1, "compress.error_feedback": "ef14",
    },
    "qsgd, 7 levels": {"compress.name": "qsgd", "compress.levels": 7},
    "qsgd, 1 level": {"compress.name": "qsgd", "compress.levels": 1},
    "power_sgd, rank 1": {"compress.name": "power_sgd", "compress.rank": 1},
    "sign": {"compress.name": "sign"},
    "sign, no feedback": {"compress.name": "sign", "compress.error_feedback": "none"},
}  # fmt: skip
EQUAL: Settings = {"server": "fedavg", "fedavg.weights": "uniform"}
METHODS: dict[str, Settings] = {
    "fedavg": MEAN,
    "fedprox": {"algorithm": "fedprox", "fedprox.mu": 0.1} | EQUAL,
    "scaffold": {"algorithm": "scaffold"},
    "fedld, clients' part": {"algorithm": "fedld"} | EQUAL,
}
USER: Settings = {"dp.level": "user", "dp.clip": 0.3, "dp.delta": 0.001}
NOISE: dict[str, Settings] = {
    "none": {},
    "clipping": USER | {"dp.noise_multiplier": 0},
    "z = 0.3": USER | {"dp.noise_multiplier": 0.3},
    "z = 1": USER | {"dp.noise_multiplier": 1},
    "z = 1 of 1000 a round": USER | {
        "dp.noise_multiplier": 1, "dp.noise_cohort": 1000, "dp.population": 100_000,
    },
}  # fmt: skip
CONTROLS: Settings = {"dp.clip_control": 1}
"""SCAFFOLD's, beside USER."""
PRIVATE = {
    f"{method}; {noise}": own | private | (CONTROLS if method == "scaffold" and private else {})
    for method, own in METHODS.items()
    for noise, private in NOISE.items()
}
FUNDUS: Settings = {
    "name": "folder", "dir": "data/fundus-sites", "image_size": 96, "val_fraction": 0.15,
    "partition": "dirichlet", "num_clients": 20, "alpha": 0.5,
}  # fmt: skip
LITE0: Settings = {
    "name": "lite0:normalised_as_imagenet",
    "weights": "weights/lite0.safetensors",
    "trainable": "head",
}
GRIDS: dict[str, Settings] = {
    "robust_digits": {
        "data": DIGITS,
        "model": {"name": "mlp"},
        "train": {"rounds": 15, "sample_rate": 1.0, "batch_size": 20, "lr": 0.1},
        "evaluation": {"every": 5},
        "engine": ENGINE,
        "grid": {"rule": RULES, "attack": ATTACKS, "data.alpha": [0.1, 1, 100]},
    },
    "robust_fundus": {
        "data": FUNDUS,
        "model": LITE0,
        "train": {"rounds": 20, "sample_rate": 1.0, "batch_size": 16, "lr": 0.003, "momentum": 0.9},
        "evaluation": {"every": 5},
        "engine": ENGINE | {"working_dir": "docs/study"},
        "grid": {"rule": RULES, "attack": ATTACKS},
    },
    "clocks_digits": {
        **MEAN,
        "data": DIGITS | {"num_clients": 50},
        "model": {"name": "mlp"},
        "train": {"batch_size": 10, "lr": 0.1},
        "clock": CLOCK,
        "evaluation": {"every": 1, "target_accuracy": 0.8},
        "engine": ENGINE,
        "grid": {"waiting": WAITING, "data.alpha": [0.3, 100]},
    },
    "compression_digits": {
        **MEAN,
        "data": DIGITS,
        "model": {"name": "mlp"},
        "train": {"rounds": 60, "sample_rate": 0.5, "batch_size": 20, "lr": 0.1},
        "evaluation": {"every": 1, "target_accuracy": 0.8},
        "engine": ENGINE,
        "grid": {"compressor": COMPRESSORS, "data.alpha": [0.1, 100]},
    },
    "privacy_digits": {
        "data": DIGITS | {"num_clients": 100},
        "model": {"name": "mlp"},
        "train": {
            "rounds": 40,
            "sample_rate": 0.2,
            "batch_size": 10,
            "lr": 0.1,
            "cohort": "poisson",
        },
        "evaluation": {"every": 5},
        "engine": ENGINE,
        "grid": {"row": PRIVATE, "data.alpha": [0.3, 100]},
    },
}


SCORES = (
    "rounds", "last10_test_accuracy", "last10_test_balanced_accuracy", "uplink_bytes",
    "simulated_seconds", "rounds_to_target", "simulated_seconds_to_target", "epsilon",
)  # fmt: skip
"""Columns of summary.csv that are archived."""


def write_grids(folder: Path) -> None:
    """The grids as files for ``fedsim sweep``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, settings in GRIDS.items():
        axes = {
            axis: [{row: s} for row, s in values.items()] if isinstance(values, dict) else values
            for axis, values in settings["grid"].items()
        }
        grid = settings | {"grid": axes | {"data.seed": PARTITIONS, "seed": SEEDS}}
        text = yaml.safe_dump(grid, sort_keys=False, default_flow_style=None, width=100)
        (folder / f"{name}.yaml").write_text(f"# Made by docs/study/federations.py\n{text}")


def scores(folder: Path) -> pd.DataFrame:
    """A row per run of a sweep: its place on the axes of the grid, and the scores of SCORES."""
    runs = pd.read_csv(folder / "summary.csv")
    axes = pd.DataFrame([dict(p.split("=", 1) for p in run.split(",")) for run in runs["run"]])
    return pd.concat([axes, runs[[score for score in SCORES if score in runs]]], axis=1)


def make(sweeps: Path) -> None:
    """Archives the scores of the sweeps that are there."""
    for name, grid in GRIDS.items():
        if not (sweeps / name).exists():
            continue
        runs = scores(sweeps / name)
        axes = [*grid["grid"].values(), PARTITIONS, SEEDS]
        if len(runs) != math.prod(map(len, axes)):
            sys.exit(f"{name}: {len(runs)} runs have finished, not all")
        archive.update({f"federations/{name}.csv": runs.to_csv(index=False, lineterminator="\n")})


def archive_curves(sweep: Path) -> None:
    """Archives mean and half-width of the accuracy by simulated seconds, by way of waiting.

    A run has the accuracy of its newest evaluation. The times are POINTS with equal ratios, from
    when all runs of a way have one to the end of the first that ends; units are partitions.
    """
    runs, made = scores(sweep).rename(columns={"data.seed": "partition"}), []
    runs["path"] = [sweep / run for run in pd.read_csv(sweep / "summary.csv")["run"]]
    for row, alpha in product(WAITING, GRIDS["clocks_digits"]["grid"]["data.alpha"]):
        own = runs[(runs["waiting"] == named(row)) & (runs["data.alpha"] == str(alpha))]
        known = [accuracies(path) for path in own["path"]]
        first, last = max(a.index[0] for a in known), min(a.index[-1] for a in known)
        times = np.geomspace(first, last, POINTS)
        newest = [a.to_numpy()[a.index.searchsorted(times, side="right") - 1] for a in known]
        by_partition = pd.DataFrame(newest).groupby(own["partition"].to_numpy()).mean()
        for second, column in zip(times, by_partition, strict=True):
            found = estimate(by_partition[column].tolist())
            made.append(
                (row, str(alpha), f"{second:.5g}", f"{found.mean:.5f}", f"{found.half:.5f}")
            )
    table = pd.DataFrame(made, columns=["waiting", "data.alpha", "second", "mean", "half"])
    archive.update({CURVES: table.to_csv(index=False, lineterminator="\n")})


def accuracies(run: Path) -> pd.Series[float]:
    """The test accuracy of a run, by simulated seconds since its start."""
    rounds = pd.read_csv(run / "rounds.csv")
    rounds.index = pd.Index(rounds["simulated_seconds"].cumsum(), name="second")
    return rounds["test_accuracy"].dropna()


def draw() -> None:
    """The accuracy by simulated seconds, a panel for each alpha, as FIGURE."""
    curves = archive.table(CURVES, dtype={"data.alpha": str})
    lines = style.lines(list(WAITING))
    with style.look():
        figure = Figure(figsize=(WIDTH, 3.9))
        places = figure.subplots(1, curves["data.alpha"].nunique(), sharey=True)
        for axes, (alpha, inside) in zip(places, curves.groupby("data.alpha"), strict=True):
            for row in WAITING:
                own = inside[inside["waiting"] == row]
                mean, half, look = 100 * own["mean"], 100 * own["half"], lines[row]
                axes.plot(own["second"], mean, color=look.colour, linestyle=look.dashes)
                low, high = mean - half, mean + half
                axes.fill_between(own["second"], low, high, color=look.colour, lw=0, alpha=0.08)
            axes.set_xscale("log")
            style.logarithmic(axes.xaxis)
            axes.set_xlabel("Simulated seconds")
            axes.set_title(f"alpha {alpha}", loc="left")
        places[0].set_ylabel("Test accuracy (%)")
        handles = [
            Line2D([], [], color=look.colour, linestyle=look.dashes) for look in lines.values()
        ]
        note = "Mean over five partitions of the data, band: 95 % t interval over the partitions"
        legend(figure, handles, list(lines), note)
    style.save(figure, FIGURE)


def over_partitions(values: pd.Series[float]) -> Estimate:
    """Mean and interval of values indexed by partition and seed, over the partitions' means."""
    return estimate(values.groupby(level="data.seed").mean().tolist())


def named(row: str) -> str:
    """A row of a grid as it stands in the names of runs."""
    return re.sub(r"[^\w.+-]", "_", row)


def of(runs: pd.DataFrame, axis: str, row: str, score: str) -> pd.Series[float]:
    """A score of the runs of a row, by partition and seed."""
    own = runs[runs[axis] == named(row)]
    return own.set_index(["data.seed", "seed"])[score]


def points(found: Estimate, sign: str = "") -> str:
    """``93.1 +- 0.4`` of shares."""
    mean, half = 100 * found.mean, 100 * found.half
    return f"{mean:{sign}.1f}\N{NO-BREAK SPACE}\N{PLUS-MINUS SIGN}\N{NO-BREAK SPACE}{half:.1f}"


def robust(runs: pd.DataFrame, score: str) -> list[list[str]]:
    """Rules x attacks: the score; and without an attack the difference from FedAvg."""
    clean = runs[runs["attack"] == "none"]
    mean = of(clean, "rule", "fedavg", score)
    table = [["rule", *ATTACKS, "price"]]
    for rule in RULES:
        cells = [
            points(over_partitions(of(runs[runs["attack"] == attack], "rule", rule, score)))
            for attack in ATTACKS
        ]
        price = over_partitions(of(clean, "rule", rule, score) - mean)
        table.append([rule, *cells, "" if rule == "fedavg" else points(price, "+")])
    return table


def clocks(runs: pd.DataFrame, score: str) -> list[list[str]]:
    """Ways of waiting: accuracy, simulated seconds in all and to the target accuracy."""
    table = [["way of waiting", "accuracy", "seconds", "seconds to 80 %", "synchronous / this"]]
    column = "simulated_seconds_to_target"
    synchronous = of(runs, "waiting", "synchronous", column)
    for row in WAITING:
        all_of_it = over_partitions(of(runs, "waiting", row, "simulated_seconds"))
        needed = of(runs, "waiting", row, column)
        table.append(
            [
                row,
                points(over_partitions(of(runs, "waiting", row, score))),
                f"{all_of_it.mean:.0f}",
                reached(needed, "{:.0f}"),
                factor(synchronous / needed) if row != "synchronous" else "",
            ]
        )
    return table


def compressed(runs: pd.DataFrame, score: str) -> list[list[str]]:
    """Compressors: accuracy, bytes in all and to the target accuracy."""
    table = [["compressor", "accuracy", "MB sent", "MB to 80 %", "none / this"]]
    runs = runs.assign(sent=runs["uplink_bytes"] / 1e6)
    runs["needed"] = runs["sent"] * runs["rounds_to_target"] / runs["rounds"]
    plain = of(runs, "compressor", "none", "needed")
    for row in COMPRESSORS:
        needed = of(runs, "compressor", row, "needed")
        table.append(
            [
                row,
                points(over_partitions(of(runs, "compressor", row, score))),
                f"{over_partitions(of(runs, 'compressor', row, 'sent')).mean:.3g}",
                reached(needed, "{:.2g}"),
                factor(plain / needed) if row != "none" else "",
            ]
        )
    return table


def private(runs: pd.DataFrame, score: str) -> list[list[str]]:
    """Methods x noise: the score."""
    table = [["method", *NOISE]]
    for method in METHODS:
        found = [over_partitions(of(runs, "row", f"{method}; {noise}", score)) for noise in NOISE]
        table.append([method, *map(points, found)])
    return table


def reached(values: pd.Series[float], form: str) -> str:
    """The mean where all runs reached the target, else how many did."""
    there = int(values.notna().sum())
    if there < len(values):
        return f"{there} of {len(values)} runs"
    return form.format(over_partitions(values).mean)


def factor(ratios: pd.Series[float]) -> str:
    """The geometric mean of ratios and its interval, where all runs reached the target."""
    if ratios.isna().any():
        return ""
    found = over_partitions(np.log(ratios))
    low, mean, high = (math.exp(x) for x in (found.low, found.mean, found.high))
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


TABLES: Mapping[str, Callable[[pd.DataFrame, str], list[list[str]]]] = {
    "robust_digits": robust,
    "robust_fundus": robust,
    "clocks_digits": clocks,
    "compression_digits": compressed,
    "privacy_digits": private,
}


def rendered(text: str) -> str:
    """The page with every table as it follows from the archive.

    ``<!-- table NAME AXIS=VALUE -->`` is followed by the table of the runs with that value.
    """

    def block(match: re.Match[str]) -> str:
        begin, name, where, end = match.groups()
        runs = archive.table(f"federations/{name}.csv", dtype={"data.alpha": str})
        for condition in where.split():
            axis, value = condition.split("=")
            runs = runs[runs[axis] == value]
        score = f"last10_test_{'balanced_' if name.endswith('fundus') else ''}accuracy"
        head, *rows = TABLES[name](runs, score)
        lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
        return f"{begin}\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{end}"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    command, *folders = sys.argv[1:]
    if command == "grids":
        write_grids(Path(folders[0]))
    elif command == "curves":
        archive_curves(Path(folders[0]) / "clocks_digits")
        draw()
    else:
        for folder in folders:
            make(Path(folder))
        PAGE.write_text(rendered(PAGE.read_text()))
        draw()
