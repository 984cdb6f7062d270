"""Keeps docs/leaderboard: its entries, and the page of their tables.

    python docs/leaderboard.py add TASK PACK --by WHO --candidates N    adds the entries of a pack
    python docs/leaderboard.py                                          the page alone

A task is a folder of docs/leaderboard with a task.yaml. A pack is a file of ``fedsim pack`` with
one entry for each label of its runs; of NAME.zip there are NAME.yaml, what is said of it and how it
was verified, and NAME.csv, a row per run. The page docs/leaderboard/index.md follows from these
files; a test compares it.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from analysis.ranks import ranked  # noqa: E402
from fedsim.cli.common import make_importable  # noqa: E402
from fedsim.config import experiments  # noqa: E402
from fedsim.core import files, machine  # noqa: E402
from fedsim.core.errors import ConfigError, FedsimError  # noqa: E402
from fedsim.core.plurals import counted  # noqa: E402
from fedsim.storage.run_dir import environment  # noqa: E402
from fedsim.studies import leaderboard, verify  # noqa: E402
from fedsim.studies.leaderboard import METRICS, Task, TaskRun  # noqa: E402
from fedsim.training.verify import Verification  # noqa: E402

FOLDER = DOCS / "leaderboard"
INTRO = """# Leaderboard

One table per task. Whatever is in it was packed and verified: rounds that a seed drew were done
again, and gave the same numbers. [How to submit an entry](../how-to/leaderboard.md). Made by
`python docs/leaderboard.py` from the files beside it; the CSV files have a row per run, with the
settings that the entry chose and the SHA-256 of the final model.

