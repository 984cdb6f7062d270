"""Honest runs are verified, and every kind of forgery is found in the rounds that are done again.

A forger here also writes the digests of the newest checkpoint anew: without that each changed table
is found at once.
"""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

import fedsim
from fedsim.audit.tables import Comparison, Difference, is_close, recorded
from fedsim.audit.verify import NotPossible, runs_of, verify
from fedsim.cli import main
from fedsim.core import files
from fedsim.core.errors import StoreError
from fedsim.core.rows import ClientRow, DecompositionRow, RoundRow
from fedsim.storage import tensors
from fedsim.storage.checkpoint import decode_record, encode_record, read_record, records
from fedsim.storage.final_models import load_vector
from fedsim.testing.rounds import config
from fedsim.training import round as rounds
from fedsim.training.assemble import prepare
from tests.stopping import Stop, Stopper

pytestmark = pytest.mark.integration

ROUNDS = 6


def small(name="fedavg", model=None, **sections):
    """Six rounds of a method with checkpoints of every second one, and all tables."""
    model = model or ("cnn" if name == "fedbn" else "mlp")
    arguments = {
        "train": {"rounds": ROUNDS},
        "evaluation": {"every": 2, "cosines": True},
        "engine": {"checkpoint_every": 1, "keep_every": 2},
    }
    for section, values in sections.items():
        arguments[section] = arguments.get(section, {}) | values
    return config(name, model, **arguments)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    out = tmp_path_factory.mktemp("verify") / "run"
    return fedsim.run(
        small("scaffold", evaluation={"decompose_every": 3, "loss_matrix": True}), out
    ).path


@pytest.fixture
def run(honest, tmp_path):
    """A copy that may be forged."""
    return shutil.copytree(honest, tmp_path / "run")


def drawing(number):
    """A seed that draws this round alone."""
    draws = (np.random.default_rng(s).choice(ROUNDS, 1, replace=False) for s in range(999))
    return next(seed for seed, drawn in enumerate(draws) if drawn[0] + 1 == number)


def forge(run):
    """Writes the digests of the tables anew, as somebody who knows fedsim would."""
    for record in records(run)[:1]:
        content = read_record(record)
        tables = {table: run / f"{table}.csv" for table in content["digests"]}
        content["digests"] = {
            table: {"size": path.stat().st_size, "sha256": files.sha256(path)}
            for table, path in tables.items()
            if path.exists()
        }
        record.write_bytes(encode_record(content))


def first(run, **arguments):
    """The first difference, as text."""
    result = verify(run, **({"rounds": "all"} | arguments))
    assert not result.verified
    return str(result.differences[0])


def test_an_honest_run(honest):
    before = {p: p.stat().st_mtime_ns for p in honest.rglob("*")}
    result = verify(honest, rounds=2, seed=5)
    assert result.verified
    assert (result.seed, result.rounds, len(result.drawn)) == (5, ROUNDS, 2)
    assert result.models == result.num_executed >= 2
    assert result.coverage == pytest.approx(2 / ROUNDS)
    assert {p: p.stat().st_mtime_ns for p in honest.rglob("*")} == before
    assert verify(honest, rounds=2, seed=5).drawn == result.drawn


def test_a_run_that_leaves_no_model(tmp_path):
    run = fedsim.run(small("fedbn", engine={"save_model": False}), tmp_path / "run").path
    assert not [*run.glob("*.safetensors")]
    result = verify(run, rounds="all")
    assert result.verified
    assert result.models == ROUNDS  # by the digests of models.csv
    with pytest.raises(StoreError, match=r"model\.safetensors: .*engine\.save_model=false"):
        fedsim.predict(run)


@pytest.mark.slow
def test_a_run_that_was_resumed(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Stop):
        fedsim.run(small("scaffold"), out, [Stopper(after=3)])
    unfinished = verify(out, rounds="all")
    assert unfinished.verified
    assert unfinished.rounds == 3
    fedsim.resume(out)
    assert verify(out, rounds="all").verified


# forgeries


def rewrite(path, change):
    """Applies a function to the list of rows of a table, the header first."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    change(rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    path.write_text(text.getvalue())


def another_digit(rows):
    """Changes the last digit of the last number of the table's last row with a fraction."""
    for row in reversed(rows):
        for i in reversed(range(1, len(row))):
            if re.fullmatch(r"-?\d+\.\d+", row[i]):
                row[i] = row[i][:-1] + str((int(row[i][-1]) + 1) % 10)
                return
    raise AssertionError


