"""Run directories that were damaged, edited or mixed up, for every command that reads them."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import fedsim
from fedsim.core.errors import Interrupted
from tests.fuzz.harness import Case, parts, tried

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
READERS += (
    "predict run --out p.csv",
    "resume run",
    "curves run --out c.png",
)
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
        Case("run inside a run", f"{quick} --out run/checkpoints/x", "--out run", files=runs),
        Case("sweep over a run", "sweep g.yaml --out run", "--out run", files=runs | grid),
        Case("sweep over half a run", "sweep g.yaml --out run", "--out run", files=halfway | grid),
        Case("sweep inside a run", "sweep g.yaml --out run/x", "run", files=runs | grid),
        Case("sweep over another table", "sweep g.yaml --out run", "run", files=foreign | grid),
        Case("sweep over another run", "sweep g.yaml --out run", "run", files=other | grid),
        Case("sweep into a file", "sweep g.yaml --out g.yaml", "g.yaml", files=grid),
        Case("partition over a run", "partition --out run", "partition.csv", files=runs),
        Case("partition over half a run", "partition --out run", "partition.csv", files=halfway),
        Case("resume another seed", "resume run --set seed=3", "seed", files=halfway),
        Case("resume with other rounds", "resume run --set train.rounds=9", "train", files=halfway),
        Case("resume a sweep", "resume run", "config.yaml", files=other),
        Case("resume its checkpoints", "resume run/checkpoints", "config.yaml", files=halfway),
        Case("report into a run", "report run --out run", "run", files=runs, status=(1, 2)),
    ]
    tried(cases, tmp_path)
