"""Stored runs whose model file was edited or damaged: predictions, and start weights."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.fuzz.harness import Case, parts, tried
from tests.stored import FOLDER

pytestmark = pytest.mark.integration

EITHER = (0, 1, 2)
"""The exit statuses of what may be valid after all."""
Change = Callable[[Path], object]
PARTS = 12


def stored(change: Change) -> Change:
    """Makes the folder with both runs of the stored version, of which one was changed."""

    def make(path: Path) -> None:
        zipfile.ZipFile(FOLDER / "0.1.0.zip").extractall(path)
        change(path)

    return make


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
    values = [("model", value) for value in SAID] + [("classes", value) for value in CLASSES]
    values += [(key, value) for key in ("mean", "std") for value in ("", "[]", '["x"]', "{}")]
    values += [(key, None) for key in ("model", "classes", "mean", "std", "algorithm", "format")]
    values += [("algorithm", value) for value in ("fedbn", "", "\x1b[31m", "os:system")]
    values += [("untrained", "x"), ("untrained", "\x1b[31m")]
    for number, (key, value) in enumerate(values):
        files = {"runs": stored(metadata(**{key: value}))}
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
        files = {"runs": stored(damaged(draw))}
        command = USERS[number % 2]
        yield Case(f"damage {number}", command, status=EITHER, files=files, stays=False)
    for name, (change, says) in TENSORS.items():

        def edit(path: Path, change: Callable[[Arrays], Arrays] = change) -> None:
            file = path / "finished" / "model.safetensors"
            save_file(change(load_file(file)), file)

        files = {"runs": stored(edit)}
        status = 2 if says else EITHER
        yield Case(f"weights: {name}", USERS[1], says, status, files, stays=False)
        yield Case(f"predict: {name}", USERS[0], status=EITHER, files=files)


CASES = [*model_cases(), *tensor_cases()]


def test_there_are_many() -> None:
    assert len(CASES) > 90, len(CASES)


@pytest.mark.parametrize("part", parts(PARTS))
def test_model_files(part: int, tmp_path: Path) -> None:
    tried(CASES[part::PARTS], tmp_path)
