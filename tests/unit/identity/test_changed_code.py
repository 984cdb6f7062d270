"""What is refused after a user's own source files have changed, and what accepting it does."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result

from tests.fuzz.harness import fedsim, workplace

pytestmark = pytest.mark.integration

METHOD = """\
from dataclasses import dataclass

from fedsim.algorithms import Algorithm
from fedsim.server import Average, Server
from scales import SCALE


@dataclass(frozen=True)
class Scaled:
    factor: float

    def __call__(self, step, state, cohort, ctx):
        return step * self.factor, state


def build() -> Algorithm:
    return Algorithm(server=Server(Average(), optimizers=(Scaled(SCALE),)))
"""
GRID = """\
algorithm: "mine:build"
train: {rounds: 1, sample_rate: 0.5}
data: {num_clients: 2, val_fraction: 0.1}
engine: {kind: serial}
"""
RUN = "sweep/seed=0"
FILE = "scales.py (of the method mine:build) has changed: it was "
WAY_OUT = "--accept-changed-code"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a method, a finished sweep of one run and a finished search of one trial."""
    with workplace(tmp_path_factory.mktemp("code")) as work:
        (work / "mine.py").write_text(METHOD)
        (work / "scales.py").write_text("SCALE = 1.0\n")
        (work / "grid.yaml").write_text(GRID + "grid: {seed: [0]}\n")
        (work / "search.yaml").write_text(GRID + "search: {train.lr: 'choice(0.1, 0.2)'}\n")
        succeeded(fedsim("sweep", "grid.yaml", "--out", "sweep"))
        succeeded(fedsim("tune", "search.yaml", "--trials", "1", "--out", "search"))
    return work


@pytest.fixture
def work(done: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of that folder."""
    with workplace(tmp_path / "place") as folder:
        shutil.copytree(done, folder, dirs_exist_ok=True)
        yield folder


def edit(text: str = "SCALE = 0.5\n", file: str = "scales.py") -> None:
    """Changes a file; what is done next is done as in a new process."""
    Path(file).write_text(text)
    forget()


def forget() -> None:
    for name in ("mine", "scales"):
        sys.modules.pop(name, None)


def succeeded(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def refused(result: Result, *says: str) -> None:
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    for part in (FILE, WAY_OUT, *says):
        assert part in line


def environment(run: str = RUN) -> dict[str, object]:
    return dict(json.loads(Path(run, "env.json").read_bytes()))


SWEEP = ("sweep", "grid.yaml", "--out", "sweep")


@pytest.mark.slow
def test_a_sweep_does_not_keep_the_numbers_of_other_code(work: Path) -> None:
    assert "finished before" in succeeded(fedsim(*SWEEP)).output
    edit()
    refused(fedsim(*SWEEP), RUN, "d5d01336f87f, is dd0d29488f12 now")
    began = environment()["code"]
    accepted = succeeded(fedsim(*SWEEP, WAY_OUT))
    assert "finished before" in accepted.stdout
    assert f"{RUN}: {WAY_OUT}: its results are those of the code before" in accepted.stderr
    assert environment()["code"] == began != environment()["accepted_code"]
    assert "--accept-changed-code accepted" in succeeded(fedsim("show", RUN)).output
    assert "finished before" in succeeded(fedsim(*SWEEP)).output
    edit("SCALE = 1.0\n")
    assert "finished before" in succeeded(fedsim(*SWEEP)).output, "the code that trained it"
    edit("SCALE = 0.25\n")
    refused(fedsim(*SWEEP), "dd0d29488f12, is 7ac116c00fe3 now")


def test_an_unfinished_run_is_not_resumed_with_other_code(work: Path) -> None:
    Path(RUN, "summary.csv").unlink()
    edit()
    refused(fedsim("resume", RUN), RUN)
    succeeded(fedsim("resume", RUN, WAY_OUT))
    known = environment()
    assert known["accepted_code"] == known["resumed"][0]["code"] != known["code"]  # type: ignore[index]
    assert "finished before" in succeeded(fedsim(*SWEEP)).output


@pytest.mark.slow
def test_a_sweep_begins_an_unfinished_run_of_other_code_again(work: Path) -> None:
    Path(RUN, "summary.csv").unlink()
    edit()
    succeeded(fedsim(*SWEEP))
    assert Path(f"{RUN}.interrupted-1").is_dir()
    assert "accepted_code" not in environment()
    Path(RUN, "summary.csv").unlink()
    edit("SCALE = 0.25\n")
    succeeded(fedsim(*SWEEP, WAY_OUT))
    assert not Path(f"{RUN}.interrupted-2").exists()
    assert "accepted_code" in environment()


def test_predict_uses_the_code_that_trained_the_model(work: Path) -> None:
    edit()
    before = environment()
    refused(fedsim("predict", RUN, "--out", "p.csv"), RUN)
    assert not Path("p.csv").exists()
    accepted = succeeded(fedsim("predict", RUN, "--out", "p.csv", WAY_OUT))
    assert f"{RUN}: its models were trained with the code before the change" in accepted.stderr
    assert environment() == before, "predictions do not write into a run"


@pytest.mark.slow
def test_a_search_goes_on_with_the_code_of_its_trials(work: Path) -> None:
    pytest.importorskip("optuna")
    more = ("tune", "search.yaml", "--trials", "2", "--out", "search")
    edit()
    refused(fedsim(*more), "search/trial-0000/seed=0")
    succeeded(fedsim(*more, WAY_OUT))
    assert "accepted_code" in environment("search/trial-0000/seed=0")
    assert "accepted_code" not in environment("search/trial-0001/seed=0")


def test_a_file_that_changes_while_python_runs_is_refused(work: Path) -> None:
    """Ray's processes would import the new one, while this one goes on with the old one."""
    assert "finished before" in succeeded(fedsim(*SWEEP)).output
    scales = Path("scales.py").read_text()
    Path("scales.py").write_text("SCALE = 0.5\n")
    result = fedsim(*SWEEP)
    assert result.exit_code == 2
    assert "scales.py: has changed since Python imported it; start Python again" in result.output
    Path("scales.py").write_text(scales)
    assert "finished before" in succeeded(fedsim(*SWEEP)).output
    Path("scales.py").write_text("SCALE = 0.5\n")
    forget()
    refused(fedsim(*SWEEP))