TABLES = ("rounds", "clients", "classes", "cosines", "spectrum", "decomposition")
OF_CHECKPOINT = f"is not what the checkpoint of round {ROUNDS} names"


@pytest.mark.parametrize("table", TABLES)
def test_a_changed_digit_in_any_table(table, run):
    rewrite(run / f"{table}.csv", another_digit)
    assert first(run, rounds=1) == f"{table}.csv: {OF_CHECKPOINT}"
    forge(run)
    line = r"line \d+, round \d+, column \w+: -?[\d.]+, not -?[\d.]+"
    assert re.fullmatch(rf"{table}\.csv, {line}", first(run))


def edited(table, change):
    return lambda run: rewrite(run / f"{table}.csv", change)


def removed(name):
    return lambda run: (run / name).unlink()


def another(column):
    def change(rows):
        i = rows[0].index(column)
        rows[-1][i] = str(int(rows[-1][i]) + 1)

    return change


def declared(**values):
    def change(run):
        content = json.loads((run / "env.json").read_text())
        (run / "env.json").write_text(json.dumps(content | values))

    return change


def described(run):
    """The same model, whose file says something else."""
    save_file(load_file(run / files.MODEL), run / files.MODEL, {"scored": "yes"})


FOUND = {
    "confusion": (edited("confusion", another("count")), "confusion.csv, line"),
    "partition": (edited("partition", another("train_samples")), "partition.csv: is not what"),
    "split": (edited("split", another("label")), "split.csv: is not what data and"),
    "summary": (edited("summary", another_digit), "summary.csv, line 2, column"),
    "two rows": (edited("summary", lambda rows: rows.append(rows[-1])), "summary.csv: is not one"),
    "column": (edited("classes", lambda rows: rows[0].pop()), "classes.csv: "),
    "another column": (edited("classes", lambda rows: rows[0].reverse()), "classes.csv: its col"),
    "skipped client": (edited("clients", lambda rows: rows.pop(2)), "clients.csv, "),
    "row too many": (edited("cosines", lambda rows: rows.append(rows[-1])), "cosines.csv, line"),
    "fewer": (edited("models", lambda rows: rows.pop()), "models.csv, round 6: a row is missing"),
    "models.csv": (removed("models.csv"), "models.csv: is missing"),
    "partition.csv": (removed("partition.csv"), "partition.csv: is missing"),
    "words": (described, "model.safetensors: is not what the last round gives"),
    "classes": (declared(classes=["a", "b"]), "env.json, classes: ['a', 'b'], not"),
    "clients": (declared(heldout_clients=[1]), "env.json, heldout_clients: [1], not None"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_what_is_found(case, run):
    change, words = FOUND[case]
    change(run)
    forge(run)
    assert first(run).startswith(words)


def test_a_changed_table_of_the_final_clients(tmp_path):
    arguments = small(data={"heldout_clients": 2}, evaluation={"clients_every": 0})
    run = fedsim.run(arguments, tmp_path / "run").path
    assert verify(run, rounds="all").verified
    rewrite(run / "final_clients.csv", another_digit)
    forge(run)
    assert first(run) == "final_clients.csv: is not what the last round gives"


def swap(run, by):
    with tensors.opened(run / files.MODEL) as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        said = file.metadata()
    name = next(n for n, a in arrays.items() if a.dtype == np.float32)
    save_file(arrays | {name: arrays[name] + by}, run / files.MODEL, said)
    forge(run)


def test_a_changed_seed(run):
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub(r"^seed: 0$", "seed: 1", text, flags=re.M))
    before = f"0 as in the checkpoint of round {ROUNDS}"
    assert first(run, rounds=1) == f"config.yaml, seed: 1, not {before}"
    shutil.rmtree(run / "checkpoints")
    assert re.match(r"\w+\.csv, line \d+, round 1, column", first(run))


@pytest.mark.slow
def test_a_patched_rule_in_one_round(tmp_path, monkeypatch):
    advance = rounds.advance

    def patched(state, step, updates):
        after = advance(state, step, updates)
        return after if when.pop(0) != 4 else rounds.replace(after, params=after.params * 2)

    when = list(range(1, ROUNDS + 1))
    monkeypatch.setattr(rounds, "advance", patched)
    run = fedsim.run(small(), tmp_path / "run").path
    monkeypatch.undo()
    assert re.match(r"\w+\.csv, line \d+, round 4, column", first(run))
    for number in range(1, ROUNDS + 1):
        result = verify(run, rounds=1, seed=drawing(number))
        assert result.drawn == [number]
        assert result.verified == (number != 4)


def test_a_checkpoint_with_another_model(run):
    """Whoever replaces a run's tables from some round on must also replace its checkpoints."""
    rewrite(run / "models.csv", lambda rows: rows[4].__setitem__(1, "0" * 64))
    forge(run)
    result = verify(run, rounds=1, seed=drawing(5))
    assert str(result.differences[0]) == "checkpoint of round 4: its model is not in models.csv"


# what is said of what is missing


def without(key):
    def change(run):
        reference = json.loads((run / "env.json").read_text())
        del reference[key]
        (run / "env.json").write_text(json.dumps(reference))

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (removed("env.json"), "env.json is missing: processor, versions, code and data"),
        (without("data"), "env.json does not say 'data'"),
        (without("classes"), "env.json does not say 'classes'"),
        (removed("split.csv"), "split.csv is missing"),
        (removed("timings.csv"), "timings.csv is missing"),
    ],
)
def test_what_is_not_compared_is_named(change, words, run):
    change(run)
    forge(run)
    result = verify(run, rounds=2, seed=drawing(ROUNDS))
    assert result.verified
    assert words in result.not_compared
    assert f"  unknown    {words}: not compared\n" in spoken(run)


