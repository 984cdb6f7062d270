"""Run directories that were damaged, edited or mixed up, for every command that reads them."""

from __future__ import annotations

import io
import itertools
import math
import random
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedsim
from fedsim.core.errors import Interrupted
from tests.fuzz.harness import Case, check, parts, tried, workplace
from tests.fuzz.harness import fedsim as command
from tests.sampling import marked_beside
from tests.unit.analysis.run_files import run_of

pytestmark = pytest.mark.integration

CONFIG = {
    "algorithm": "scaffold",
    "data": {"num_clients": 4},
    "train": {"rounds": 4, "sample_rate": 0.5},
    "evaluation": {"decompose_every": 1, "clients_every": 1, "cosines": True},
    "engine": {"kind": "serial"},
}


class Interrupting(fedsim.Callback):
    """Ends a run as Ctrl-C does."""

    def on_round_end(self, round, rows):
        if round == 2:
            raise Interrupted(signal.SIGINT)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was interrupted after two rounds."""
    path = tmp_path_factory.mktemp("runs") / "interrupted"
    with pytest.raises(Interrupted):
        fedsim.run(fedsim.RunConfig(**CONFIG), path, callbacks=[Interrupting()])
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run."""
    path = tmp_path_factory.mktemp("runs") / "finished"
    config = CONFIG | {"train": {"rounds": 2, "sample_rate": 0.5}}
    fedsim.run(fedsim.RunConfig(**config), path)
    return path


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def noise(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(500))


def flipped(path: Path) -> None:
    """One bit in the middle."""
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)


def words(path: Path) -> None:
    path.write_text("just words\n")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def gone(path: Path) -> None:
    path.unlink()


def a_link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def null_bytes(path: Path) -> None:
    path.write_bytes(b"\0" * 300)


DAMAGES: tuple[Callable[[Path], None], ...] = (
    *(emptied, halved, noise, flipped, words, a_folder, gone, a_link_to_nowhere, null_bytes),
)


def copied(run: Path, name: str, damage: Callable[[Path], None]) -> Callable[[Path], object]:
    """Makes a copy of a run, with damage to the file of that name."""

    def make(path: Path) -> None:
        shutil.copytree(run, path)
        damage(path / name)

    return make


def files_of(run: Path) -> list[str]:
    return sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file())


READ_LAST = ("timings.csv", "errors.csv")
"""Tables that are read when a run ends, after it has gone on."""
CERTAIN = ("config.yaml", "env.json")
HARMLESS = (gone, flipped, halved, a_link_to_nowhere)
"""Damages after which a run may still be resumed; half of a config.yaml
may say all that is not a default."""


def resuming(run: Path) -> list[tuple[str, Callable[[Path], None]]]:
    """Every damage of the settings, and two of each other file."""
    draw = random.Random(0)
    others = [name for name in files_of(run) if name not in (*CERTAIN, *READ_LAST, ".lock")]
    contents = [damage for damage in DAMAGES if damage is not a_folder]
    return [(name, damage) for name in CERTAIN for damage in DAMAGES] + [
        (name, damage) for name in others for damage in draw.sample(contents, 2)
    ]


@pytest.mark.parametrize("number", parts(5))
def test_resume(number: int, interrupted: Path, tmp_path: Path) -> None:
    tried(
        (
            Case(
                f"{damage.__name__} {name}",
                "resume run --engine serial",  # which half of a config.yaml may not say
                status=2 if name in CERTAIN and damage not in HARMLESS else (0, 1, 2),
                files={"run": copied(interrupted, name, damage)},
            )
            for name, damage in resuming(interrupted)[number::5]
        ),
        tmp_path,
    )


READERS = ("table run", "runs run", "show run", "show run run")
READERS += ("predict run --out p.csv", "resume run", "curves run --out c.png")
READ = ("summary.csv", "rounds.csv", "config.yaml", "env.json", "classes.csv", "partition.csv")
READ += ("evaluations.csv", "decomposition.csv", "model.safetensors")


