"""Files that commands read and write: odd names, unusable files, full disks, runs left alone."""

from __future__ import annotations

import contextlib
import csv
import json
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from PIL import Image

import fedsim
from analysis.figures import partition, style
from analysis.files import class_names
from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.version import DISTRIBUTION
from tests.commands import clean_environment

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]

# ---- names that are more than letters

MATHS = ("$\\frac{$", "b$x$", "$", "$$", "\\$ 5 $", "a_b^c")
COMMANDS = ("\x1b[31mred", "\x9b31m", "\x1b]0;title\x07", "gnp\u202e.exe", "\x7f", "\x1bc\x08")
RUN = "run\x1b]0;title\x07"
"""The name of a run's directory."""
SERIAL = ("--engine", "serial", "--rounds", "1", "--model", "cnn", "--sample-rate", "1")


def write_images(folder: Path, names: tuple[str, ...]) -> None:
    """Each name is that of a class and of a site."""
    folder.mkdir()
    draw, rows = np.random.default_rng(0), [("filename", "label", "site", "split")]
    for i, name in enumerate(names * 4):
        pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        site = names[(i + i // len(names)) % len(names)]
        rows.append((f"{i}.png", name, site, "test" if i >= 3 * len(names) else "train"))
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def run(*args: str | Path) -> Result:
    result = CliRunner().invoke(main, list(map(str, args)), color=True)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data of each kind of names, and a run on both."""
    folder = tmp_path_factory.mktemp("names")
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSIM_CACHE", str(folder / "cache"))
        for data, names in (("commands", COMMANDS), ("both", MATHS + COMMANDS)):
            write_images(folder / data, names)
        given = ("-d", "folder", "--data-dir", "both", "--set", "data.image_size=8")
        run("run", *given, *SERIAL, "--evaluate-clients-every", "1", "--out", RUN)
    return folder


@pytest.fixture
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("FEDSIM_CACHE", str(place / "cache"))


def check_seen(text: str) -> None:
    """Nothing of it would be acted on by a terminal."""
    assert {c for c in text if not c.isprintable()} <= {"\n"}


@pytest.mark.parametrize(
    "args",
    [
        ("partition", "-d", "folder", "--data-dir", "commands", "--set", "data.image_size=8"),
        ("show", RUN),
        ("runs", "."),
        ("show", RUN, RUN),
        ("table", RUN, "--by", "run_id"),
        ("predict", RUN, "--out", "p\x1b[1m.csv"),
        ("resume", RUN),
    ],
    ids=lambda args: args[0],
)
@pytest.mark.usefixtures("there")
def test_no_command_prints_what_a_terminal_acts_on(args):
    check_seen(run(*args).output)


def test_files_keep_the_names(place):
    """They are for programs: CSV and JSON know what to do with every character."""
    with (place / RUN / "partition.csv").open(newline="", encoding="utf-8") as file:
        assert {row["name"] for row in csv.DictReader(file)} == {*MATHS, *COMMANDS}
    assert json.loads((place / RUN / "env.json").read_text())["classes"] == sorted(MATHS + COMMANDS)
    with (place / RUN / "summary.csv").open(newline="", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["run_id"] == RUN


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("there")
def test_figures_show_names_as_they_are(tmp_path):
    frame = pd.read_csv(Path(RUN, "partition.csv"), keep_default_na=False)
    style.save(partition.figure(frame, class_names(Path(RUN)) or ()), tmp_path / "h.svg")
    text = (tmp_path / "h.svg").read_text(encoding="utf-8")
    check_seen(text)
    for name in ("$\\frac{$", "b$x$", "\\x1b[31mred", "gnp\\u202e.exe"):
        assert f"<!-- {name} -->" in text


# ---- files that are written


@pytest.fixture
def looks(tmp_path: Path) -> Path:
    """A folder that looks like the directory of a run, and a link to it."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.yaml", "env.json"):
        (folder / name).write_text("")
    (tmp_path / "link").symlink_to(folder)
    return folder


@pytest.mark.parametrize("below", ["run", "link/new"])
@pytest.mark.parametrize(
    ("command", "name"), [("predict run --out", "p.csv"), ("partition --out", "p")]
)
def test_nothing_is_written_into_a_run(
    looks: Path, command: str, name: str, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (looks / "new").mkdir()
    before = sorted(looks.rglob("*"))
    monkeypatch.chdir(looks.parent)
    done = CliRunner().invoke(main, [*command.split(), f"{below}/{name}"])
    assert done.exit_code == 2, done.output
    assert done.output.count("\n") == 1
    assert f"{below}/{name}: lies inside the run directory {looks}" in done.output
    assert sorted(looks.rglob("*")) == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run."""
    out = tmp_path_factory.mktemp("finished") / "run"
    config = RunConfig(
        algorithm="fedavg",
        data={"num_clients": 4, "val_fraction": 0.1},
        model={"name": "mlp"},
        train={"rounds": 2, "sample_rate": 1, "lr": 0.1},
        engine={"kind": "serial", "keep_every": 1},
    )
    fedsim.run(config, out, progress=False)
    return out


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("command", "most", "name"),
    [
        slow("export RUN --out new/model", 2**14, "new/model"),  # the scripts fit, the model not
        slow("report RUN --out new/report", 2**14, "new/report"),
        ("partition --out new/split", 2**12, "new/split"),
        ("table RUN --out there.csv", 16, "there.csv"),
        ("predict RUN --out p.csv", 2**10, "p.csv"),
        ("replay RUN --round 2 --set train.lr=0.2 --out r.csv", 2**8, "r.csv"),
    ],
)
def test_a_full_disk_leaves_what_was_there(
    command: str, most: int, name: str, finished: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """No file may be longer than ``most``, which fails a write as a full disk does."""
    monkeypatch.chdir(tmp_path)
    words = [str(finished) if word == "RUN" else word for word in command.split()]
    if name.startswith("there"):
        Path(name).write_text("as before")
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        done = CliRunner().invoke(main, words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.exit_code == 1, done.output
    assert f"error: {name}: cannot be written (File too large)\n" in done.output
    after = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    assert after == before


# ---- PyPI's other project of the same import name

START = """
import sys
sys.path.insert(0, {site!r})
sys.argv = ["fedsim", "--version"]
import runpy
runpy.run_path({start!r}, run_name="__main__")
"""


def started(site: Path) -> subprocess.CompletedProcess[str]:
    code = START.format(site=str(site), start=str(ROOT / "analysis" / "start.py"))
    command = [sys.executable, "-c", code]
    env = clean_environment()
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=env)


def test_the_other_package_ends_the_command_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "fedsim").mkdir()
    (tmp_path / "fedsim" / "__init__.py").write_text("x = 1\n")
    done = started(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        f"error: {tmp_path}/fedsim is of the other project fedsim of PyPI"
    )
    assert "'pip uninstall fedsim'" in done.stderr


def test_the_name_is_not_that_of_the_other_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION != "fedsim"
    assert project["scripts"] == {"fedsim": "fedsim_analysis.start:main"}
    extras = project["optional-dependencies"]
    own = [text for texts in extras.values() for text in texts if text.startswith("fedsim")]
    assert own == [f"{DISTRIBUTION}[datasets,models,privacy,track,tune]"]