def spoken(run):
    """What the command prints."""
    return CliRunner().invoke(main, ["verify", str(run), "--rounds", "all"]).output


def test_an_unfinished_run_says_so(run):
    (run / "summary.csv").unlink()
    result = verify(run, rounds=1)
    assert (result.verified, result.finished) == (True, False)
    assert f"  unfinished {ROUNDS} of {ROUNDS} rounds, no summary.csv\n" in spoken(run)


def test_an_unfinished_table_may_end_anywhere(run):
    """A run that was killed while it wrote: the last line, and rows of the round after."""
    (run / "summary.csv").unlink()
    for table in ("rounds", "models"):
        path = run / f"{table}.csv"
        path.write_bytes(path.read_bytes()[:-20])
    shutil.rmtree(run / "checkpoints")
    for path in run.glob("*.safetensors"):
        path.unlink()
    result = verify(run, rounds="all")
    assert (result.verified, result.rounds) == (True, ROUNDS - 1)
    assert [*recorded(run)["models"]] == [*range(1, ROUNDS)]


def test_a_checkpoint_that_says_it_is_of_a_later_round(run):
    """A drawn round would be before it, and nothing be done again."""
    rewrite(run / "rounds.csv", lambda rows: rows[5].__setitem__(1, "7.5"))
    forge(run)
    record = run / "checkpoints" / "round-000004.json"
    record.write_bytes(encode_record(decode_record(record.read_bytes()) | {"round": 99}))
    assert first(run, rounds=1, seed=drawing(5)).startswith("rounds.csv, line 6, round 5, column")


def test_a_damaged_checkpoint_is_left_out(run):
    """The run is honest, and rounds begin at the checkpoint before."""
    (run / "checkpoints" / f"round-{ROUNDS:06d}.json").write_text("{")
    (run / "checkpoints" / "round-000004.json").write_text("{")
    result = verify(run, rounds=1, seed=drawing(5))
    assert result.verified
    assert result.executed == [(3, 5)]


# what is not possible, and other processors


def test_without_its_data(run):
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("\n  dir: null", "\n  dir: nowhere"))
    forge(run)
    with pytest.raises(NotPossible, match="nowhere"):
        verify(run)


@pytest.mark.parametrize("policy", ["drop", "raise"])
def test_lost_work_is_not_lost_again(policy, tmp_path):
    """Where a failure ends the run, errors.csv is no excuse for what differs."""
    run = fedsim.run(small(engine={"on_client_failure": policy}), tmp_path / "run").path
    rewrite(run / "clients.csv", lambda rows: rows[1].__setitem__(2, "dropped"))
    (run / "errors.csv").write_text("round,client_id,attempt,node,error\n1,3,3,,killed\n")
    forge(run)
    if policy == "raise":
        assert "column status: dropped, not ok" in first(run)
        return
    with pytest.raises(NotPossible, match=r"round 1 lost a client's work"):
        verify(run, rounds="all")


@pytest.fixture
def elsewhere(run):
    """The same run, which says that it was done on another processor."""
    environment = json.loads((run / "env.json").read_text())
    environment["processor"]["kernels"] = "AVX512_FP16"
    (run / "env.json").write_text(json.dumps(environment))
    forge(run)
    return run


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({"device": "cpu"}, ""),
        ({"device": "NVIDIA H200"}, "device cpu instead of NVIDIA H200"),
        ({"device": {"name": "cpu", "precision": "tf32"}}, "precision float32 instead of tf32"),
        ({"server_device": "NVIDIA H200"}, "server's device cpu instead of NVIDIA H200"),
    ],
)
def test_another_kind_of_device_is_named(changes, others, run):
    environment = json.loads((run / "env.json").read_text())
    (run / "env.json").write_text(json.dumps(environment | changes))
    forge(run)
    result = verify(run, rounds=1)
    assert (result.others, result.outcome) == (others, "consistent" if others else "verified")


