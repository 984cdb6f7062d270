"""Forged runs, each verified: every one is found, refused, or named in the output or on the page.

A forger changes digits, rows, tables, models, checkpoints, settings, what env.json says, or puts
pipes and code into a run, and then writes the digests of its tables anew. Nothing of the run's
folder may be written, and nothing that it names be executed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import random
import re
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

import fedsim
from fedsim.core import files
from fedsim.core.errors import FedsimError
from fedsim.storage.checkpoint import decode_record, encode_record
from fedsim.storage.final_models import load_vector
from fedsim.testing.rounds import config
from fedsim.training.round import model_sha256
from fedsim.training.setup import prepare
from tests.fuzz.harness import fedsim as command
from tests.fuzz.harness import parts, workplace
from tests.stopping import Stop, Stopper
from tests.unit.audit.test_verify import forge

pytestmark = pytest.mark.integration

ROUNDS, SEED, PARTS = 3, 20261127, 12
PAGE = " ".join((Path(__file__).parents[2] / "docs/how-to/verify.md").read_text().split())
NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")


@dataclass(frozen=True)
class Forgery:
    """What was done to a run.

    Args:
        what: in words.
        named: what the output, or the page, has to say where nothing differs.
        elsewhere: the run says that another processor did it, so that it is never verified.
    """

    what: str
    named: str = ""
    elsewhere: bool = False


def settings(name: str = "scaffold", **sections: dict[str, object]) -> fedsim.RunConfig:
    given = {
        "data": {"test_fraction": 0.7, "val_fraction": 0.25},
        "train": {"rounds": ROUNDS, "lr": 0.05},
        "evaluation": {"cosines": True, "decompose_every": 1, "loss_matrix": True},
        "engine": {"checkpoint_every": 1, "keep_every": 1},
    }
    for section, values in sections.items():
        given[section] = given.get(section, {}) | values
    return config(name, "cnn" if name == "fedbn" else "mlp", **given)


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Honest runs: finished, ended after two of three rounds, personalised, another, a sweep."""
    out = tmp_path_factory.mktemp("forgeries")
    held_out = {"heldout_clients": 2}
    runs = {
        "finished": fedsim.run(settings(), out / "finished").path,
        "personal": fedsim.run(settings("fedbn", data=held_out), out / "personal").path,
        "another": fedsim.run(settings("scaffold", train={"lr": 0.1}), out / "another").path,
        "unfinished": out / "unfinished",
        "sweep": out / "sweep",
    }
    with pytest.raises(Stop):
        fedsim.run(settings(), runs["unfinished"], [Stopper(after=2)])
    experiment = {
        "data": {"num_clients": 8, "test_fraction": 0.9},
        "train": {"rounds": 2, "sample_rate": 0.25, "batch_size": 20},
        "model": {"name": "mlp"},
        "engine": {"kind": "serial"},
        "grid": {"algorithm": ["fedavg", "fedld"], "seed": [0, 1]},
    }
    fedsim.sweep(experiment, runs["sweep"], parallel=1)
    return runs