*Mean rank*: entries are ranked on each partition by balanced accuracy on the test part (the mean
over the evaluated rounds among the last ten, then over the training seeds), ties share their ranks;
the mean over the partitions orders the table. Brackets and "\N{PLUS-MINUS SIGN}" are 95 % intervals
of the t distribution over the partitions: of these images, and not corrected for the number of
entries: where intervals overlap, the order of two entries says nothing. *Candidates*: settings that
were tried on each partition, on its validation part. *Done again*: in how many of the entry's
finished runs rounds were done again. *Lacking*, a column only where an entry has such runs: those
that failed or diverged; on their partition the entry has the last rank, and it has no mean score.
"""
NONE = "\N{EN DASH}"
KEYS = {
    "by": str, "url": (str, type(None)), "candidates": int, "pack": (str, type(None)),
    "sha256": str, "verified": dict,
}  # fmt: skip
"""What the YAML file of a pack has. ``pack`` is a file beside it, an address, or nothing: then
whoever wants it asks."""
VERIFIED = ("date", "fedsim", "commit", "processor", "seed", "rounds", "runs", "how")
"""What it has of the verification; ``runs`` are the numbers of runs by label."""


class Pack(NamedTuple):
    """The entries of a pack.

    Args:
        path: of its YAML file.
        said: what that says, see :data:`KEYS`.
        runs: a row per run, as :func:`rows` gives them.
    """

    path: Path
    said: Mapping[str, Any]
    runs: pd.DataFrame


def rows(runs: Sequence[TaskRun]) -> pd.DataFrame:
    """A row per run, by label, partition and seed."""
    return pd.DataFrame(
        {
            "label": run.label, "data.seed": run.partition, "seed": run.seed, "state": run.state,
            **run.scores, "model": run.model, "data": run.data,
            "settings": " ".join(f"{key}={value}" for key, value in run.settings.items()),
        }
        for run in sorted(runs, key=lambda run: (run.label, run.partition, run.seed))
    )  # fmt: skip


def add(
    folder: Path, file: Path, *, by: str, candidates: int, url: str | None = None,
    pack: str | None = None, sample: int = verify.SAMPLE, rounds: int | Literal["all"] = 3,
    seed: int | None = None, data_dir: str | None = None,
) -> None:  # fmt: skip
    """Checks and verifies a pack, and writes its files beside a task.

    Args:
        folder: of the task.
        file: the pack.
        by: who submits it.
        candidates: settings that were tried on each partition.
        url: of a paper or of the code.
        pack: address of the pack, where it is not in the folder.
        sample: runs that are drawn, of all in the pack.
        rounds: of each of them that are drawn.
        seed: of the draw; None: a new one.
        data_dir: where the data are here.

    Raises:
        ConfigError: the runs are not entries of the task, no run of one is drawn, or one differs.
        NotPossible: rounds cannot be done again here.
    """
    task = leaderboard.load(folder / "task.yaml")
    make_importable(task.settings)
    found: list[Verification] = []
    with verify.drawn(file, sample=sample, seed=seed) as wanted:
        runs, wrong = leaderboard.check(wanted.folder, task, leaderboard.code(task))
        if wrong:
            raise ConfigError(
                f"{file}: {wrong[0]}" + f" (and {len(wrong) - 1} more)" * bool(wrong[1:])
            )
        labels = {run.name: run.label for run in runs}
        again = dict.fromkeys(sorted(labels.values()), 0)
        drawn = {labels[run.relative_to(wanted.folder).as_posix()] for run in wanted.runs}
        for label in sorted({run.label for run in runs if run.model} - drawn):
            raise ConfigError(
                f"--sample {sample}: no run of {label} is among those drawn, and every entry of "
                f"the leaderboard is verified; {len(wanted.finished)} runs are finished"
            )
        for each in wanted.verified(rounds=rounds, data_dir=data_dir):
            name = each.run.relative_to(wanted.folder).as_posix()
            if each.differences:
                raise ConfigError(f"{file}: {name}: {each.differences[0]}")
            found.append(each)
            again[labels[name]] += 1
        seed = wanted.seed
    made = environment()
    here = machine.processor()
    others = sorted({each.others for each in found if each.others})
    largest = max(each.largest for each in found)
    if file.resolve().parent == folder.resolve():
        pack = file.name
    how = f"consistent within {largest:.2g}, {'; '.join(others)}" if others else "byte for byte"
    said = {
        "by": by, "url": url, "candidates": candidates, "pack": pack, "sha256": files.sha256(file),
        "verified": {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "fedsim": made["fedsim"], "commit": made["git_commit"],
            "processor": f"{here['model']}, {here['kernels']}", "seed": seed, "rounds": rounds,
            "runs": again,
            "how": how,
        },
    }  # fmt: skip
    text = rows(runs).to_csv(index=False, lineterminator="\n")
    (folder / f"{file.stem}.csv").write_text(text, encoding="utf-8")
    (folder / f"{file.stem}.yaml").write_text(experiments.as_yaml(said), encoding="utf-8")


def read(path: Path, task: Task) -> Pack:
    """A pack of a task, from its YAML file and the CSV file beside it.

    Raises:
        ConfigError: a key, a column or a run is missing or not of the task, or the pack in the
            folder is another file.
    """
    with experiments.one_error(str(path)):
        said = experiments.yaml.safe_load(experiments.text_of(path))
    for key, kind in KEYS.items():
        if not isinstance(said, dict) or key not in said or not isinstance(said[key], kind):
            raise ConfigError(f"{path}: {key}: must be there, and {kind} as in docs/leaderboard.py")
    for key in VERIFIED:
        if key not in said["verified"]:
            raise ConfigError(f"{path}: verified.{key}: is missing; it is written by 'add'")
    for key in said:
        if key not in KEYS:
            raise ConfigError(f"{path}: {key}: unknown; allowed are {', '.join(KEYS)}")
    file = path.with_name(str(said["pack"]))
    if said["pack"] is not None and "/" not in said["pack"]:
        if not file.is_file():
            raise ConfigError(f"{path}: pack: {file.name} is not beside it; or give its address")
        if (digest := files.sha256(file)) != said["sha256"]:
            raise ConfigError(f"{path}: sha256: is not that of {file.name}: {digest}")
    table = path.with_suffix(".csv")
    runs = pd.read_csv(table, dtype=str, keep_default_na=False)
    for column in ("data.seed", "seed"):
        runs[column] = runs[column].astype(int)
    for metric in METRICS:  # float reads all digits
        runs[metric] = [float(cell) if cell else math.nan for cell in runs[metric]]
    for label, own in runs.groupby("label"):
        there = sorted(zip(own["data.seed"], own["seed"], strict=True))
        if there != sorted(task.runs):
            raise ConfigError(
                f"{table}: {label}: has the runs (data.seed, seed) {there}, the task has "
                f"{sorted(task.runs)}"
            )
        if label not in said["verified"]["runs"]:
            raise ConfigError(f"{path}: verified.runs: lacks {label}")
    return Pack(path=path, said=said, runs=runs)


def packs(folder: Path, task: Task) -> list[Pack]:
    """The packs of a task, by name.

    Raises:
        ConfigError: one cannot be read, or was done on other data than another.
    """
    paths = sorted(path for path in folder.glob("*.yaml") if path.name != "task.yaml")
    known, first = [read(path, task) for path in paths], dict[int, tuple[str, str]]()
    for pack in known:
        table = pack.path.with_suffix(".csv")
        for partition, data in zip(pack.runs["data.seed"], pack.runs["data"], strict=True):
            same, other = first.setdefault(partition, (data, table.name)) if data else ("", "")
            if data != same:
                raise ConfigError(
                    f"{table}: partition {partition}: data {data}, not {same} as in {other}"
                )
    return known


def table(known: Sequence[Pack]) -> pd.DataFrame:
    """A row per entry, the best mean rank first.

    Columns: ``pack`` its number, ``label``, ``place``, ``rank`` and its interval (``low``,
    ``high``), of each metric mean and half width of the interval (``_ci95``), ``lacking`` runs. The
    mean score of an entry that lacks a run is NaN.
    """
    values, lacking = dict[str, dict[tuple[int, str], pd.Series]](), {}
    for number, pack in enumerate(known):
        for label, own in pack.runs.groupby("label"):
            key = (number, str(label))
            lacking[key] = int((own[METRICS[0]].isna()).sum())
            for metric in METRICS:
                seeds = own.pivot(index="data.seed", columns="seed", values=metric)
                values.setdefault(metric, {})[key] = seeds.mean(axis=1, skipna=False)
    scores = {metric: pd.DataFrame(own) for metric, own in values.items()}
    first = scores[METRICS[0]]
    ranks = ranked(first.to_numpy(float))
    lines = []
    for (number, label), own in zip(first, ranks.T, strict=True):
        key, half = (number, label), _half(own)
        line = {"pack": number, "label": label, "rank": own.mean(), "lacking": lacking[key]}
        line |= {"low": max(own.mean() - half, 1), "high": min(own.mean() + half, len(ranks.T))}
        for metric in METRICS:
            each = scores[metric][key].to_numpy(float)
            line |= {metric: each.mean(), f"{metric}_ci95": _half(each)}
        lines.append(line)
    made = pd.DataFrame(lines).sort_values(
        ["rank", METRICS[0], "label"], ascending=[True, False, True], ignore_index=True
    )
    made.insert(2, "place", made["rank"].round(9).rank(method="min").astype(int))
    return made


def _half(values: np.ndarray) -> float:
    """Half the width of the 95 % t interval of the mean of values (n,); NaN where n is 1."""
    n = len(values)
    if n < 2:
        return math.nan
    return float(stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / math.sqrt(n))


def page(folder: Path) -> str:
    """The text of index.md."""
    lines = [INTRO]
    for file in sorted(folder.glob("*/task.yaml")):
        lines += section(leaderboard.load(file))
    return "\n".join(lines).rstrip("\n") + "\n"


def section(task: Task) -> list[str]:
    """A task: what it is, its entries, their packs."""
    folder = task.path.parent
    partitions, seeds = (sorted({run[i] for run in task.runs}) for i in (0, 1))
    listed = [_numbers(each) for each in (partitions, seeds)]
    known = packs(folder, task)
    lines = [
        f"## {task.title}", "",
        f"Settings: [{folder.name}/task.yaml]({folder.name}/task.yaml); partitions (`data.seed`) "
        f"{listed[0]}, training seeds {listed[1]}.", "",
    ]  # fmt: skip
    if not known:
        return [*lines, "No entry yet.", ""]
    made = table(known)
    with_lacking = bool(made["lacking"].any())
    heads = ["Place", "Entry", "By", "Mean rank", "Balanced accuracy (%)", "Accuracy (%)",
             "Candidates", *["Lacking"] * with_lacking, "Done again"]  # fmt: skip
    cells = []
    for row in made.to_dict("records"):
        said = known[row["pack"]].said
        url, again = said["url"], said["verified"]["runs"][row["label"]]
        cells.append([
            str(row["place"]), f"[{row['label']}]({url})" if url else row["label"], said["by"],
            _interval(row), *(_percent(row, metric) for metric in METRICS),
            str(said["candidates"]), *[str(row["lacking"])] * with_lacking,
            f"{again} of {len(task.runs) - row['lacking']}",
        ])  # fmt: skip
    lines += [*markdown(heads, cells, words=3), ""]
    return [*lines, *markdown(["Pack", "Verified", "SHA-256"], map(_pack, known)), ""]


def _numbers(values: Sequence[int]) -> str:
    """``20 to 29`` for consecutive numbers, from three on; else all of them."""
    first, last = values[0], values[-1]
    if len(values) > 2 and list(values) == list(range(first, last + 1)):
        return f"{first} to {last}"
    return ", ".join(map(str, values))


def _interval(row: Mapping[str, Any]) -> str:
    low, high = row["low"], row["high"]
    return f"{row['rank']:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low == low else "")


def _percent(row: Mapping[str, Any], metric: str) -> str:
    """Mean and half width of its interval, in percent."""
    mean, half = 100 * row[metric], 100 * row[f"{metric}_ci95"]
    if mean != mean:
        return NONE
    return f"{mean:.2f}" + (f" \N{PLUS-MINUS SIGN} {half:.2f}" if half == half else "")


def _pack(pack: Pack) -> list[str]:
    """The cells of a pack."""
    folder, said, how = pack.path.parent.name, pack.said, pack.said["verified"]
    where = said["pack"]
    name = "on request" if where is None else where.rpartition("/")[2]
    link = where if where is None or "/" in where else f"{folder}/{where}"
    scores = f"[scores]({folder}/{pack.path.stem}.csv)"
    rounds = "all rounds" if how["rounds"] == "all" else counted(how["rounds"], "round")
    runs = counted(sum(how["runs"].values()), "run")
    commit = f" ({how['commit'][:7]})" if how["commit"] else ""
    return [
        (name if link is None else f"[{name}]({link})") + f", {scores}",
        f"{rounds} of {runs} of {len(pack.runs)}, seed {how['seed']}, {how['how']}; {how['date']}, "
        f"fedsim {how['fedsim']}{commit}, {how['processor']}",
        f"`{said['sha256']}`",
    ]  # fmt: skip


def markdown(heads: Sequence[str], cells: Any, words: int | None = None) -> list[str]:
    """A table of Markdown, of which the first ``words`` columns (None: all) are text."""
    count = len(heads) if words is None else words
    every = [heads, ["---"] * count + ["---:"] * (len(heads) - count), *cells]
    return [f"| {' | '.join(each.replace('|', '/') for each in row)} |" for row in every]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="docs/leaderboard: entries and page")
    adding = parser.add_subparsers(dest="command").add_parser("add", help="the entries of a pack")
    adding.add_argument("task", help="folder of docs/leaderboard")
    adding.add_argument("file", metavar="PACK", type=Path, help="file of 'fedsim pack'")
    adding.add_argument("--by", required=True, help="who submits it")
    adding.add_argument("--candidates", required=True, type=int, help="tried on each partition")
    adding.add_argument("--url", help="of a paper or of the code")
    adding.add_argument("--pack", help="address of the pack, where it is not beside the task")
    adding.add_argument("--sample", type=int, default=verify.SAMPLE, help="runs that are drawn")
    adding.add_argument("--rounds", default=3, help="of each that are drawn, or all",
                        type=lambda text: text if text == "all" else int(text))  # fmt: skip
    adding.add_argument("--seed", type=int, help="of the draw; unset: a new one")
    adding.add_argument("--data-dir", help="where the data are here")
    given = vars(parser.parse_args(arguments))
    try:
        if given.pop("command") == "add":
            add(FOLDER / given.pop("task"), given.pop("file"), **given)
        (FOLDER / "index.md").write_text(page(FOLDER), encoding="utf-8")
    except FedsimError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