def scaled(column, by, *lines):
    """Multiplies the numbers of a column, in these lines or all."""

    def change(rows):
        i = rows[0].index(column)
        for row in [rows[n] for n in lines] or rows[1:]:
            row[i] = repr(float(row[i]) * (1 + by)) if row[i] else ""

    return change


def test_a_run_of_another_processor(elsewhere):
    rewrite(elsewhere / "rounds.csv", scaled("train_loss", 1e-5, 3))
    forge(elsewhere)
    result = verify(elsewhere, rounds="all")
    assert result.outcome == "consistent"
    assert not result.verified
    assert "AVX512_FP16" in result.others
    assert result.largest == pytest.approx(1e-5, rel=1e-3)
    assert (result.equal, result.scores) == (result.cells - 1, 0)
    assert result.models == ROUNDS  # the same processor did it, after all
    done = call("verify", elsewhere, "--rounds", "all")
    assert done.output.endswith("consistent within 1e-05; not a proof\n")
    rewrite(elsewhere / "rounds.csv", scaled("train_loss", 3e-2))
    forge(elsewhere)
    assert first(elsewhere).startswith("rounds.csv, ")


@pytest.mark.parametrize(
    ("row", "column", "written", "tolerated"),
    [
        (RoundRow, "train_loss", 2.03, True),
        (RoundRow, "train_loss", 2.05, False),
        (RoundRow, "lr", 2.0 * (1 + 1e-3), True),
        (RoundRow, "cohort_size", 3, False),
        (ClientRow, "num_steps", 3, False),
        (RoundRow, "test_accuracy", 2.02, True),
        (RoundRow, "test_accuracy", 2.07, False),
        (DecompositionRow, "shift_loss", 2.02, True),
        (DecompositionRow, "local_loss", "", False),
    ],
)
def test_what_rounding_explains(row, column, written, tolerated):
    """Of a value of 2, on another processor; counts are the same on every one."""
    expected = 2 if isinstance(written, int) else 2.0
    row = row(**dict.fromkeys(row.columns()) | {"round": 1, column: expected})
    cells = {name: "" for name in row.columns()} | {"round": "1", column: str(written)}
    elsewhere = Comparison(others="another processor")
    if tolerated:
        elsewhere.compare_row("here", cells, row)
    else:
        with pytest.raises(Difference, match=f"here, column {column}"):
            elsewhere.compare_row("here", cells, row)
    with pytest.raises(Difference):
        Comparison().compare_row("here", cells, row)


def test_how_far_models_may_be_apart():
    ones = np.ones(100, np.float32)
    assert is_close(ones, ones + np.float32(1e-3))
    assert not is_close(ones, ones + np.float32(2e-3))
    assert not is_close(np.arange(3), np.arange(3) + 1)


@pytest.mark.parametrize("drawn", [1, ROUNDS])
def test_a_model_is_no_rounding(drawn, elsewhere):
    """Whatever is drawn, and although models.csv names the other model."""
    swap(elsewhere, np.float32(1e-2))
    vector = load_vector(elsewhere, prepare(small("scaffold")).layout)
    digest = rounds.model_sha256(vector)
    rewrite(elsewhere / "models.csv", lambda rows: rows[-1].__setitem__(1, digest))
    forge(elsewhere)
    words = "model.safetensors: is too far off"
    assert first(elsewhere, rounds=1, seed=drawing(drawn)) == words


# what a verification must not do


CODE = {
    "method": "algorithm: canary.py:build",
    "builtin": "algorithm: os:getcwd",
    "server": "server: fedavgm, canary.py:build",
    "model": "model: {name: 'canary.py:build'}",
    "section": "'canary.py:build': {mu: 1}",
}