# what forgers do


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def write_rows(path: Path, rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    path.write_text(text.getvalue())


def tables(run: Path) -> list[str]:
    return sorted(path.stem for path in run.glob("*.csv") if path.stem != "errors")


def edit_json(path: Path, change: Callable[[dict], object]) -> None:
    known = json.loads(path.read_text())
    change(known)
    path.write_text(json.dumps(known))


def claim(run: Path, rng: random.Random) -> None:
    """Another processor, version or device, of the run or of a part that was resumed."""

    def change(known: dict) -> None:
        others = [
            {"processor": known["processor"] | {"kernels": "AVX512_VNNI"}},
            {"packages": known["packages"] | {"numpy": "1.26.4"}},
            {"packages": known["packages"] | {"torch": "2.0.0"}},
            {"resumed": [known | {"processor": {"machine": "riscv"}}]},
        ]
        known |= rng.choice(others)

    edit_json(run / "env.json", change)


UNCOMPARED = {
    ("summary", "run_id"): "`run_id`",
    ("summary", "total_seconds"): "`total_seconds`",
    ("summary", "seconds_to_target"): "`seconds_to_target`",
    ("summary", "label"): "`label`",
}


def cell(run: Path, rng: random.Random, by: float | None = None) -> Forgery:
    """One cell of any table and row: its last digit, or a number scaled."""
    table = rng.choice([t for t in tables(run) for _ in range(1 if t == "timings" else 3)])
    rows = rows_of(run / f"{table}.csv")
    places = [
        (i, j)
        for i, row in enumerate(rows[1:], 1)
        for j, text in enumerate(row)
        if text and (by is None or NUMBER.fullmatch(text))
    ]
    column = rng.choice(sorted({j for _, j in places}))
    i = rng.choice([i for i, j in places if j == column])
    text, name = rows[i][column], rows[0][column]
    if NUMBER.fullmatch(text):
        if by is None or "." not in text:
            other = text[:-1] + str((int(text[-1]) + rng.randint(1, 9)) % 10)
            if "e" in text:
                other = repr(float(text) * 2)
        else:
            other = repr(float(text) * (1 + by) if float(text) else by)
    else:
        other = f"{text}x"
    rows[i][column] = other
    write_rows(run / f"{table}.csv", rows)
    named = "`timings.csv` and `errors.csv`" if table == "timings" else ""
    named = UNCOMPARED.get((table, name), named)
    return Forgery(f"{table}.csv, line {i + 1}, {name}: {text} -> {other}", named)


def finished_cell(run: Path, rng: random.Random) -> Forgery:
    return cell(run, rng)


def unfinished_cell(run: Path, rng: random.Random) -> Forgery:
    return cell(run, rng)


def elsewhere_cell(run: Path, rng: random.Random) -> Forgery:
    """By 5 % and more, which no rounding explains, or by the last digit, which it does."""
    claim(run, rng)
    by = rng.choice([None, -0.05, 0.05, 0.2])
    done = cell(run, rng, by)
    small = by is None and re.search(r"\.\d+ -> |e-?\d+ -> ", done.what)
    small = small or done.what.startswith(("models.csv", "decomposition.csv"))
    named = done.named or ("within" if small else "")
    if done.what.startswith(("classes.csv", "confusion.csv")):
        named = "`classes.csv` and `confusion.csv`"
    elif re.search(r"accuracy|macro_f1|auc|ece", done.what):
        named = named or "what 1 % of the predictions"
    return Forgery(done.what, named, elsewhere=True)


def some_rows(run: Path, rng: random.Random) -> Forgery:
    """A row removed, doubled or exchanged, or one that says it is of a later round."""
    table = rng.choice([t for t in tables(run) if t not in ("summary", "timings")])
    rows = rows_of(run / f"{table}.csv")
    i, how = rng.randrange(1, len(rows)), rng.choice(["removed", "doubled", "moved", "later"])
    if how == "removed":
        del rows[i]
    elif how == "doubled":
        rows.insert(i, rows[i])
    elif how == "later":
        rows.append([str(ROUNDS + 2), *rows[-1][1:]])
    else:
        others = [k for k in range(1, len(rows)) if rows[k] != rows[i]]
        k = rng.choice(others)
        rows[i], rows[k] = rows[k], rows[i]
    write_rows(run / f"{table}.csv", rows)
    named = "models.csv, round" if (table, how) == ("models", "removed") else ""
    return Forgery(f"{table}.csv, line {i + 1} {how}", named)


def removed(run: Path, rng: random.Random) -> Forgery:
    names = [path.name for path in sorted(run.iterdir()) if path.is_file()]
    name = rng.choice([n for n in names if n != files.LOCK_FILE])
    if rng.random() < 0.3:
        (run / name).write_bytes(b"")
        return Forgery(f"{name} emptied", "errors.csv")
    (run / name).unlink()
    named = "no summary.csv" if name == "summary.csv" else f"{name} is missing"
    return Forgery(f"{name} removed", named)


def cut(run: Path, rng: random.Random) -> Forgery:
    """The first columns of a table alone, or a last line without its end."""
    table = rng.choice([t for t in tables(run) if t != "timings"])
    path = run / f"{table}.csv"
    rows = rows_of(path)
    if rng.random() < 0.2:
        path.write_bytes(path.read_bytes()[:-1])
        return Forgery(f"{table}.csv: its last line has no end")
    width = rng.randrange(1, len(rows[0]))
    lost = rows[0][width]
    write_rows(path, [row[:width] for row in rows])
    return Forgery(f"{table}.csv cut at {lost}", f"{table}.csv, column {lost}")


def environment(run: Path, rng: random.Random) -> Forgery:
    """A key of env.json removed or changed."""
    known = json.loads((run / "env.json").read_text())
    key = rng.choice([*known, "malicious_clients", "sites", "heldout_clients", "code"])
    said = {"processor": "within", "packages": "within"}
    said |= {"fedsim": "fedsim ", "git_commit": "git_commit "}
    other = "What else `env.json` says"
    if key in known and rng.random() < 0.5:
        del known[key]
        compared = key in ("processor", "packages", "data", "classes")
        named = f"say {key!r}" if compared else said.get(key, other)
        what, elsewhere = f"env.json without {key}", False
    else:
        values = {"data": dict.fromkeys(("samples", "labels", "classes"), "0" * 64)}
        values |= {"processor": {"kernels": "x"}, "packages": {"torch": "1"}}
        values["code"] = {"method": {"name": "mine:build", "files": {}}}
        known[key] = values.get(key, rng.choice([[], ["x"], "x"]))
        named = said.get(key, other)
        what, elsewhere = f"env.json {key}: {known[key]}", named == "within"
    (run / "env.json").write_text(json.dumps(known))
    return Forgery(what, named, elsewhere)


def setting(run: Path, rng: random.Random) -> Forgery:
    key, value = rng.choice(
        [
            *(("seed", s) for s in (1, 7)),
            *(("train.lr", v) for v in (0.051, 0.1)),
            *(("algorithm", a) for a in ("fedavg", "fedprox")),
            *(("data.seed", 3), ("data.alpha", 9.0), ("train.rounds", 9), ("train.rounds", 2)),
            *(("label", "FedLD"), ("engine.actors", 7), ("model.name", "cnn"), ("seed", "x")),
            *(("evaluation.every", 2), ("train.batch_size", 7), ("data.dir", "/dev")),
        ]
    )
    known = yaml.safe_load((run / "config.yaml").read_text())
    section, _, leaf = key.rpartition(".")
    (known[section] if section else known)[leaf] = value
    if rng.random() < 0.5:  # whoever knows fedsim also removes what says another thing
        shutil.rmtree(run / "checkpoints")
    (run / "config.yaml").write_text(yaml.safe_dump(known))
    if key == "label":
        rows = rows_of(run / "summary.csv")
        rows[1][rows[0].index("label")] = value
        write_rows(run / "summary.csv", rows)
    named = {"label": "`label`", "engine.actors": "`engine`", "train.rounds": "ended after"}
    return Forgery(f"config.yaml, {key}: {value}", named.get(key, ""))


def renamed_models(run: Path, kind: str) -> None:
    """Writes the digest of model.safetensors into the last row of models.csv."""
    layout = prepare(settings("fedbn" if kind == "personal" else "scaffold")).layout
    rows = rows_of(run / "models.csv")
    rows[-1][1] = model_sha256(load_vector(run, layout))
    write_rows(run / "models.csv", rows)


def models(run: Path, rng: random.Random, bases: dict[str, Path]) -> Forgery:
    """Models and checkpoints exchanged or changed, models.csv perhaps as well."""
    kind = "personal" if (run / files.CLIENTS).exists() else "finished"
    elsewhere = rng.random() < 0.5
    if elsewhere:
        claim(run, rng)
    how = rng.choice(["model", "another", "clients", "checkpoint", "checkpoints"])
    if how == "clients" and kind == "finished":
        how = "model"
    if how in ("model", "clients"):
        path = run / (files.MODEL if how == "model" else files.CLIENTS)
        arrays = load_file(path)
        name = rng.choice([n for n, a in arrays.items() if a.dtype == np.float32])
        by = np.float32(rng.choice([0.01, 0.1, 1]))
        changed = arrays | {name: arrays[name] + by}
        save_file(changed, path)
        what = f"{path.name}, {name} + {by}"
    elif how == "another":
        shutil.copy(bases["another"] / files.MODEL, run / files.MODEL)
        what = "the model of another run"
    elif how == "checkpoints":
        shutil.rmtree(run / "checkpoints")
        shutil.copytree(bases["another"] / "checkpoints", run / "checkpoints")
        what = "the checkpoints of another run"
    else:
        number = rng.randrange(1, ROUNDS)
        arrays_of = run / "checkpoints" / f"round-{number:06d}.safetensors"
        arrays = load_file(arrays_of)
        save_file(arrays | {"params": arrays["params"] + np.float32(0.1)}, arrays_of)
        record = arrays_of.with_suffix(".json")
        content = decode_record(record.read_bytes())
        content["arrays"] = {arrays_of.name: files.sha256(arrays_of)}
        record.write_bytes(encode_record(content))
        what = f"checkpoint {number} + 0.1"
    if how in ("model", "another") and rng.random() < 0.5:
        with suppress(Exception):
            renamed_models(run, kind)
            what += ", and in models.csv"
    unused = how in ("checkpoint", "checkpoints")
    return Forgery(what, "Each checkpoint that is used" if unused else "", elsewhere)


def scores(run: Path, rng: random.Random) -> Forgery:
    """Higher scores in all rounds under another processor."""
    claim(run, rng)
    column = rng.choice(["test_accuracy", "test_balanced_accuracy", "test_macro_f1", "test_auc"])
    by = rng.choice([0.1, 0.2, 0.5])
    rows = rows_of(run / "rounds.csv")
    i = rows[0].index(column)
    for row in rows[1:]:
        if row[i]:
            row[i] = repr(float(row[i]) + by)
    write_rows(run / "rounds.csv", rows)
    summary = rows_of(run / "summary.csv")
    for k, name in enumerate(summary[0]):
        if name.endswith(column) and name != f"client_{column}":
            summary[1][k] = repr(float(summary[1][k]) + by)
    write_rows(run / "summary.csv", summary)
    return Forgery(f"{column} + {by}", elsewhere=True)


def special(run: Path, rng: random.Random) -> Forgery:
    """A pipe, a socket, a folder, a link out of the run or a huge file in place of one of its."""
    names = [p.relative_to(run).as_posix() for p in sorted(run.rglob("*")) if p.is_file()]
    name = rng.choice([*names, "note", ".lock"])
    kind = rng.choice(["pipe", "socket", "folder", "link", "device", "huge"])
    path = run / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.open(run, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{here}/{name}")
        os.close(here)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        path.touch()
        os.truncate(path, 2**40)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else __file__)
    return Forgery(f"{kind} in place of {name}", "Each checkpoint that is used")


KEYS = ("algorithm", "server", "model.name", "data.name", "data.partition", "train.schedule")


def code(run: Path, rng: random.Random) -> Forgery:
    """A function of the run's own, or of Python, under any key, found by any way."""
    key = rng.choice([*KEYS, "section", "engine.kind", "engine.working_dir"])
    name = rng.choice(["canary:build", f"{run}/canary.py:build", "os:abort", "signal:pause"])
    canary = "import pathlib\n(pathlib.Path(__file__).parent.parent / 'sang').touch()\nbuild = 1\n"
    for module in ("canary", "scipy", "sklearn", "_strptime"):
        (run / f"{module}.py").write_text(canary)
    known = yaml.safe_load((run / "config.yaml").read_text())
    known["engine"]["working_dir"] = str(run)
    section, _, leaf = key.rpartition(".")
    if key == "section":
        known[name] = {"mu": 1}
    elif key != "engine.working_dir":
        (known[section] if section else known)[leaf] = name
    (run / "config.yaml").write_text(yaml.safe_dump(known))
    free = key.startswith("engine.")  # the work is done in this process, whatever is said there
    return Forgery(f"{key}: {name}", "`engine`" if free else "")


def in_a_sweep(sweep: Path, rng: random.Random) -> Forgery:
    names = sorted(path.parent.name for path in sweep.glob("*/rounds.csv"))
    name = rng.choice(names)
    how = rng.randrange(8)
    grid, both = sweep / "sweep.json", [sweep / "summary.csv", sweep / "aggregate.csv"]
    if how == 0:
        grid.write_text(rng.choice(["{", "[1]", "", '{"runs": 1}']))
        return Forgery("sweep.json damaged")
    if how == 1:
        grid.unlink()
        return Forgery("sweep.json removed", "sweep.json is missing")
    if how == 2:
        shutil.rmtree(sweep / name)
        for path in both:
            path.unlink()
        return Forgery(f"{name} and both tables removed", f"of the grid: {name}")
    if how == 3:
        edit_json(grid, lambda known: known["runs"].append("algorithm=fedgh,seed=9"))
        return Forgery("a run more in sweep.json", "unfinished 1 run of the grid")
    if how == 4:
        path = rng.choice(both)
        path.unlink()
        os.mkfifo(path)
        return Forgery(f"pipe in place of {path.name}")
    if how == 5:
        other = rng.choice([each for each in names if each != name])
        shutil.rmtree(sweep / name)
        shutil.copytree(sweep / other, sweep / name)
        return Forgery(f"{other} also as {name}")
    path = rng.choice([*both, sweep / name / "summary.csv"])
    rows = rows_of(path)
    i = rng.randrange(1, len(rows))
    j = rows[0].index(
        rng.choice([c for c in rows[0] if "accuracy" in c and rows[i][rows[0].index(c)]])
    )
    rows[i][j] = repr(float(rows[i][j]) + 0.01)
    write_rows(path, rows)
    return Forgery(f"{path.parent.name}/{path.name}, {rows[0][j]} + 0.01")


KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "finished_cell": (84, ("finished", "personal")),
    "elsewhere_cell": (60, ("finished", "personal")),
    "unfinished_cell": (24, ("unfinished",)),
    "some_rows": (42, ("finished", "personal", "unfinished")),
    "removed": (20, ("finished", "personal")),
    "cut": (20, ("finished", "personal")),
    "environment": (24, ("finished", "unfinished")),
    "setting": (16, ("finished",)),
    "models": (24, ("finished", "personal")),
    "scores": (16, ("finished",)),
    "special": (24, ("finished", "personal", "unfinished", "sweep")),
    "code": (18, ("finished", "unfinished")),
    "in_a_sweep": (12, ("sweep",)),
}
"""How many forgeries of each kind, and of which runs."""
ORDER = [kind for kind, (count, _) in KINDS.items() for _ in range(count)]
random.Random(SEED).shuffle(ORDER)


