"""YAML documents that are damaged, absurd or of another shape, for run, sweep and partition."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.harness import Case, parts, tried

VALID = """\
about: a comparison
algorithm: fedprox
seed: 3
fedprox: {mu: 0.2}
data:
  name: digits
  partition: dirichlet
  num_clients: 10
  alpha: 0.3
train:
  rounds: 2
  sample_rate: 0.5
  lr: 0.1
engine: {kind: serial}
"""
GRID = "grid:\n  seed: [0, 1]\n  algorithm: [fedavg, fedprox]\n"
NAME = "e.yaml"


BOTH = {
    "a list": "- seed: 1\n",
    "two documents": "seed: 1\n---\nseed: 2\n",
    "tabs": "train:\n\tlr: 1\n",
    "unclosed": "seed: [1\n",
    "unclosed quote": 'seed: "1\n',
    "bad indentation": "train:\n    lr: 1\n  rounds: 2\n",
    "an unknown tag": "seed: !wrong 1\n",
    "a Python object": "seed: !!python/object/apply:os.system ['true']\n",
    "a Python name": "!!python/name:os.system seed: 1\n",
    "a key twice": "seed: 1\nseed: 2\n",
    "a key in both ways": "train: {lr: 1}\ntrain.lr: 2\n",
    "a merge key": "train: {<<: {lr: 1}}\n",
    "a date": "seed: 2020-01-01\n",
    "no date": "seed: 2020-13-45\n",
    "a section as a number": "train: 3\n",
    "a section as a list": "train: [lr, 1]\n",
    "an unknown key": "epochs: 1\n",
    "an unknown section": "trian: {lr: 1}\n",
    "an unknown leaf": "train: {lrr: 1}\n",
    "a hyperparameter of no method": "fedprx: {mu: 1}\n",
    "an algorithm as a list": "algorithm: [fedavg]\n",
    "a server twice": "server: [fedgh, fedgh]\n",
    "an unknown preset": "preset: table99\n",
    "hyperparameters as a section": "hyperparameters: {fedprox: {mu: 1}}\n",
    "a module that is not there": 'algorithm: "no_such_module:build"\n',
    "a huge integer": f"seed: {2**64}\n",
    "both fractions": "data: {val_fraction: 0.6, test_fraction: 0.6}\n",
    "a split without decomposition": "evaluation: {decompose_split: test}\n",
    "a law with too few numbers": "clock: {work: uniform(1)}\n",
    "an option of another data set": "synthetic: {alpha: 3}\n",
}
"""Documents that every command refuses."""

GRIDS = {
    "a text": "grid: seeds\n",
    "a list": "grid: [seed]\n",
    "an empty axis": "grid: {seed: []}\n",
    "an axis without a list": "grid: {seed: 1}\n",
    "a value twice": "grid: {seed: [1, 1]}\n",
    "the same name twice": "grid: {x: [a: {seed: 1}, a: {seed: 2}]}\n",
    "an unknown key": "grid: {sed: [1]}\n",
    "a wrong value": "grid: {seed: [1, x]}\n",
    "a row without settings": "grid: {method: [a: 1]}\n",
    "an unknown key in a row": "grid: {method: [a: {sed: 1}]}\n",
    "a key and its axis with labels alike": "grid: {data.dir: [a/b, a_b]}\n",
    "too many runs": "grid:\n"
    + "".join(f"  {k}: [{', '.join(map(str, range(1, 101)))}]\n" for k in ("seed", "data.seed"))
    + "  train.rounds: [1, 2]\n",
}
"""Grids that a sweep refuses."""


def cases() -> list[Case]:
    documents = [
        Case(f"{command}: {name}", command, NAME, files={NAME: text})
        for name, text in BOTH.items()
        for command in (
            f"run -c {NAME} --out out",
            f"sweep {NAME} --out out --dry-run --no-measure",
        )
    ]
    documents += [
        Case(name, f"sweep {NAME} --out out", (), files={NAME: t}) for name, t in GRIDS.items()
    ]
    binary = {
        "not UTF-8": b"seed: \xff\xfe\n",
        "UTF-16": "seed: 1\n".encode("utf-16"),
        "NUL bytes": b"seed: 1\0\0\n",
        "zip": b"PK\x03\x04" + bytes(range(256)),
        "random": random.Random(0).randbytes(2000),
    }
    documents += [
        Case(f"{command}: {name}", command, NAME, files={NAME: content})
        for name, content in binary.items()
        for command in (
            f"run -c {NAME}",
            f"sweep {NAME}",
            f"partition -c {NAME}",
            f"doctor -c {NAME}",
        )
    ]
    return documents


def mutated(seed: int) -> str:
    """A valid file with some of its characters or lines changed, whatever that gives."""
    draw = random.Random(seed)
    text = VALID + (GRID if seed % 2 else "")
    for _ in range(draw.randint(1, 4)):
        place, kind = draw.randrange(len(text)), draw.randrange(5)
        odd = draw.choice(
            [":", "\t", "[", "}", "&a ", "*a", "!!int ", "\n  ", "%", "'", "\0", "-1", "?"]
        )
        lines = text.splitlines(keepends=True)
        if kind == 0:
            text = text[:place] + odd + text[place:]
        elif kind == 1:
            text = text[:place] + text[place + draw.randint(1, 6) :]
        elif kind == 2:
            lines.insert(draw.randrange(len(lines)), draw.choice(lines))
            text = "".join(lines)
        elif kind == 3:
            draw.shuffle(lines)
            text = "".join(lines)
        else:
            text = text[:place] + text[place:].replace(":", odd, 1)
    return text


CASES = cases()
pytestmark = pytest.mark.integration


@pytest.mark.parametrize("number", parts(7))
def test_documents(number: int, tmp_path: Path) -> None:
    tried(CASES[number::7], tmp_path)


@pytest.mark.parametrize("number", parts(5))
def test_mutations_are_refused_or_valid(number: int, tmp_path: Path) -> None:
    tried(
        (
            Case(
                f"mutation {seed}",
                f"sweep {NAME} --dry-run --no-measure",
                (),
                (0, 2),
                {NAME: mutated(seed)},
            )
            for seed in range(number, 200, 5)
        ),
        tmp_path,
    )
