"""Data files that are damaged, mislabelled or of another kind: seeded mutations of valid ones."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.fuzz.harness import Case, Content, parts, tried

pytestmark = pytest.mark.integration

COUNT = 24


def picture(number: int) -> bytes:
    """A PNG of 8 x 8 pixels."""
    data = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def folder() -> dict[str, Content]:
    """A folder of pictures with labels, sites and patients."""
    rows = [f"{i}.png,{i % 2},site {i % 3},p{i // 2}" for i in range(COUNT)]
    files: dict[str, Content] = {f"data/{i}.png": picture(i) for i in range(COUNT)}
    return files | {"data/labels.csv": "filename,label,site,patient\n" + "\n".join(rows) + "\n"}


def arrays() -> dict[str, Content]:
    """An npz file of the layout of MedMNIST."""
    draw, data = np.random.default_rng(0), io.BytesIO()
    sizes = {"train": 40, "val": 8, "test": 16}
    outcome = {
        f"{p}_images": draw.integers(0, 256, (n, 28, 28), np.uint8) for p, n in sizes.items()
    }
    outcome |= {f"{p}_labels": np.arange(n, dtype=np.uint8)[:, None] % 2 for p, n in sizes.items()}
    np.savez(data, **outcome)
    return {"data/pneumoniamnist.npz": data.getvalue()}


def idx() -> dict[str, Content]:
    """The four files of MNIST, small."""
    files: dict[str, Content] = {}
    for part, n in (("train", 40), ("t10k", 20)):
        images = struct.pack(">4i", 2051, n, 28, 28) + random.Random(n).randbytes(n * 784)
        labels = struct.pack(">2i", 2049, n) + bytes(i % 10 for i in range(n))
        files[f"data/{part}-images-idx3-ubyte.gz"] = gzip.compress(images, mtime=0)
        files[f"data/{part}-labels-idx1-ubyte.gz"] = gzip.compress(labels, mtime=0)
    return files


def users() -> dict[str, Content]:
    """LEAF's JSON files of the synthetic data set."""
    draw = random.Random(0)

    def part(n: int) -> str:
        names = [f"u{i}" for i in range(4)]
        x = {u: [[draw.gauss(0, 1) for _ in range(60)] for _ in range(n)] for u in names}
        y = {u: [draw.randrange(10) for _ in range(n)] for u in names}
        data = {u: {"x": x[u], "y": y[u]} for u in names}
        return json.dumps({"users": names, "num_samples": [n] * 4, "user_data": data})

    return {"data/train/a.json": part(8), "data/test/a.json": part(4)}


def lists() -> dict[str, Content]:
    """A split of the embedded data set."""
    rows = [f"{i % 4},{i}" for i in range(200)]
    return {"data/split.csv": "client,index\n" + "\n".join(rows) + "\n"}


def trace() -> dict[str, Content]:
    """Speeds of the clients."""
    rows = [f"{i},{100 + i},{i % 2}" for i in range(4)]
    text = "client_id,samples_per_second,availability\n" + "\n".join(rows) + "\n"
    return {"data/trace.csv": text}


def table() -> dict[str, Content]:
    """Numbers, categories and gaps of three sites."""
    rows = [f"{20 + i},{'abc'[i % 3]},{i / 7:.3f},{i % 2},site {i // 10}" for i in range(30)]
    rows[4] = "?,b,1.5,1,site 0"
    return {"data/table.csv": "age,kind,weight,target,site\n" + "\n".join(rows) + "\n"}


SERIAL = "--engine serial --rounds 1 --out out"
SETS: dict[str, tuple[Callable[[], dict[str, Content]], str]] = {
    "folder": (folder, "partition -d folder --data-dir data --set data.image_size=8"),
    "arrays": (arrays, "partition -d pneumoniamnist --data-dir data --clients 2"),
    "idx": (idx, "partition -d mnist --data-dir data --clients 2"),
    "users": (users, "partition -d synthetic --data-dir data"),
    "table": (
        table,
        "partition -d csv:data/table.csv --set csv.categorical=kind=a --set csv.missing=mean",
    ),
    "lists": (lists, "partition --set data.partition_file=data/split.csv"),
    "trace": (trace, f"run --clients 4 --set clock.trace=data/trace.csv {SERIAL}"),
}
WORDS = (b"", b"x", b"-1", b"nan", b"1e999", b"9" * 30, b"1.5", b"=1+1", b"\xff", b"\0", b'"')
WORDS += (b"../../x", b"true", b",", b"\n", b"[")