def reading(run: Path) -> list[Case]:
    """Every damage of each file, for two commands that read it."""
    draws = {name: random.Random(name) for name in READ}
    return [
        Case(
            f"{damage.__name__} {name}, {line}",
            line,
            status=(0, 1, 2),
            files={"run": copied(run, name, damage)},
        )
        for name in READ
        for damage in DAMAGES
        for line in draws[name].sample(READERS, 2)
    ]


@pytest.mark.parametrize("number", parts(7))
def test_reading(number: int, finished: Path, tmp_path: Path) -> None:
    tried(reading(finished)[number::7], tmp_path)


@pytest.mark.slow
def test_in_use(finished: Path, interrupted: Path, tmp_path: Path) -> None:
    """Nothing is written over a run, whoever asks."""
    runs = {"run": copied(finished, "env.json", lambda path: None)}
    halfway = {"run": copied(interrupted, "env.json", lambda path: None)}
    grid = {"g.yaml": "engine: {kind: serial}\ntrain: {rounds: 1}\ngrid: {seed: [0, 1]}\n"}
    quick = "run --engine serial --rounds 1 --clients 4"
    other = {"run/seed=0/summary.csv": "run_id\n1\n", "run/notes.txt": "mine"}
    foreign = {"run/summary.csv": "name,value\na,1\n"}
    cases = [
        Case("run over a run", f"{quick} --out run", "--out run", files=runs),
        Case("run over half a run", f"{quick} --out run", "--out run", files=halfway),
        Case("sweep over a run", "sweep g.yaml --out run", "--out run", files=runs | grid),
        Case("sweep over half a run", "sweep g.yaml --out run", "--out run", files=halfway | grid),
        Case("sweep over another table", "sweep g.yaml --out run", "run", files=foreign | grid),
        Case("sweep into a file", "sweep g.yaml --out g.yaml", "g.yaml", files=grid),
        Case("partition over a run", "partition --out run", "partition.csv", files=runs),
        Case("resume another seed", "resume run --set seed=3", "seed", files=halfway),
        Case("resume with other rounds", "resume run --set train.rounds=9", "train", files=halfway),
        Case("resume a sweep", "resume run", "config.yaml", files=other),
        Case("report into a run", "report run --out run", "run", files=runs, status=(1, 2)),
    ]
    tried(cases, tmp_path)


# odd results of methods that are compared: nobody leads whom runs are missing

Values = Mapping[str, Mapping[tuple[int, int], float]]
"""By method, partition and seed; infinite and missing ones are what these tests are about."""
NAN, INF = math.nan, math.inf


def over_seeds(**methods: tuple[float | None, ...]) -> Values:
    """Values by training seed on one partition; None has no run."""
    return {
        name: {(0, seed): x for seed, x in enumerate(of) if x is not None}
        for name, of in methods.items()
    }


def nested(**methods: tuple[tuple[float | None, ...], ...]) -> Values:
    """Values by partition, and by training seed inside."""
    return {
        name: {
            (part, seed): x
            for part, of in enumerate(parts)
            for seed, x in enumerate(of)
            if x is not None
        }
        for name, parts in methods.items()
    }


EASY, HARD = (0.7, 0.72, 0.69, 0.71), 0.1
NAMED: dict[str, Values] = {
    "the hardest is missing": over_seeds(fedavg=(*EASY, HARD), fedprox=(0.65, 0.66, 0.64, 0.66)),
    "the hardest is NaN": over_seeds(fedavg=(*EASY, HARD), fedprox=(0.65, 0.66, 0.64, 0.66, NAN)),
    "the hardest is infinite": over_seeds(fedavg=(*EASY, HARD), fedprox=(0.6, 0.7, 0.6, 0.6, INF)),
    "no common seed": over_seeds(fedavg=(0.5, 0.6), fedprox=(None, None, 0.7, 0.8)),
    "one run": over_seeds(fedavg=(0.5,)),
    "all NaN": over_seeds(fedavg=(NAN, NAN), fedprox=(NAN, NAN)),
    "ties": over_seeds(fedavg=EASY, fedprox=EASY, fedld=EASY),
    "constant": over_seeds(fedavg=(0.5,) * 4, fedprox=(0.6,) * 4),
    "tiny": over_seeds(fedavg=(1e-300, 2e-300), fedprox=(3e-300, 1e-310)),
    "a partition is missing": nested(fedavg=((0.5,), (0.6,), (0.1,)), fedprox=((0.4,), (0.5,))),
    "a seed of a partition": nested(fedavg=((0.5, 0.6), (0.1, 0.2)), fedprox=((0.7, 0.8), (0.3,))),
    "other seeds": nested(
        fedavg=((0.5, None), (0.1, None)), fedprox=((None, 0.8), (None, 0.3)),
    ),
}  # fmt: skip
RANDOM = 15
"""Random tables beside the named ones."""


