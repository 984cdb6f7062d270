"""Collects the tables of the study of PROTOCOL.md, part 9, in docs/results.zip.

    python docs/study/collect.py STUDIES              every block that is there
    python docs/study/collect.py STUDIES BLOCK ...    these blocks

STUDIES has a folder per block, as the commands of part 8 make it. What was planned is read from the
block's YAML file beside this one: a run that is missing is a row, too. Where the range of a search
was widened, the folder of the first search is STUDIES/BLOCK_first. Printed are the runs by status,
and of how many choices of each searched key no candidate lies beyond.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

import archive  # noqa: E402

from analysis import AnalysisError  # noqa: E402
from analysis.files import csv_text, read_env, read_table  # noqa: E402
from analysis.scores import TOLERANCE  # noqa: E402
from fedsim.config import experiments  # noqa: E402
from fedsim.config.experiments import Experiment  # noqa: E402
from fedsim.core.errors import FedsimError  # noqa: E402
from fedsim.storage import status, tables, trials  # noqa: E402
from fedsim.storage.trials import Trial  # noqa: E402
from fedsim.studies import sweep  # noqa: E402

PROTOCOL, FILES = HERE / "PROTOCOL.md", HERE
TAILS, FIRST = "tails_", "_first"
COUNTED = ("train.lr", "fedavgm.eta")
"""Keys whose ranges are widened where more choices than twice by chance are at an edge."""
DIVERGED = re.compile("NaN or infinite|too large to be added")
"""What failure.json and trials.jsonl say of a run that diverged."""
SCORES = ("accuracy", "balanced_accuracy", "auc")
LOSSES = ("shift_loss", "aggregation_loss", "local_loss", "global_loss")
TOTALS = ("uplink_bytes", "downlink_bytes", "simulated_seconds")
CLIENTS = {
    "client_mean": "client_test_accuracy",
    "client_p10": "client_accuracy_p10",
    "client_worst": "client_accuracy_worst",
}
"""Columns of summary.csv, of the clients' own test parts where they have some."""
RUNS = (
    *("method", "data_seed", "seed", "alpha", "lr", "status"),
    *("classes", "train_samples", "test_samples", "test_drawn"),
    *(*SCORES, "collapsed", *LOSSES, *TOTALS, *CLIENTS, "path", "commit"),
)
CURVES = ("method", "data_seed", "seed", "round", "accuracy", "balanced_accuracy", *TOTALS)
TRIALS = ("val_balanced_accuracy", "val_accuracy", "balanced_accuracy", "accuracy")
Row = dict[str, Any]


class Planned(NamedTuple):
    """A run of a comparison: method, data_seed, seed, alpha, lr; where it is; how it is scored."""

    unit: Row
    path: Path
    take: str


def collect(studies: Path, block: str) -> dict[str, pd.DataFrame]:
    """The tables of a block, by their names in the archive.

    Raises:
        FedsimError, AnalysisError, ValueError: the block is not as it was planned, or a file
            cannot be read.
    """
    runs = planned(studies, block)
    made = {"": of_runs(runs, studies)}
    made["_curves"] = frame((row for run in runs for row in curve(run)), CURVES)
    study = study_of(block)
    if study is not None and not block.startswith(TAILS):
        made["_trials"] = of_searches(studies, block, study, runs[0].take)
    return {f"protocol/{block}{name}.csv": table for name, table in made.items()}


def frame(rows: Iterator[Row] | Sequence[Row], columns: Sequence[str]) -> pd.DataFrame:
    """A table whose cells are as they were given."""
    return pd.DataFrame(list(rows), columns=list(columns), dtype=object)


def file_of(block: str) -> Path:
    """The YAML file that plans a block."""
    return FILES / f"{block.removeprefix(TAILS)}.yaml"


def study_of(block: str) -> Experiment | None:
    """The file of a block that is a study, or the tails of one; None of a sweep."""
    path = file_of(block)
    if "\nmethods:" not in path.read_text(encoding="utf-8"):
        return None
    return experiments.read(path)