def mutated(content: Content, draw: random.Random) -> bytes:
    """Some damage: a text gets other words, anything other bytes."""
    assert not callable(content)
    data = content.encode() if isinstance(content, str) else content
    place, kind = draw.randrange(len(data)), draw.randrange(8)
    if isinstance(content, str) and kind < 4:
        separator = b'"' if data.startswith(b"{") else b","
        words = data.split(separator)
        words[draw.randrange(len(words))] = draw.choice(WORDS)
        return separator.join(words)
    if kind < 5:
        return data[:place]
    if kind == 5:
        return data[:place] + draw.randbytes(8) + data[place + 8 :]
    if kind == 6:
        return data[:place] + data[place + draw.randint(1, 40) :]
    return draw.choice([b"", b"\0" * 100, b"[" * 99_999, draw.randbytes(999), data + data])


def cases(name: str, number: int) -> list[Case]:
    """So many mutations of one of the files, which are refused or, by chance, still valid."""
    make, args = SETS[name]
    outcome = []
    for seed in range(number):
        draw = random.Random(f"{name} {seed}")
        files = make()
        path = draw.choice(["data/labels.csv", *files]) if name == "folder" else None
        path = path or draw.choice(sorted(files))
        if draw.random() < 0.1:
            del files[path]
        else:
            files[path] = mutated(files[path], draw)
        outcome.append(Case(f"{name} {seed}, {path}", args, status=(0, 2), files=files))
    return outcome


@pytest.mark.parametrize("number", parts(5))
@pytest.mark.parametrize("name", SETS)
def test_mutations(name: str, number: int, tmp_path: Path) -> None:
    tried(cases(name, 40)[number::5], tmp_path)


@pytest.mark.parametrize("name", SETS)
def test_without_damage_they_are_valid(name: str, tmp_path: Path) -> None:
    make, args = SETS[name]
    tried([Case(name, args, status=(0,), files=make())], tmp_path)


# image files that are others than their names say

FEW = 6
PARTITION = "partition -d folder --data-dir data --set data.image_size=8"


def picture_as(form: str) -> bytes:
    data = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data, form)
    return data.getvalue()


def pictures() -> dict[str, Content]:
    """Six images."""
    rows = [f"{i}.png,{'ab'[i % 2]},{'st'[i % 2]}" for i in range(FEW)]
    files: dict[str, Content] = {f"data/{i}.png": picture_as("PNG") for i in range(FEW)}
    files["data/labels.csv"] = "filename,label,site\n" + "\n".join(rows) + "\n"
    return files


BAD_IMAGES: dict[str, bytes] = {
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n",
    "GIF": picture_as("GIF"),
    "cut PNG": picture_as("PNG")[:60],
    "cut JPEG": picture_as("JPEG")[:200],
    "nothing": b"",
    "NUL": bytes(100),
}
"""Contents of which no image can be made."""
EXTENSIONS = ("png", "jpg", "tif")


def with_image(content: bytes, extension: str, name: str) -> Case:
    files = pictures()
    files[f"data/1.{extension}"] = content
    table = str(files["data/labels.csv"]).replace("1.png", f"1.{extension}")
    files["data/labels.csv"] = table
    return Case(name, PARTITION, f"data/1.{extension}", files=files)


IMAGES = [
    with_image(content, extension, f"{kind} as .{extension}")
    for (kind, content), extension in product(BAD_IMAGES.items(), EXTENSIONS)
]


@pytest.mark.parametrize("part", parts(7))
def test_other_files_than_images(part: int, tmp_path: Path) -> None:
    tried(IMAGES[part::7], tmp_path)
