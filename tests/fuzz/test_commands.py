"""Command lines: unknown commands and flags, missing and odd values, paths that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.cli import main
from tests.fuzz.harness import Case, parts, tried

NAMES = tuple(main.commands)
LONG = "x" * 5000
SERIAL = "run --engine serial --rounds 1 --clients 5"
SPLIT = "client,index\n0,0\n1,1\n"

USAGE = [
    *(Case(f"{name} --unknown", f"{name} --no-such-flag", "--no-such-flag") for name in NAMES),
    *(Case(f"{name} --format=x", f"{name} --forma=x", "--forma") for name in NAMES),
    *(Case(f"{name} of two", (name, "a", "b", "c"), ()) for name in ("resume", "list", "sweep")),
    *(Case(f"{name} alone", name) for name in ("resume", "sweep", "table", "curves")),
    *(Case(f"{name} of nothing", (name, "")) for name in ("resume", "sweep", "list", "runn", "")),
    *(
        Case(f"{name} nowhere", (name, "nowhere"))
        for name in ("resume", "sweep", "table", "report")
    ),
    *(Case(f"{name} of a long name", (name, LONG)) for name in ("resume", "sweep", "table", LONG)),
    *(Case(f"{name} of a file", (name, "f"), files={"f": "x"}) for name in ("resume", "sweep")),
    *(Case(f"{name} of a folder", (name, "f"), files={"f/g": "x"}) for name in ("resume", "sweep")),
    Case("an unknown command", "rnu", "rnu"),
    Case("a flag as command", "--out", "--out"),
    Case("an argument of run", "run fedld", "fedld"),
    Case("a flag without value", "run --alpha", "--alpha"),
    Case("a switch with a value", "run --cosines=yes", "--cosines"),
    Case("a flag twice in two ways", "run --rounds 3 --set train.rounds=4", "--rounds"),
    Case("--set twice", "run --set train.lr=1 --set train.lr=2", "train.lr"),
    Case("--set without =", "run --set train.lr", "key=value"),
    Case("--set of a section", "run --set train=3", "section of keys"),
    Case("--set of an unknown key", "run --set train.lrr=3", "did you mean 'train.lr'"),
    Case("an unknown preset", "run --preset table33", "did you mean 'table3'"),
    Case("an unknown kind of list", "list things", "algorithms"),
    Case("an unknown format", "list models --format xml", "json"),
    Case("a seed beyond 64 bits", f"run --seed {2**64}", f"less than {2**64}"),
    Case("a negative seed", "run --seed -1", "--seed"),
    Case("an unknown engine", "run --engine dask", "ray, serial"),
    Case("an engine that is none", "run --engine worker", "ray, serial"),
    Case("an own engine that is not there", "run --engine no_such:thing", "no_such"),
    Case("an address that is none", "run --address nowhere:1", "--address"),
    Case("a working folder that is not there", "run --working-dir nowhere", "nowhere"),
    Case("more cores than there are", "run --cpus-per-client 9999", "9999"),
    Case("a model for other data", f"{SERIAL} --model leaf_reddit", "leaf_reddit"),
    Case(
        "images too small", f"{SERIAL} --model resnet18 --set data.image_size=2", "data.image_size"
    ),
    Case("images too large", f"{SERIAL} --set data.image_size=32768", "data.image_size"),
    Case("more clients than samples", "partition --clients 5000", ("5000", "1438")),
    Case("sites that are not there", f"{SERIAL} --partition by_site", "no sites"),
    Case("users that are not there", "partition --partition natural", "users"),
    Case("files that are not given", f"{SERIAL} --partition files", "partition_file"),
    Case("a split that is not there", f"{SERIAL} --set data.partition_file=no.csv", "no.csv"),
    Case(
        "a split and another partition",
        f"{SERIAL} --partition iid --set data.partition_file=s.csv",
        "files",
        files={"s.csv": SPLIT},
    ),
    Case(
        "another number than the split's",
        f"{SERIAL} --set data.partition_file=s.csv",
        "5",
        files={"s.csv": SPLIT},
    ),
    Case("a folder of lists", f"{SERIAL} --set data.partition_file=split_1", "split_1"),
    Case("data that need a folder", "run -d retina --engine serial", "data.dir"),
    Case("a folder that is not there", "run -d folder --data-dir no --engine serial", "no"),
    Case("a file as folder", "run -d folder --data-dir f --engine serial", "f", files={"f": "x"}),
    Case("an empty folder", "run -d folder --data-dir . --engine serial", "labels.csv"),
    Case("the wrong files", "run -d mnist --data-dir . --engine serial", "mnist", files={"x": "y"}),
    Case("a trace that is not there", f"{SERIAL} --set clock.trace=no.csv", "no.csv"),
    Case("a deadline of nothing", f"{SERIAL} --set clock.deadline=3", "clock.deadline"),
    Case("parts that nobody owns", f"{SERIAL} --decompose-every 1 --decompose-split val", "val"),
    Case("out is a file", f"{SERIAL} --out f", "--out f", files={"f": "mine"}),
    Case("out is used", f"{SERIAL} --out d", "--out d", files={"d/notes.txt": "mine"}),
    Case("out below a file", f"{SERIAL} --out f/run", "f/run", files={"f": "mine"}, status=1),
    Case("out is too long", f"{SERIAL} --out {LONG}", "too long", status=1),
    Case("out of partition is a file", "partition --out f", "f:", files={"f": "mine"}, status=1),
    Case("out of partition is used", "partition --out .", "already", files={"split.csv": "mine"}),
    Case("a sweep of a run's file", "sweep f.txt", "f.txt", files={"f.txt": "grid: {seed: [1]}"}),
    Case("a config of a folder", "run -c d", "d", files={"d/x": ""}),
    Case("a config that is not there", "run -c no.yaml", "no.yaml"),
    Case(
        "a config with a grid",
        "run -c g.yaml",
        "fedsim sweep",
        files={"g.yaml": "grid: {seed: [1]}"},
    ),
    Case("a flag against a row", "sweep table2 --algorithm fedbn", "axis method"),
    Case("a change on resuming", "resume d --set train.lr=3", "no config.yaml", files={"d/x": ""}),
]


pytestmark = pytest.mark.integration


@pytest.mark.parametrize("number", parts(5))
def test_commands(number: int, tmp_path: Path) -> None:
    tried(USAGE[number::5], tmp_path)