def planned(studies: Path, block: str) -> list[Planned]:
    """The runs of the comparison, those of methods without a choice last.

    Raises:
        ValueError: the file of the block has not all seeds, or not a run of comparison.yaml.
    """
    study, folder, source = study_of(block), studies / block, file_of(block)
    if study is not None:
        source = studies / block.removeprefix(TAILS) / "comparison.yaml"
        folder = folder if block.startswith(TAILS) else folder / "runs"
    runs = []
    for run in sweep.expand(sweep.load(str(source)), {}, build=False):
        config = run.config
        unit: Row = {"method": config.label, "data_seed": config.data.seed, "seed": config.seed}
        unit["alpha"] = config.data.alpha if config.data.partition == "dirichlet" else None
        take = "last10" if config.model.trainable == "head" else "final"
        runs.append(Planned(unit | {"lr": config.train.lr}, folder / run.name, take))
    if study is None:
        return runs
    if isinstance(study.seeds, int):
        raise ValueError(f"{file_of(block)}: seeds is {study.seeds}; must be a list of seeds")
    wanted: list[Row] = [
        {"method": method.label, "data_seed": part.settings["data.seed"].value, "seed": seed}
        for part in study.partitions
        for method in study.methods
        for seed in study.seeds
    ]
    there = [{key: run.unit[key] for key in wanted[0]} for run in runs]
    for unit in there:
        if unit not in wanted:
            raise ValueError(f"{source}: {unit} is not in {file_of(block)}")
    return runs + [
        runs[0]._replace(unit=runs[0].unit | unit | {"lr": None}, path=folder / "without-a-choice")
        for unit in wanted
        if unit not in there
    ]


def of_runs(runs: Sequence[Planned], studies: Path) -> pd.DataFrame:
    """BLOCK.csv; what belongs to a partition is in the rows of its missing runs, too."""
    parts: dict[tuple[int, float | None], tuple[int, frozenset[int]]] = {}
    for run in runs:
        key = run.unit["data_seed"], run.unit["alpha"]
        if key not in parts and (run.path / "split.csv").is_file():
            parts[key] = samples(run.path / "split.csv")
    drawn = int(len({test for _, test in parts.values()}) > 1)
    rows = [row_of(run, studies) | {"test_drawn": drawn} for run in runs]
    classes = [row["classes"] for row in rows if "classes" in row]
    for run, row in zip(runs, rows, strict=True):
        row["classes"] = classes[0] if classes else None
        key = run.unit["data_seed"], run.unit["alpha"]
        if key in parts:
            train, test = parts[key]
            row |= {"train_samples": train, "test_samples": len(test)}
        if row["status"] == "finished":
            row["collapsed"] = int(row["balanced_accuracy"] <= 1 / classes[0] + TOLERANCE)
    return frame(rows, RUNS)


def samples(path: Path) -> tuple[int, frozenset[int]]:
    """The number of training samples of a split.csv, and which its common test samples are."""
    split = read_table(path, numbers=("sample",), texts=("part",))
    test = split["sample"][split["part"] == "test"]
    return int((split["part"] == "train").sum()), frozenset(test.astype(int))


def row_of(run: Planned, studies: Path) -> Row:
    """The row of a run, without what belongs to its block and its partition."""
    path = run.path
    row = run.unit | {"status": status_of(path), "path": path.relative_to(studies).as_posix()}
    if (path / "env.json").is_file():
        env = read_env(path)
        row |= {"classes": len(env["classes"]), "commit": env.get("git_commit")}
    if row["status"] != "finished":
        return row
    (summary,) = tables.read(path / "summary.csv")
    lr = tables.number(summary["train.lr"])
    if lr != run.unit["lr"]:
        raise ValueError(f"{path}/summary.csv: train.lr is {lr}, planned was {run.unit['lr']}")
    row |= {score: tables.number(summary[f"{run.take}_test_{score}"]) for score in SCORES}
    row |= {total: number(summary[total]) for total in TOTALS}
    if summary["client_accuracy_p10"]:
        row |= {key: tables.number(summary[name]) for key, name in CLIENTS.items()}
    if (path / "decomposition.csv").is_file():
        last = tables.read(path / "decomposition.csv")[-1]
        row |= {loss: tables.number(last[loss]) for loss in LOSSES}
    return row


