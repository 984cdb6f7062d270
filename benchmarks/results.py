"""Results of runs, read and compared byte by byte; and texts that need no download."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from safetensors.numpy import load_file

SHAKESPEARE = "abcdefghijklmnopqrstuvwxyz ,.ABCDEFGH"
TIMES = ("total_seconds", "seconds_to_target")
SKIPPED = ("timings.csv", "env.json", "config.yaml")


def write_shakespeare(folder: Path) -> None:
    """Six users of LEAF's next-character data, each with training and test samples."""
    users = [f"ROLE_{i}" for i in range(6)]
    for part, count in (("train", 6), ("test", 2)):
        data = {}
        for i, user in enumerate(users):
            texts = [
                "".join(SHAKESPEARE[(i + 3 * j + k * k) % len(SHAKESPEARE)] for k in range(80))
                for j in range(count + i)
            ]
            data[user] = {"x": texts, "y": [text[i] for text in texts]}
        content = {"users": users, "num_samples": [len(d["y"]) for d in data.values()]}
        (folder / "shakespeare" / part).mkdir(parents=True)
        file = folder / "shakespeare" / part / "all_data.json"
        file.write_text(json.dumps(content | {"user_data": data}))


def equal(before: Path, after: Path) -> bool:
    """Whether a file is the same, without the seconds of a summary, columns that were added, and
    what a file of tensors says of itself."""
    if before.suffix == ".safetensors":
        return tensors(before) == tensors(after)
    if before.suffix != ".csv":
        return before.read_bytes() == after.read_bytes()
    if before.name not in ("summary.csv", "aggregate.csv"):
        old, new = cells(before), cells(after)
        return old == [row[: len(old[0])] for row in new]
    old_rows, new_rows = ([dict(compared(row)) for row in records(p)] for p in (before, after))
    return len(old_rows) == len(new_rows) and all(
        old.items() <= new.items() for old, new in zip(old_rows, new_rows, strict=True)
    )


def tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Type, shape and bytes of a file's tensors, by name."""
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in load_file(path).items()}


def cells(path: Path) -> list[list[str]]:
    """A table's cells as text, the header first."""
    with path.open(newline="") as file:
        return list(csv.reader(file))


def records(path: Path) -> list[dict[str, str]]:
    """A table's cells as text, by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def compared(row: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What is compared of a row of a summary."""
    for key, value in row.items():
        if key != "run_id" and not key.startswith(TIMES):
            yield key, value


def results(folder: Path) -> dict[str, Path]:
    """The files that must be equal, by their path in the folder."""
    names = ("*.csv", "model.safetensors", "clients.safetensors", "*.npz")
    files = [path for name in names for path in folder.rglob(name)]
    return {str(p.relative_to(folder)): p for p in sorted(files) if p.name not in SKIPPED}