def random_table(number: int) -> Values:
    """Two to four methods, each with its own gaps."""
    rng = random.Random(number)
    runs = list(itertools.product(range(rng.randint(1, 5)), range(rng.randint(1, 2))))
    odd = (NAN, INF, -INF, 0.0, 1.0, None)
    scores: dict[str, dict[tuple[int, int], float]] = {}
    for name in ("fedavg", "fedprox", "fedld", "moon")[: rng.randint(2, 4)]:
        level = rng.choice((0.3, 0.5, 0.5))
        values = {
            run: rng.choice(odd) if rng.random() < 0.2 else level + rng.gauss(0, 0.02) + run[0] / 9
            for run in runs
        }
        scores[name] = {run: x for run, x in values.items() if x is not None}
    return scores


TABLES = NAMED | {f"random {number}": random_table(number) for number in range(RANDOM)}
FEW = ("the hardest is infinite", "all NaN", "a partition is missing")
"""Tables of the slow tests; the others are nightly."""


def write_runs(values: Values, root: Path) -> None:
    """The run directories."""
    root.mkdir()
    for name, of in values.items():
        for (part, seed), value in of.items():
            more: dict[str, Any] = {"data.seed": part, "final_test_loss": value}
            run_of(root, name, seed, [value], [value], **more)


def compared(values: Values, folder: Path) -> None:
    """Each command ends with status 0, or with one line and status 2."""
    unit = ("--unit", "partition") if len({p for of in values.values() for p, _ in of}) > 1 else ()
    commands = [
        ("table", "runs", *unit),
        ("table", "runs", *unit, "--baseline", "fedavg", "--test", "wilcoxon"),
        ("table", "runs", *unit, "--baseline", "fedavg", "--test", "bayes", "--rope", "0.01"),
        ("table", "--ranks", "runs", *unit, "--out", "ranks.svg", "--out", "ranks.csv"),
        ("table", "runs", *unit, "--metric", "loss", "--baseline", "fedavg", "--out", "t.csv"),
        ("table", "runs", *unit, "--metric", "scores", "--out", "t.tex"),
        ("report", "runs", *unit, "--out", "page", "--baseline", "fedavg"),
    ]
    with workplace(folder) as work:
        write_runs(values, work / "runs")
        for arguments in commands:
            result = command(*arguments)
            check(Case(" ".join(arguments), list(arguments), status=(0, 2)), result)
        for name in ("t.csv", "page/tables/accuracy_final.csv"):
            if (work / name).is_file():
                leaders(values, pd.read_csv(io.StringIO((work / name).read_text())))


def leaders(values: Values, table: pd.DataFrame) -> None:
    """Who leads a table has a finite value of every run that another method has one of."""
    if "leads" not in table:
        return
    every = {run for of in values.values() for run, x in of.items() if math.isfinite(x)}
    rows = table[table["leads"] == True]  # noqa: E712
    for label in rows["label"]:
        own = {run for run, x in values[label].items() if math.isfinite(x)}
        assert own >= every, f"{label} leads without {every - own}"


@pytest.mark.slow
@pytest.mark.parametrize("name", marked_beside(FEW, sorted(TABLES), pytest.mark.nightly))
def test_odd_tables(name: str, tmp_path: Path) -> None:
    compared(TABLES[name], tmp_path / "odd")