def status_of(path: Path) -> str:
    """finished, diverged or failed, which a run is that was never begun, too."""
    if (path / "summary.csv").is_file():
        return "finished"
    return "diverged" if DIVERGED.search(status.failure(path) or "") else "failed"


def number(text: str) -> int | float | None:
    """A cell as a number, a whole one where it is written so."""
    return int(text) if text.isdigit() else tables.number(text)


def evaluated(path: Path) -> list[dict[str, str]]:
    """The rows of a run's rounds.csv with the test scores of the global model."""
    return [row for row in tables.rounds(path) if row["test_accuracy"]]


def curve(run: Planned) -> Iterator[Row]:
    """The rows of BLOCK_curves.csv of a run: its evaluated rounds, bytes and seconds summed up."""
    sums: dict[str, int | float] = dict.fromkeys(TOTALS, 0)
    for row in tables.rounds(run.path):
        known = {total: number(row[total]) for total in TOTALS}
        sums = {total: sums[total] + value for total, value in known.items() if value is not None}
        if row["test_accuracy"]:
            scores = {s: tables.number(row[f"test_{s}"]) for s in ("accuracy", "balanced_accuracy")}
            yield run.unit | {"round": int(row["round"])} | scores | sums


def of_searches(studies: Path, block: str, study: Experiment, take: str) -> pd.DataFrame:
    """BLOCK_trials.csv: the first search, if the range was widened, and the one that is used."""
    folders = [path for path in (studies / f"{block}{FIRST}", studies / block) if path.is_dir()]
    rows = [
        row | {"search": place}
        for place, folder in enumerate(folders, start=1)
        for row in candidates(folder, study, take)
    ]
    fixed = ("method", "data_seed", "trial", "state")
    last = (*TRIALS, "chosen", "at_edge", "search")
    keys = dict.fromkeys(key for row in rows for key in row if key not in (*fixed, *last))
    return frame(rows, (*fixed, *keys, *last))


def candidates(folder: Path, study: Experiment, take: str) -> Iterator[Row]:
    """The candidates of all searches of a study.

    Raises:
        ValueError: a search has not ended, or its choice is not that of chosen.csv.
    """
    chosen = {(row["method"], row["partition"]): row for row in tables.read(folder / "chosen.csv")}
    for part in study.partitions:
        for method in study.methods:
            where = folder / "tuning" / sweep.plain(f"{method.label}+{part.label}")
            begun, ended = trials.read_study(where), trials.read(where)
            count = (study.trials or experiments.TRIALS) if begun is None else begun["trials"]
            if begun is None or len(ended) != count:
                raise ValueError(f"{where}: {len(ended)} of {count} trials have ended")
            rows = [candidate(where, trial, begun, take) for trial in ended]
            for row in rows:
                row["at_edge"] = "; ".join(edges(row, rows, begun["search"]))
            best = choice(rows, begun["by"])
            said = chosen.get((method.label, part.label), {}).get("trial", "")
            if said != ("" if best is None else str(best)):
                raise ValueError(f"{folder}/chosen.csv: trial {said} of {where}, should be {best}")
            head = {"method": method.label, "data_seed": part.settings["data.seed"].value}
            yield from (head | row | {"chosen": int(row["trial"] == best)} for row in rows)


def choice(rows: Sequence[Row], by: str) -> int | None:
    """The complete candidate with the highest value after the last round, the first of equals."""
    complete = [row for row in rows if row["state"] == "complete"]
    best = max(complete, key=lambda row: (row[by], -row["trial"]), default=None)
    return None if best is None else int(best["trial"])


