"""fedsim run, doctor, partition and list, and errors of all commands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from analysis.cli import main as analysis_main
from fedsim import api
from fedsim.cli import main
from fedsim.cli.common import configuration
from fedsim.cli.doctor import doctor, size
from fedsim.cli.report import COMMANDS
from fedsim.cli.run import run
from fedsim.config.run import RunConfig
from fedsim.core.analysis import analysis
from tests.commands import clean_environment

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]


# run


QUICK = ["--engine", "serial", "--rounds", "2", "--clients", "5", "--sample-rate", "0.4"]
ALONE = ["--parallel", "1"]


def fedsim(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
    )


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSIM_DEBUG", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ("run --algorithm fedldd", ["--algorithm", "'fedldd'", "did you mean 'fedld'?"]),
        ("run --preset table33", ["--preset", "did you mean 'table3'?"]),
        ("run --working-dir nowhere", ["--working-dir", "'nowhere' is not a directory"]),
        ("run --alpha x", ["--alpha", "'x'", "number"]),
        ("run --engine dask", ["--engine", "'dask'", "must be one of ray, serial"]),
        ("run --set train.lrr=1", ["--set train.lrr", "did you mean 'train.lr'?"]),
        ("run --set train.lr", ["--set train.lr", "key=value"]),
        ("run --rounds 3 --set train.rounds=4", ["--set train.rounds=4", "--rounds"]),
        ("run -c none.yaml", ["none.yaml", "cannot be read"]),
        ("run --algoritm fedld", ["--algoritm", "--algorithm"]),
        ("run --num-clients 3", ["--num-clients", "Did you mean '--clients'?"]),
        ("run --threads 2", ["--threads", "Did you mean '--set train.threads=...'?"]),
        ("run -d mnist --data-dir s3://b/d", ["--data-dir: 's3://b/d' given; must be", "mount"]),
        ("run --out=gs://b/d", ["--out: 'gs://b/d' given", "mount the storage", "or copy"]),
        (
            "run --set model.weights=hdfs://n/w",
            ["--set model.weights: 'hdfs://n/w' given; must be"],
        ),
        ("run --epochs 1 --set train.local_epochs=2", ["train.local_epochs=2", "by --epochs"]),
        ("run fedld", ["fedld"]),
        ("rnu", ["rnu"]),
        ("list things", ["things", "algorithms"]),
        ("sweep", ["FILE|PRESET"]),
        ("sweep table2 --algorithm fedbn", ["--algorithm", "axis method"]),
        ("partition --clients 5000", ["5000 clients", "1438"]),
        ("partition --set data.min_samples=100", ["100", "1438"]),
    ],
)
def test_bad_input_is_one_line_exit_2_and_writes_nothing(
    args: str, parts: list[str], tmp_path: Path
) -> None:
    result = fedsim(*args.split())
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    for part in parts:
        assert part in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_verbose_and_the_environment_show_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = fedsim("run", "--verbose", "--alpha", "0")
    monkeypatch.setenv("FEDSIM_DEBUG", "1")
    for result in (flag, fedsim("run", "--alpha", "0")):
        assert result.exit_code == 2
        lines = result.stderr.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[-1].startswith("error: --alpha: '0' given")
    failed = fedsim("partition", "--out", "/dev/null/nope")
    assert failed.exit_code == 1
    assert failed.stderr.startswith("Traceback")


def test_what_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    result = fedsim("partition", "--clients", "4", "--sample-rate", "0.5", "--out", "/dev/null/p")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: /dev/null/p: cannot be written (Not a directory)\n",
    )
    (tmp_path / "g.yaml").write_text("grid: {seed: [0]}")
    (tmp_path / "s" / "summary.csv").mkdir(parents=True)
    result = fedsim("sweep", "g.yaml", *QUICK, *ALONE, "--out", "s")
    assert (result.exit_code, result.stderr[:22]) == (1, "error: s/summary.csv: ")


def test_help_is_grouped() -> None:
    text = fedsim("run", "--help-all").stdout
    headings = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    groups = ("Experiment", "Data", "Model", "Training", "Evaluation", "Engine")
    wanted = ("Files and settings", "Runs", *groups, "Other")
    assert headings == [f"{group}:" for group in wanted]


@pytest.mark.parametrize("command", sorted(main.commands))
def test_options_are_described_in_one_form(command: str) -> None:
    of_analysis = command in {each.name for each in COMMANDS}
    group = analysis_main if of_analysis else main
    text = " ".join(CliRunner().invoke(group, [command, "-h"]).stdout.split())
    assert "-h, --help Show this message and exit." in text
    assert "`" not in text
    for other in ("INTEGER RANGE", "default: (", "several times"):
        assert other not in text, other


@pytest.mark.parametrize(("command", "hidden"), [("partition", "--lr"), ("doctor", "--cosines")])
def test_help_shows_the_flags_that_matter_and_takes_the_others(command: str, hidden: str) -> None:
    text = fedsim(command, "--help").stdout
    assert "--alpha A" in text
    assert hidden not in text
    assert text.endswith("More flags, all accepted here: 'fedsim run --help-all'.\n")
    assert hidden in fedsim("run", "--help-all").stdout
    assert main.commands[command].make_context(command, ["--lr", "0.1"]).params["flags"]


def test_the_first_screen_has_40_lines_and_the_help_of_run_twenty_flags() -> None:
    first = CliRunner().invoke(main, ["--help"], env={"COLUMNS": "80"}).stdout
    assert len(first.splitlines()) <= 40
    assert "..." not in first.partition("Options:")[2]
    assert all(f"\n  {name} " in first for name in main.commands)
    flags = re.findall(r"^  (-[\w-]+)", fedsim("run", "--help").stdout, re.MULTILINE)
    assert len(flags) <= 28
    assert {"-a", "-d", "--set", "--help-all"} <= {*flags}


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        (["--lr", "0.1"], {"train.lr": "0.1"}),
        (["--local-epochs", "2"], {"train.local_epochs": "2"}),
        (["--model", "mlp"], {"model.name": "mlp"}),
        (["--pretrained"], {"model.pretrained": True}),
        (["--data-seed", "3"], {"data.seed": "3"}),
    ],
)
def test_flags_set_the_keys_of_set(flags: list[str], keys: dict[str, object]) -> None:
    given = run.make_context("run", flags).params["flags"]
    assert {key: setting.value for key, setting in given.items()} == keys


def test_defaults_in_the_help_are_the_defaults() -> None:
    config = RunConfig()
    for key, option in run.setting_options.items():
        if key == "engine.fast":  # stands for two other keys
            continue
        value = config.value(key)
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        unset = value is None or value is False
        text, _, default = option.help.partition("  [")
        assert default == ("" if unset else f"default: {shown}]"), key
        assert text.endswith("."), key


def test_a_run_in_a_pipe_is_plain_lines(tmp_path: Path) -> None:
    result = fedsim("run", *QUICK, "--out", "r", "--set", "evaluation.every=2")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("fedld on digits, cnn (")
    assert lines[1].startswith("5 clients, 2 per round, 2 rounds; serial")
    assert lines[3].startswith("round 1/2  test accuracy -  train loss ")
    assert lines[4].startswith("round 2/2  test accuracy 0.")
    names = [line.partition("  ")[0] for line in lines[5:15]]
    assert names == [
        *("result", "final test accuracy", "best test accuracy", "mean of last 2 rounds"),
        *("final balanced accuracy", "final macro-F1", "final AUC", "rounds", "seconds", "files"),
    ]
    assert "\x1b" not in result.stdout
    assert (tmp_path / "r" / "summary.csv").exists()


def test_few_clients_need_no_sample_rate(tmp_path: Path) -> None:
    one = fedsim("run", "--clients", "5", "--rounds", "1", "--engine", "serial", "--out", "r")
    assert one.exit_code == 0, one.output
    assert "5 clients, 1 per round (at least one; sample rate 0.1 gives 0.5)" in one.stdout
    assert ", 1 round; serial" in one.stdout
    assert "mean of last" not in one.stdout, "that of one round is the final accuracy"
    shown = fedsim("show", "r")
    assert "; 1 of 1 round\n" in shown.stdout
    assert "last 1" not in shown.stdout
    split = fedsim("partition", "--clients", "5")
    assert split.exit_code == 0, split.output
    assert "on 5 clients" in split.stdout


@pytest.mark.slow
def test_config_yaml_repeats_the_run(tmp_path: Path) -> None:
    assert fedsim("run", *QUICK, "-a", "fedavg", "--out", "a").exit_code == 0
    again = fedsim("run", "-c", "a/config.yaml", "--out", "b")
    assert again.exit_code == 0, again.output
    for table in ("rounds.csv", "clients.csv", "config.yaml", "model.safetensors"):
        assert (tmp_path / "a" / table).read_bytes() == (tmp_path / "b" / table).read_bytes()


def test_a_diverged_run_ends_with_status_1_and_one_line() -> None:
    result = fedsim("run", *QUICK, "--set", "train.lr=1e30", "--out", "r")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "round" in result.stderr
    assert "client" in result.stderr


def test_ctrl_c_is_one_calm_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsim.training import driver

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "run", stop)
    result = fedsim("run", *QUICK)
    assert result.exit_code == 130
    assert result.stderr == "interrupted before the first round\n"


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedsim", "run", *QUICK, "--rounds", "100000", "--out", "r"]
    command += ["--set", "evaluation.every=100000"]
    environment = clean_environment()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    ) as run:
        assert run.stdout is not None
        while not (tmp_path / "r" / "rounds.csv").exists():
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate()
    assert run.returncode == 130
    line = r"interrupted after \d+ of 100000 rounds; resume with: fedsim resume r\n"
    assert re.fullmatch(line, errors), errors


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("run", "mine"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("run", "."), ("sweep", "mine"), ("config", "mine"))
        ),
    ],
)
def test_the_console_script_finds_the_users_own_modules(
    how: str, place: str, tmp_path: Path
) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "toy_method.py").write_text(
        "from fedsim.algorithms.base import Algorithm\n"
        "def build(strength: float = 1.0) -> Algorithm:\n    return Algorithm()\n"
    )
    folder = [] if place == "." else ["--working-dir", place]
    named = f"algorithm: toy_method:build\nengine: {{working_dir: {place}}}\n"
    (tmp_path / "c.yaml").write_text(named)
    (tmp_path / "g.yaml").write_text("grid: {algorithm: [toy_method:build]}\n")
    given = {
        "run": ["run", "-a", "toy_method:build", *folder],
        "sweep": ["sweep", "g.yaml", *folder],
        "config": ["run", "-c", "c.yaml"],
    }
    done = python("-P", "-m", "fedsim", *given[how], *QUICK, "--out", "r")  # -P: as a script does
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text("grid:\n  algorithm: [fedavg, fedgh]\n  seed: [0, 1]\n")
    command = ["sweep", "g.yaml", *QUICK, *ALONE, "--out", "s"]
    names = fedsim("sweep", "g.yaml", "--dry-run", "--no-measure").stdout.splitlines()
    assert names[:4] == [f"algorithm={a},seed={s}" for a in ("fedavg", "fedgh") for s in (0, 1)]
    first = fedsim(*command)
    assert first.exit_code == 0, first.output
    assert (tmp_path / "s" / names[3] / "summary.csv").exists()
    table = first.stdout.splitlines()[-5:]
    assert "mean +- half-width of its 95 % interval" in table[0]
    columns = ["configuration", "n", "final %", "best %", "last2 %", "final balanced %"]
    assert re.split(" {2,}", table[1]) == columns
    assert re.fullmatch(r"algorithm=fedavg +2( +\d+\.\d\d \+- \d+\.\d\d){4}", table[2])
    (tmp_path / "s" / names[3] / "summary.csv").unlink()
    second = fedsim(*command)
    assert second.exit_code == 0, second.output
    assert second.stdout.count("finished before") == 3
    assert f"[4/4] {names[3]}: resumed after an interruption" in second.stdout
    assert not list((tmp_path / "s").glob("*interrupted*"))
    assert second.stdout.splitlines()[-5:] == table
    other = fedsim(*command, "--set", "train.lr=0.5")
    assert other.exit_code == 2
    assert "another train.lr (0.01, wanted 0.5)" in other.stderr


@pytest.mark.parametrize("kind", ["algorithms", "datasets", "models", "partitions", "presets"])
def test_lists_as_table_and_json(kind: str) -> None:
    rows = json.loads(fedsim("list", kind, "--format", "json").stdout)
    names = [row["name"] for row in rows]
    table = fedsim("list", kind).stdout.splitlines()
    assert table[0].startswith("name ")
    assert [line.split()[0] for line in table[1:]] == names
    wanted = {"algorithms": "fedld", "datasets": "digits", "models": "cnn",
              "partitions": "dirichlet", "presets": "table3_small"}  # fmt: skip
    assert wanted[kind] in names
    if kind == "algorithms":
        assert rows[names.index("fedprox")]["hyperparameters"]["mu"] == 0.1


@pytest.mark.slow
def test_partition_prints_and_writes_a_split_that_can_be_used_again(tmp_path: Path) -> None:
    args = ["--clients", "4", "--sample-rate", "0.5"]
    first = fedsim("partition", *args, "--alpha", "0.3", "--out", "p")
    assert first.exit_code == 0, first.output
    lines = first.stdout.splitlines()
    assert lines[0] == "digits, dirichlet: 1438 training samples of 10 classes on 4 clients"
    assert lines[1].split() == ["client", *(w for k in range(10) for w in ("class", str(k))),
                                "samples"]  # fmt: skip
    assert sum(int(line.split()[-1]) for line in lines[2:6]) == 1438
    assert lines[6].split()[0] == "all"
    assert (tmp_path / "p" / "partition.png").read_bytes().startswith(b"\x89PNG")
    reuse = ["--partition", "files", "--set", "data.partition_file=p/split.csv"]
    again = fedsim("partition", *args, *reuse)
    assert again.stdout.splitlines()[2:7] == lines[2:7]
    refused = fedsim("partition", *args, "--out", "p")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "partition.csv is already there" in refused.stderr


ON_A_GPU = ("run", "--dry-run", "--no-measure", "--engine", "ray", "--preset")


@pytest.mark.parametrize(
    ("given", "needed"),
    [((), "1.3"), (("--client-batch", "auto"), "2.9"), (("--client-batch", "50"), "2.9")],
)
def test_a_dry_run_says_what_an_actor_takes_of_a_gpu(given: tuple[str, ...], needed: str) -> None:
    text = fedsim(*ON_A_GPU, "pfl_cifar10", "--gpus-per-client", "0.0625", *given).stdout
    assert f"about {needed} GiB for an actor, and samples" in text


@pytest.mark.parametrize(
    ("preset", "memory", "fraction"),
    [("pfl_cifar10", 16, "0.0625"), ("table3", 16, "0.1"), ("table3", 80, "0.1")],
)
def test_a_fraction_that_does_not_hold_the_training_is_refused(
    preset: str, memory: int, fraction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsim.engine.devices.total_memory", lambda: memory * 10**9)
    refused = fedsim(*ON_A_GPU, preset, "--gpus-per-client", fraction)
    assert refused.exit_code == 2
    share, named = refused.stderr.split(" of GPU memory, and ")
    assert f"--gpus-per-client {fraction}: training one client takes an estimated" in share
    fitting = re.search(r"--gpus-per-client ([\d.]+) would fit", named)
    assert fitting is not None
    fits = fedsim(*ON_A_GPU, preset, "--gpus-per-client", fitting[1])
    assert fits.exit_code == 0, fits.output


def test_doctor_says_what_is_here_and_the_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # of a test before
    text = fedsim("doctor", "--clients", "10", "--cpus-per-client", "0.5", "--gpus-per-client", "0")
    assert text.exit_code == 0, text.output
    rows = {line.split("  ")[0].strip(): line for line in text.stdout.splitlines()}
    assert f"usable of {os.cpu_count()}" in rows["CPUs"]
    assert "10 clients" in rows["placement"]
    assert rows["this machine"].split()[2] == str(len(os.sched_getaffinity(0)))
    assert "actor" in rows["on this machine"]
    assert "GiB for an actor" in rows["memory needed"]
    assert {"torch", "Ray", "memory", "Python"} <= set(rows)
    assert "one process" in fedsim("doctor", "--engine", "serial").stdout


@pytest.mark.parametrize(
    ("args", "parameters"),
    [
        ("-d mnist --model mlp", (64 * 784 + 64 + 650, 0)),
        ("-d mnist --model mlp --set model.trainable=head", (650, 64 * 784 + 64)),
        ("-d digits --model logistic", (650, 0)),
        ("-d digits --model logistic --partition iid --set data.image_size=4", (170, 0)),
    ],
)
def test_doctor_knows_the_size_of_a_model_without_the_data(
    args: str, parameters: tuple[int, int]
) -> None:
    with doctor.make_context("doctor", args.split()) as context:
        asked = {name: context.params[name] for name in ("preset", "config", "flags")}
        settings = configuration(**asked)
    assert size(settings) == (50, *(4 * count for count in parameters))


# doctor


def test_a_dry_run_says_what_an_actor_takes_and_refuses_what_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["run", "--dry-run", "--no-measure", "--preset", "pfl_cifar10"]
    command += ["--engine", "ray", "--gpus-per-client", "0.0625"]
    done = CliRunner().invoke(main, command)
    assert "about 1.3 GiB for an actor, and samples" in done.stdout
    monkeypatch.setattr("fedsim.engine.devices.total_memory", lambda: 16 * 10**9)
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 2
    assert "--gpus-per-client 0.1 would fit" in refused.stderr


# partition


def partition(*args: str) -> Result:
    return CliRunner().invoke(main, ["partition", *args])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--feature-shift", "bluur"], "--feature-shift: 'bluur' given; must be 'none', 'blur'"),
        (["--feature-shift", "colour"], "digits has 1"),
        (
            ["--set", "data.client_test_fraction=0.98"],
            "(76: data.min_samples 2 and the clients' own held-out parts)",
        ),
    ],
)
def test_bad_values_are_refused_in_one_line(args: list[str], message: str) -> None:
    done = partition(*args)
    assert (done.exit_code, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert message in done.stderr


def pictures(root: Path) -> Path:
    (root / "images").mkdir(parents=True)
    lines = ["filename,label,site"]
    for i in range(60):
        Image.new("RGB", (6, 6), (4 * i, 0, 0)).save(root / "images" / f"{i}.png")
        label = "diabetic retinopathy" if i % 2 else "normal"
        lines.append(f"{i}.png,{label},{('clinic a', 'b')[i // 2 % 2]}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


@pytest.mark.slow
@pytest.mark.integration
def test_classes_and_sites_go_by_their_names(tmp_path: Path, monkeypatch) -> None:
    drawn = []
    figure = analysis("figures.partition").figure
    monkeypatch.setattr(
        analysis("figures.partition"),
        "figure",
        lambda *args: drawn.append(figure(*args)) or drawn[-1],
    )
    args = ["-d", "folder", "--data-dir", str(pictures(tmp_path / "d")), "--sample-rate", "1"]
    args += ["--set", "data.image_size=6"]
    done = partition(*args, "--out", "p")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[1] == "2 sites: b 24, clinic a 24"
    head = lines[2].replace("0 diabetic reti...", "D").replace("1 normal", "N")
    assert head.split() == ["client", "name", "D", "N", "samples"]
    assert [line.split()[1:-3] for line in lines[3:5]] == [["b"], ["clinic", "a"]]
    texts = [t.get_text() for t in drawn[0].axes[1].get_yticklabels()]
    assert texts == ["diabetic retino\u2026", "normal"]
    made = api.run(
        RunConfig(
            algorithm="fedavg",
            model={"name": "logistic"},
            data={"name": "folder", "dir": str(tmp_path / "d"), "image_size": 6},
            train={"rounds": 1, "sample_rate": 1.0},
            engine={"kind": "serial"},
        ),
        tmp_path / "run",
    )
    written = json.loads((made.path / "env.json").read_text())
    assert written["classes"] == ["diabetic retinopathy", "normal"]
    assert written["sites"] == ["b", "clinic a"]


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """40 images of two classes at two sites, a typing error, and a patient's name at both."""
    folder = tmp_path / "hospitals"
    folder.mkdir()
    rows = []
    for i in range(40):
        Image.new("L", (8, 8), 6 * i).save(folder / f"{i}.png")
        rows.append(f"{i}.png;{'well' if i % 2 else 'ill'};{'AB'[i // 20]};p{i % 39}")
    rows[6] = "6.png;illl;A;p6"
    (folder / "labels.csv").write_text("\n".join(["filename;label;site;patient", *rows]))
    return folder


def test_remarks_on_labels_and_patients_are_lines(hospitals: Path) -> None:
    args = ["-d", "folder", "--data-dir", "hospitals", "--set", "data.image_size=8"]
    done = partition(*args)
    assert done.exit_code == 0, done.output
    said = "labels that may be typing errors: 'illl' (1 image in row 8) like 'ill' (19)"
    lines = done.stdout.splitlines()
    assert lines[1].endswith(
        " 1 patient name occurs at several sites (p0): a different patient at each"
    )
    assert lines[2] == said
    refused = partition(*args, "--set", "folder.strict_labels=true")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"error: hospitals/labels.csv: {said}; correct the table, or leave" in refused.stderr
