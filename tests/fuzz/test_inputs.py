"""What a user may enter: command lines, experiments in YAML, values of keys; odd surroundings."""

from __future__ import annotations

import itertools
import math
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from fedsim.cli import main
from fedsim.config.sections import fields
from tests.fuzz.harness import Case, ended, parts, started, tried

pytestmark = pytest.mark.integration

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
    Case("a flag without value", "run --alpha", "--alpha"),
    Case("a flag twice in two ways", "run --rounds 3 --set train.rounds=4", "--rounds"),
    Case("--set twice", "run --set train.lr=1 --set train.lr=2", "train.lr"),
    Case("--set without =", "run --set train.lr", "key=value"),
    Case("--set of an unknown key", "run --set train.lrr=3", "did you mean 'train.lr'"),
    Case("an unknown preset", "run --preset table33", "did you mean 'table3'"),
    Case("a seed beyond 64 bits", f"run --seed {2**64}", f"less than {2**64}"),
    Case("a negative seed", "run --seed -1", "--seed"),
    Case("an unknown engine", "run --engine dask", "ray, serial"),
    Case("an own engine that is not there", "run --engine no_such:thing", "no_such"),
    Case("a working folder that is not there", "run --working-dir nowhere", "nowhere"),
    Case("a model for other data", f"{SERIAL} --model leaf_reddit", "leaf_reddit"),
    Case("more clients than samples", "partition --clients 5000", ("5000", "1438")),
    Case("sites that are not there", f"{SERIAL} --partition by_site", "no sites"),
    Case("files that are not given", f"{SERIAL} --partition files", "partition_file"),
    Case("a split that is not there", f"{SERIAL} --set data.partition_file=no.csv", "no.csv"),
    Case(
        "a split and another partition",
        f"{SERIAL} --partition iid --set data.partition_file=s.csv",
        "files",
        files={"s.csv": SPLIT},
    ),
    Case("data that need a folder", "run -d retina --engine serial", "data.dir"),
    Case("a folder that is not there", "run -d folder --data-dir no --engine serial", "no"),
    Case("a file as folder", "run -d folder --data-dir f --engine serial", "f", files={"f": "x"}),
    Case("the wrong files", "run -d mnist --data-dir . --engine serial", "mnist", files={"x": "y"}),
    Case("parts that nobody owns", f"{SERIAL} --decompose-every 1 --decompose-split val", "val"),
    Case("out is a file", f"{SERIAL} --out f", "--out f", files={"f": "mine"}),
    Case("out is used", f"{SERIAL} --out d", "--out d", files={"d/notes.txt": "mine"}),
    Case("out is too long", f"{SERIAL} --out {LONG}", "too long", status=1),
    Case("out of partition is a file", "partition --out f", "--out f", files={"f": "mine"}),
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


@pytest.mark.parametrize("number", parts(5))
def test_commands(number: int, tmp_path: Path) -> None:
    tried(USAGE[number::5], tmp_path)


# YAML documents that are damaged, absurd or of another shape

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
EXPERIMENT = "e.yaml"


BOTH = {
    "a list": "- seed: 1\n",
    "tabs": "train:\n\tlr: 1\n",
    "unclosed": "seed: [1\n",
    "bad indentation": "train:\n    lr: 1\n  rounds: 2\n",
    "a Python object": "seed: !!python/object/apply:os.system ['true']\n",
    "a key twice": "seed: 1\nseed: 2\n",
    "a key in both ways": "train: {lr: 1}\ntrain.lr: 2\n",
    "a date": "seed: 2020-01-01\n",
    "a section as a number": "train: 3\n",
    "an unknown key": "epochs: 1\n",
    "an unknown section": "trian: {lr: 1}\n",
    "a hyperparameter of no method": "fedprx: {mu: 1}\n",
    "an algorithm as a list": "algorithm: [fedavg]\n",
    "an unknown preset": "preset: table99\n",
    "a module that is not there": 'algorithm: "no_such_module:build"\n',
}
"""Documents that every command refuses."""