def everything(folder: Path) -> Iterator[tuple[str, ...]]:
    """Names, kinds, times and bytes of all that lies in a folder."""
    for path in sorted(folder.rglob("*")):
        known = path.lstat()
        regular = path.is_file() and not path.is_symlink() and known.st_size < 2**30
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if regular else ""
        yield str(path), oct(known.st_mode), str(known.st_mtime_ns), str(known.st_size), digest


def attempt(number: int, bases: dict[str, Path], folder: Path) -> str:
    """Forges a run, verifies it, and says what came of it."""
    rng = random.Random(SEED + number)
    kind = ORDER[number]
    base = rng.choice(KINDS[kind][1])
    before_path = list(sys.path)
    with workplace(folder) as work:
        run = shutil.copytree(bases[base], work / base)
        given = (bases,) if kind == "models" else ()
        done: Forgery = globals()[kind](run, rng, *given)
        for path in [run, *(p for p in run.iterdir() if p.is_dir())] if kind != "special" else ():
            with suppress(FedsimError, OSError, ValueError):
                forge(path)
        os.chdir(run if kind == "code" else work)
        before = list(everything(work))
        result = command("verify", str(run), "--rounds", "all", "--sample", "9")
        assert list(everything(work)) == before, "a file was written"
        assert not list((folder / "tmp").iterdir()), "a temporary folder stays"
    assert sys.path == before_path, "sys.path has changed"
    output, place = result.output, f"{number} ({kind} of {base}): {done.what}"
    assert result.exception is None or isinstance(result.exception, SystemExit), place
    said = f"{place}\n{output[-2000:]}"
    if result.exit_code == 2:
        errors = [line for line in output.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, said
        assert "unexpected" not in errors[0], said
        return "refused"
    if result.exit_code == 1:
        assert re.search("^  differs    ", output, re.M), said
        assert "  verified" not in output or base == "sweep", said
        return "found"
    assert result.exit_code == 0, said
    assert done.named, f"nothing said: {said}"
    if done.elsewhere:
        assert "verified" not in output, said
        assert "consistent within" in output, said
        return "consistent"
    in_output = done.named in " ".join(output.split())
    assert in_output or done.named in PAGE, f"{done.named!r} is nowhere: {said}"
    return "named in the output" if in_output else "named on the page"


def tried(numbers: range, bases: dict[str, Path], folder: Path) -> Counter[str]:
    """Tries forgeries and tells all that passed."""
    counts, passed = Counter[str](), []
    for number in numbers:
        try:
            counts[attempt(number, bases, folder / str(number))] += 1
        except AssertionError as error:
            passed.append(str(error))
        shutil.rmtree(folder / str(number), ignore_errors=True)
    assert not passed, f"{len(passed)} of {len(numbers)}:\n" + "\n".join(passed)
    return counts


def test_there_are_384_of_all_kinds() -> None:
    assert len(ORDER) == 384


def test_some_forgeries(bases: dict[str, Path], tmp_path: Path) -> None:
    tried(range(5), bases, tmp_path)


@pytest.mark.parametrize("part", parts(PARTS))
def test_all_forgeries(part: int, bases: dict[str, Path], tmp_path: Path) -> None:
    print(tried(range(part, len(ORDER), PARTS), bases, tmp_path))  # noqa: T201
