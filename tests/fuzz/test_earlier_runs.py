"""Runs of earlier versions whose configuration, model file or tables were edited or damaged."""

from __future__ import annotations

import functools
import json
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fedsim.config.sections import fields
from tests.fuzz.harness import Case, parts, tried
from tests.stored import FOLDER

pytestmark = pytest.mark.integration

VERSIONS = ("0.1.0", "2026-11-23")
EITHER = (0, 1, 2)
"""The exit statuses of what may be valid after all."""
Change = Callable[[Path], object]
PARTS = 37


@functools.cache
def archive(version: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(FOLDER / f"{version}.zip")


def stored(version: str, change: Change) -> Change:
    """Makes the folder with both runs of a version, of which one was changed."""

    def make(path: Path) -> None:
        archive(version).extractall(path)
        change(path)

    return make


def settings(change: Callable[[dict[str, Any]], object], state: str = "finished") -> Change:
    """Edits config.yaml."""

    def edit(path: Path) -> None:
        file = path / state / "config.yaml"
        values = yaml.safe_load(file.read_text())
        change(values)
        file.write_text(yaml.safe_dump(values))

    return edit


def lacking(key: str) -> Callable[[dict[str, Any]], object]:
    section, _, leaf = key.rpartition(".")
    return lambda values: (values.get(section, {}) if section else values).pop(leaf, None)


def odd(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    section, _, leaf = key.rpartition(".")

    def change(values: dict[str, Any]) -> None:
        (values.setdefault(section, {}) if section else values)[leaf] = value

    return change


ODD: tuple[object, ...] = (
    *(None, True, -1, 10**30, 1e308, "", "x", "\x1b[31m", "a\nb", [], [1], ["x", None], {}),
    *({"a": {"b": 1}}, "null", "0", "\u202e"),
)
READERS = ("show {}", "runs {}", "show {} {}", "predict {} --out p.csv", "table {}")


def config_cases() -> Iterator[Case]:
    """Every key is missing once, and every key is odd once, for one of the commands each."""
    draw = random.Random(5)
    for key in fields():
        command = draw.choice(READERS).format("runs/finished", "runs/finished")
        files = {"runs": stored(draw.choice(VERSIONS), settings(lacking(key)))}
        yield Case(f"{command} without {key}", command, status=EITHER, files=files)
        junk = draw.choice(ODD)
        edit = settings(odd(key, junk), state="interrupted")
        files = {"runs": stored(draw.choice(VERSIONS), edit)}
        for command in ("resume runs/interrupted", "run -c runs/interrupted/config.yaml --out r"):
            name = f"{command}, {key}: {junk!r}"
            if draw.random() < 0.3:
                yield Case(name, command, status=EITHER, files=files, stays=False)


def metadata(**changes: str | None) -> Change:
    """Edits what model.safetensors says of itself; None takes a key away."""

    def edit(path: Path) -> None:
        file = path / "finished" / "model.safetensors"
        with safe_open(file, framework="np") as opened:
            said = dict(opened.metadata())
        for key, value in changes.items():
            said.pop(key, None)
            if value is not None:
                said[key] = value
        save_file(load_file(file), file, metadata=said)

    return edit


NETWORK = {"name": "logistic", "num_classes": 10, "in_channels": 1, "image_size": 8}
SAID = (
    *("", "3", "null", "[]", "{}", "no JSON", '"logistic"', "[" * 100_000, '{"name": 3}'),
    *('{"a": ' * 50_000, "\x1b]0;x\x07", json.dumps(NETWORK | {"more": 1}), "NaN", '["a"]'),
    *(json.dumps(NETWORK | change) for change in (
        {"name": "cnn"}, {"name": "nobody"}, {"name": "os:system"}, {"num_classes": 3},
        {"num_classes": -1}, {"in_channels": 10**30}, {"image_size": "8"}, {"inputs": "tokens"},
        {"trainable": "lora(4)"}, {"trainable": "what"}, {"norm": 3}, {"projection": 5},
        {"name": None}, {"per_token": True},
    )),
)  # fmt: skip
CLASSES = (
    *("", "3", "null", "{}", "[]", '["0"]', "[" * 100_000, json.dumps(list(range(10)))),
    *(json.dumps([str(i) for i in range(9, -1, -1)]), json.dumps([None] * 10)),
    json.dumps(["\x1b[31m"] * 10),
)
USERS = (
    "predict runs/finished --out p.csv",
    "run --engine serial --clients 2 --rounds 1 --model logistic --set model.weights=runs/finished "
    "--sample-rate 1 --out r",
)


def model_cases() -> Iterator[Case]:
    """What the metadata may say, for predictions and as start weights."""
    version = VERSIONS[1]
    values = [("model", value) for value in SAID] + [("classes", value) for value in CLASSES]
    values += [(key, value) for key in ("mean", "std") for value in ("", "[]", '["x"]', "{}")]
    values += [(key, None) for key in ("model", "classes", "mean", "std", "algorithm", "format")]
    values += [("algorithm", value) for value in ("fedbn", "", "\x1b[31m", "os:system")]
    values += [("untrained", "x"), ("untrained", "\x1b[31m")]
    for number, (key, value) in enumerate(values):
        files = {"runs": stored(version, metadata(**{key: value}))}
        command = USERS[number % 2] if key in ("model", "classes", "untrained") else USERS[0]
        name = f"{command}: {key} is {value!r:.60}"
        yield Case(name, command, status=EITHER, files=files, stays=False)


def damaged(draw: random.Random) -> Change:
    """Cuts the model file, or changes some of its bytes."""
    at, cut, junk = draw.random(), draw.random() < 0.5, draw.randbytes(4)

    def change(path: Path) -> None:
        file = path / "finished" / "model.safetensors"
        content = file.read_bytes()
        where = int(at * len(content))
        file.write_bytes(content[:where] + (b"" if cut else junk + content[where + 4 :]))

    return change


Arrays = dict[str, np.ndarray[Any, Any]]
TENSORS: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "two names": (lambda t: t | {"fc.bias": t["head.bias"]}, "both tensors for head.bias"),
    "nothing": (lambda t: {}, "weights"),
    "another name": (lambda t: {f"x.{k}": v for k, v in t.items()}, "unknown x.head.bias"),
    "one more": (lambda t: t | {"more": np.zeros(3, np.float32)}, "unknown more"),
    "NaN": (lambda t: {k: v * np.nan for k, v in t.items()}, "not finite"),
    "whole numbers": (lambda t: {k: v.astype(np.int64) for k, v in t.items()}, ""),
    "float64": (lambda t: {k: v.astype(np.float64) for k, v in t.items()}, ""),
    "scalars": (lambda t: {k: np.asarray(v.sum()) for k, v in t.items()}, ""),
    "turned": (lambda t: {k: np.ascontiguousarray(v.T) for k, v in t.items()}, ""),
}


def tensor_cases() -> Iterator[Case]:
    draw = random.Random(7)
    for number in range(24):
        files = {"runs": stored(VERSIONS[number % 2], damaged(draw))}
        command = USERS[number // 2 % 2]
        yield Case(f"damage {number}", command, status=EITHER, files=files, stays=False)
    for name, (change, says) in TENSORS.items():

        def edit(path: Path, change: Callable[[Arrays], Arrays] = change) -> None:
            file = path / "finished" / "model.safetensors"
            save_file(change(load_file(file)), file)

        files = {"runs": stored(VERSIONS[0], edit)}
        status = 2 if says else EITHER
        yield Case(f"weights: {name}", USERS[1], says, status, files, stays=False)
        yield Case(f"predict: {name}", USERS[0], status=EITHER, files=files)


def table_cases() -> Iterator[Case]:
    """Columns of summary.csv that are missing or odd, beside a run of another version."""
    draw = random.Random(11)
    columns = list(pd.read_csv(archive(VERSIONS[1]).open("finished/summary.csv")).columns)
    for column in draw.sample(columns, 24):
        junk = draw.choice(("x", "", "\x1b[31m", "1e999", "-1", "[]", "\u202e"))
        drop = draw.random() < 0.5

        def edit(path: Path, column: str = column, junk: str = junk, drop: bool = drop) -> None:
            file = path / "finished" / "summary.csv"
            table = pd.read_csv(file, dtype=str)
            table = table.drop(columns=column) if drop else table.assign(**{column: junk})
            table.to_csv(file, index=False)
            shutil.rmtree(path / "interrupted")
            archive(VERSIONS[0]).extractall(path / "old")

        files = {"runs": stored(VERSIONS[1], edit)}
        yield Case(f"table, {column}", "table runs", status=EITHER, files=files)


def version_cases() -> Iterator[Case]:
    """What env.json says of packages when a run goes on."""
    for junk in (*ODD, {"torch": 3}, {"torch": None}, {"torch": "\x1b[31m"}, {"numpy": ["x"]}):
        for key in ("packages", "resumed"):

            def edit(path: Path, key: str = key, junk: object = junk) -> None:
                file = path / "interrupted" / "env.json"
                file.write_text(json.dumps(json.loads(file.read_text()) | {key: junk}))

            files = {"runs": stored(VERSIONS[1], edit)}
            name, command = f"{key} {junk!r}", "resume runs/interrupted"
            yield Case(name, command, status=EITHER, files=files, stays=False)


CASES = [*config_cases(), *model_cases(), *tensor_cases(), *table_cases(), *version_cases()]


def test_there_are_hundreds() -> None:
    assert len(CASES) > 300, len(CASES)


@pytest.mark.parametrize("part", parts(PARTS))
def test_runs_of_earlier_versions(part: int, tmp_path: Path) -> None:
    tried(CASES[part::PARTS], tmp_path)