GRIDS = {
    "a text": "grid: seeds\n",
    "an empty axis": "grid: {seed: []}\n",
    "a value twice": "grid: {seed: [1, 1]}\n",
    "an unknown key": "grid: {sed: [1]}\n",
    "a wrong value": "grid: {seed: [1, x]}\n",
    "an unknown key in a row": "grid: {method: [a: {sed: 1}]}\n",
    "a key and its axis with labels alike": "grid: {data.dir: [a/b, a_b]}\n",
    "too many runs": "grid:\n"
    + "".join(f"  {k}: [{', '.join(map(str, range(1, 101)))}]\n" for k in ("seed", "data.seed"))
    + "  train.rounds: [1, 2]\n",
}
"""Grids that a sweep refuses."""


def documents() -> list[Case]:
    cases = [
        Case(f"{command}: {name}", command, EXPERIMENT, files={EXPERIMENT: text})
        for name, text in BOTH.items()
        for command in (
            f"run -c {EXPERIMENT} --out out",
            f"sweep {EXPERIMENT} --out out --dry-run --no-measure",
        )
    ]
    cases += [
        Case(name, f"sweep {EXPERIMENT} --out out", (), files={EXPERIMENT: t})
        for name, t in GRIDS.items()
    ]
    binary = {
        "not UTF-8": b"seed: \xff\xfe\n",
        "NUL bytes": b"seed: 1\0\0\n",
        "random": random.Random(0).randbytes(2000),
    }
    cases += [
        Case(f"{command}: {name}", command, EXPERIMENT, files={EXPERIMENT: content})
        for name, content in binary.items()
        for command in (
            f"run -c {EXPERIMENT}",
            f"sweep {EXPERIMENT}",
            f"partition -c {EXPERIMENT}",
            f"doctor -c {EXPERIMENT}",
        )
    ]
    return cases


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


@pytest.mark.parametrize("number", parts(7))
def test_documents(number: int, tmp_path: Path) -> None:
    tried(documents()[number::7], tmp_path)


@pytest.mark.parametrize("number", parts(5))
def test_mutations_are_refused_or_valid(number: int, tmp_path: Path) -> None:
    tried(
        (
            Case(
                f"mutation {seed}",
                f"sweep {EXPERIMENT} --dry-run --no-measure",
                (),
                (0, 2),
                {EXPERIMENT: mutated(seed)},
            )
            for seed in range(number, 200, 5)
        ),
        tmp_path,
    )


# values of another kind, out of range or absurd

NO_NUMBERS: tuple[object, ...] = (
    *("abc", "", "nan", "1e999", "0x10", "1,5", "x" * 5000, "a\nb"),
    *(math.nan, math.inf, True, [], [1], {"a": 1}),
)
NO_WHOLE_NUMBERS: tuple[object, ...] = (1.5, "1.5", 0.1, 1e-9, 10**30)
NO_NAMES: tuple[object, ...] = (
    *("no such name", "", "x" * 5000, "\x07", "fed\navg"),
    *(3, 1.5, True, ["x"], [], {"a": 1}),
)
NO_TEXTS: tuple[object, ...] = (3, 1.5, True, ["x"], [], {"a": 1})
NO_SWITCHES: tuple[object, ...] = ("maybe", "", 2, -1, 0.5, [], [True], {"a": 1}, "null ", math.nan)
NAMED = ("algorithm", "server", "margin", "data.partition", "data.augment", "data.name")
ANYTHING = ("engine.kind", "model.name")
"""Names that are looked up only when a run starts."""


def kinds(annotation: Any) -> tuple[Any, ...]:
    """The types that a key takes, without None."""
    members = (annotation,) if get_origin(annotation) in (None, Literal) else get_args(annotation)
    return tuple(kind for kind in members if kind is not type(None))