def candidate(where: Path, trial: Trial, begun: Mapping[str, Any], take: str) -> Row:
    """The row of a candidate; scores are means over the training seeds of the search."""
    row = {"trial": trial.number, "state": trial.state, **trial.params}
    if trial.state != "complete":
        diverged = DIVERGED.search(trial.error or "")
        return row | {"state": "diverged" if diverged else trial.state}
    runs = [evaluated(where / trial.folder / f"seed={seed}") for seed in begun["seeds"]]
    for name in ("val_balanced_accuracy", "val_accuracy"):
        row[name] = fmean(float(rounds[-1][name]) for rounds in runs)
    for name in ("balanced_accuracy", "accuracy"):
        row[name] = fmean(scored(rounds, f"test_{name}", take) for rounds in runs)
    return row


def scored(rounds: Sequence[Mapping[str, str]], column: str, take: str) -> float:
    """The score of a run from its evaluated rounds, the last of which is its last round."""
    first = int(rounds[-1]["round"]) - (10 if take == "last10" else 1)
    return fmean(float(row[column]) for row in rounds if int(row["round"]) > first)


def edges(row: Row, rows: Sequence[Row], keys: Iterable[str]) -> list[str]:
    """The keys, as in ``train.lr low``, beyond whose value no candidate of the search lies."""
    ends = {key: sorted(each[key] for each in rows) for key in keys}
    sides = (("low", 0), ("high", -1))
    return [f"{k} {side}" for k, end in ends.items() for side, at in sides if row[k] == end[at]]


def at_edges(table: pd.DataFrame) -> pd.DataFrame:
    """The choices of each search by key: how many, and how many at either edge.

    A range is widened where a side has more than 2 / candidates, twice as many as by chance.
    """
    rows = []
    fixed = {"method", "data_seed", "trial", "state", *TRIALS, "chosen", "at_edge", "search"}
    for place, own in table.groupby("search"):
        chance = 1 / own.groupby(["method", "data_seed"]).size().min()
        chosen = own[own["chosen"] == 1]
        for key in (column for column in table if column not in fixed):
            there = chosen[chosen[key].notna()]
            sides = [
                sum(f"{key} {side}" in cell.split("; ") for cell in there["at_edge"])
                for side in ("low", "high")
            ]
            widen = key in COUNTED and max(sides) > 2 * chance * len(there)
            rows.append([place, key, len(there), *sides, "yes" if widen else ""])
    return pd.DataFrame(rows, columns=["search", "key", "choices", "low", "high", "widen"])


def deviations(page: str) -> pd.DataFrame:
    """The table of part 10 of PROTOCOL.md, without the row that stands for none."""
    lines = page.partition("\n## 10. Deviations\n")[2].splitlines()
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
        if line.startswith("|")
    ]
    head, _, *body = rows
    return pd.DataFrame([row for row in body if row[0] != "–"], columns=head)  # noqa: RUF001


def main(studies: Path, blocks: Sequence[str]) -> None:
    """Stores the tables of the blocks and the deviations, and says what they hold."""
    there = [path.stem for path in sorted(FILES.glob("*.yaml"))]
    there = [name for plan in there for name in (plan, f"{TAILS}{plan}")]
    for block in blocks or [name for name in there if (studies / name).is_dir()]:
        if block not in there:
            sys.exit(f"{block}: is no block; known: {', '.join(there)}")
        try:
            made = collect(studies, block)
        except (FedsimError, AnalysisError, ValueError, OSError) as error:
            sys.exit(str(error))
        archive.update({name: csv_text(table) for name, table in made.items()})
        said = made[f"protocol/{block}.csv"]["status"].value_counts()
        print(f"{block}: {', '.join(f'{n} {word}' for word, n in said.items())}")  # noqa: T201
        if f"protocol/{block}_trials.csv" in made:
            print(at_edges(made[f"protocol/{block}_trials.csv"]).to_string(index=False))  # noqa: T201
    departed = deviations(PROTOCOL.read_text(encoding="utf-8"))
    archive.update({"protocol/deviations.csv": csv_text(departed)})


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