@pytest.mark.parametrize("change", CODE.values(), ids=CODE.keys())
def test_code_that_a_run_names_is_not_run(change, run, tmp_path, monkeypatch):
    """The canary lies in the run, where its settings also lead Python."""
    monkeypatch.chdir(run)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (run / "canary.py").write_text(f"open({str(tmp_path / 'sang')!r}, 'w')\nbuild = None\n")
    arguments = yaml.safe_load((run / "config.yaml").read_text())
    arguments["engine"]["working_dir"] = str(run)
    for section, values in yaml.safe_load(change).items():
        arguments[section] = (
            arguments[section] | values
            if section in arguments and isinstance(values, dict)
            else values
        )
    (run / "config.yaml").write_text(yaml.safe_dump(arguments))
    forge(run)
    done = CliRunner().invoke(main, ["verify", str(run)])
    assert done.exit_code == 2
    assert done.output.startswith("error: ")
    assert ":build is code" in done.output or "os:getcwd is code" in done.output
    assert "--allow-code" in done.output
    assert str(run) not in sys.path
    assert not (tmp_path / "sang").exists()


def test_code_that_is_allowed_is_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    own = tmp_path / "sum_of_updates.py"
    own.write_text("def rule(updates, weights):\n    return weights @ updates\n")
    run = fedsim.run(small(f"{own}:rule", train={"rounds": 1}), tmp_path / "run").path
    with pytest.raises(NotPossible, match=r"algorithm .*sum_of_updates\.py:rule is code"):
        verify(run)
    assert verify(run, allow_code=True).verified


@pytest.mark.parametrize("name", ["clients.csv", "model.safetensors", "notes/here"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_of_the_run_is_not_read(kind, name, run):
    path = run / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(__file__)
    words = "a pipe, not a regular file" if kind == "pipe" else "a link that leads out of"
    with pytest.raises(NotPossible, match=f"{name}: {words}"):
        verify(run)
    done = call("verify", run)
    assert done.exit_code == 2
    assert f"{name}: {words}" in done.stderr


# the command


def call(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_a_verified_run(honest):
    done = call("verify", honest, "--rounds", 2, "--seed", 7)
    assert done.exit_code == 0, done.output
    lines = [line.split(None, 1) for line in done.output.splitlines()]
    assert lines[0] == [f"{honest}:", "6 rounds"]
    assert re.fullmatch(r"\d, \d \(seed 7\)", lines[1][1])
    again = r"again \d rounds? \(.*\): \d+ rows and \d models?, byte for byte"
    assert re.fullmatch(again, lines[2][1])
    assert done.output.endswith(
        "verified; one wrong round would have been found with probability 0.33\n"
    )


def test_a_run_that_differs(run):
    rewrite(run / "rounds.csv", another_digit)
    forge(run)
    done = call("verify", run, "--rounds", "all")
    assert done.exit_code == 1
    assert re.search(r"^  differs    rounds\.csv, line 7, round 6, column \w+: ", done.output, re.M)
    assert done.output.endswith("NOT verified\n")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda run: shutil.rmtree(run), "run"),
        (lambda run: (run / "config.yaml").write_text("seed: x\n"), "seed"),
        (lambda run: (run / "rounds.csv").write_text("round,lr\n"), "no round is complete"),
        (lambda run: [p.unlink() for p in run.iterdir() if p.is_file()], "holds no run"),
    ],
)
def test_a_run_that_cannot_be_verified(change, reason, run):
    change(run)
    done = call("verify", run)
    assert done.exit_code == 2, done.output
    assert done.output.startswith("error: ")
    assert reason in done.output


@pytest.mark.slow
def test_nothing_stays_after_a_signal(honest, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "fedsim", "verify", honest, "--rounds", "all"]
    process = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(temporary)})
    while not [*temporary.rglob("partition.csv")]:
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    assert not [*temporary.iterdir()]


def test_runs_of_a_sweep_are_drawn(tmp_path):
    grid = {"grid": {"seed": [0, 1, 2]}, "train": {"rounds": 1, "sample_rate": 0.5}}
    grid |= {"data": {"num_clients": 4}, "engine": {"kind": "serial"}}
    sweep = tmp_path / "sweep"
    fedsim.sweep(grid, sweep, parallel=1)
    some = runs_of(sweep, 2, 1)
    assert len(some) == 2
    assert some == runs_of(sweep, 2, 1)
    rewrite(some[1] / "summary.csv", another_digit)
    done = call("verify", sweep, "--sample", 2, "--rounds", 1, "--seed", 1)
    assert done.exit_code == 1, done.output
    assert done.output.index(f"{some[0].name}: 1 round\n") < done.output.index(some[1].name)
    report = json.loads(
        call("verify", sweep, "--sample", 2, "--seed", 1, "--format", "json").output
    )
    assert (report["outcome"], report["verified"], report["seed"]) == ("differs", False, 1)
    assert [run["outcome"] for run in report["runs"]] == ["verified", "differs"]