def wrong_values(key: str) -> tuple[object, ...]:
    """What the key must refuse, whatever its range."""
    wanted = kinds(fields()[key].annotation)
    if bool in wanted:
        return NO_SWITCHES
    if {int, float} & set(wanted) and str not in wanted:
        return NO_NUMBERS + (() if float in wanted else NO_WHOLE_NUMBERS)
    literal = any(get_origin(kind) is Literal for kind in wanted)
    if literal or key in NAMED:
        return tuple(v for v in NO_NAMES if not (key == "server" and isinstance(v, list)))
    return NO_TEXTS if str in wanted and float not in wanted else ("no such law", "", [1], {"a": 1})


def outside(key: str) -> Iterator[object]:
    """Numbers beyond the range of the key."""
    for limit in fields()[key].metadata:
        for name, step in (("gt", 0), ("ge", -1), ("lt", 0), ("le", 1)):
            bound = getattr(limit, name, None)
            if bound is not None:
                yield bound + step * max(1, abs(bound) * 1e-3)
                if name in ("gt", "ge"):
                    yield from (-1e300, -7)


def dumped(key: str, value: object) -> str:
    """The key as YAML, half of the time nested."""
    section, _, leaf = key.rpartition(".")
    nested = {section: {leaf: value}} if section and len(repr(value)) % 2 else {key: value}
    return yaml.safe_dump(nested, allow_unicode=True)


def yaml_cases(key: str) -> list[Case]:
    """A file for each wrong value; the line must name file and key."""
    values = [*wrong_values(key), *outside(key)]
    says = ("e.yaml", key.rpartition(".")[2])
    runs = (
        "sweep e.yaml --dry-run --no-measure",
        "run -c e.yaml --out out",
        "partition -c e.yaml --out out",
    )
    return [
        Case(f"{key}={value!r}"[:60], args, says, files={"e.yaml": dumped(key, value)})
        for value, args in zip(values, itertools.cycle(runs), strict=False)
    ]


def texts_of(key: str) -> list[str]:
    """Wrong values as a shell can give them; any text may be a path or name of one's own."""
    wrong = wrong_values(key)
    if wrong is NO_TEXTS:
        return []
    values = [v for v in (*wrong, *outside(key)) if not isinstance(v, list | dict | bytes)]
    return [v if isinstance(v, str) else str(v) for v in values]


def set_cases(key: str) -> list[Case]:
    """``--set KEY=VALUE``; the line must name it."""
    run = ("run", "--out", "out", "--set")
    return [Case(f"{key}={t}"[:60], (*run, f"{key}={t}"), f"--set {key}") for t in texts_of(key)]


KEYS = tuple(fields())


@pytest.mark.parametrize("step", [41, pytest.param(13, marks=pytest.mark.slow)])
def test_some_of_all_keys(step: int, tmp_path: Path) -> None:
    every = [case for key in KEYS for case in (*yaml_cases(key), *set_cases(key))]
    tried(every[::step], tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("key", KEYS)
def test_every_value_of_a_key(key: str, tmp_path: Path) -> None:
    tried([*yaml_cases(key), *set_cases(key)], tmp_path)


# closed pipes, other locales, no home, no place to write

LIST = ("list", "algorithms")
PARTITION = ("partition", "--clients", "4")


def test_names_in_other_scripts_in_a_plain_locale(tmp_path: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    args = ("partition", "-d", "\u533b\u9662", "--clients", "4")
    status, _, err = ended(started(tmp_path, *args, **plain))
    assert status == 2
    assert err.startswith(b"error: ")
    assert err.count(b"\n") == 1


@pytest.mark.parametrize(
    "args", [LIST, ("--help",), pytest.param(PARTITION, marks=pytest.mark.slow)], ids=" ".join
)
def test_a_reader_that_goes_away(args: tuple[str, ...], tmp_path: Path) -> None:
    process = started(tmp_path, *args, PYTHONUNBUFFERED="1")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=300)
    assert err == b""
    assert process.returncode in (1, 128 + signal.SIGPIPE, -signal.SIGPIPE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        run = ("run", "--engine", "serial", "--rounds", "1", "--clients", "4")
        status, _, err = ended(started(tmp_path, *run))
    finally:
        tmp_path.chmod(0o700)
    assert status == 1
    assert err.count(b"\n") == 1
