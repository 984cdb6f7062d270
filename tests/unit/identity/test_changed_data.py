"""What is refused after the data of a run have changed, and what tells runs on other data apart."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from click.testing import Result
from PIL import Image

from fedsim.training import loading
from tests.fuzz.harness import fedsim, workplace

pytestmark = pytest.mark.integration

SETTINGS = """\
algorithm: fedavg
train: {rounds: 1, sample_rate: 1.0}
data: {name: folder, dir: A, num_clients: 2, partition: iid, val_fraction: 0.1}
engine: {kind: serial}
"""
RUN = "sweep/seed=0"
SWEEP = ("sweep", "grid.yaml", "--out", "sweep")


def images(folder: Path, count: int = 40) -> None:
    """Two classes of grey images, which differ in their left half."""
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 90, (count, 8, 8), dtype=np.uint8)
    rows = ["filename,label"]
    for i, pixels in enumerate(noise):
        pixels[:, :4] += 100 * np.uint8(i % 2)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        rows.append(f"{i}.png,{i % 2}")
    (folder / "labels.csv").write_text("\n".join([*rows, ""]))
    (folder / "classes.txt").write_text("dark\nbright\n")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, a finished sweep of one run and a finished search of one trial."""
    with workplace(tmp_path_factory.mktemp("data")) as work:
        images(work / "A")
        (work / "grid.yaml").write_text(SETTINGS + "grid: {seed: [0]}\n")
        (work / "search.yaml").write_text(SETTINGS + "search: {train.lr: 'choice(0.1, 0.2)'}\n")
        succeeded(fedsim(*SWEEP))
        succeeded(fedsim("tune", "search.yaml", "--trials", "1", "--out", "search"))
    return work


@pytest.fixture
def work(done: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of that folder."""
    with workplace(tmp_path / "place") as folder:
        shutil.copytree(done, folder, dirs_exist_ok=True)
        yield folder


def succeeded(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def refused(result: Result, *says: str) -> None:
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    for part in says:
        assert part in line


def invert() -> None:
    """Every pixel becomes 255 - x."""
    for path in Path("A").glob("*.png"):
        pixels = np.array(Image.open(path))
        Image.fromarray(255 - pixels).save(path)


def test_an_unfinished_run_does_not_go_on_with_other_pixels(work: Path) -> None:
    Path(RUN, "summary.csv").unlink()
    invert()
    refused(
        fedsim("resume", RUN),
        f"data.dir A: the samples are not those that the run in {RUN} began with (data sha256:",
        "put the data back",
    )


@pytest.mark.slow
def test_a_sweep_does_not_keep_the_numbers_of_other_data(work: Path) -> None:
    assert "finished before" in succeeded(fedsim(*SWEEP)).output
    invert()
    refused(fedsim(*SWEEP), "the samples are not those", RUN, "give another --out")


@pytest.mark.slow
def test_data_are_read_once_for_all_finished_runs(work: Path) -> None:
    shutil.copytree(RUN, "sweep/seed=1")
    config = Path("sweep/seed=1/config.yaml")
    config.write_text(config.read_text().replace("\nseed: 0\n", "\nseed: 1\n"))
    grid = Path("grid.yaml")
    grid.write_text(grid.read_text().replace("[0]", "[0, 1]"))
    with mock.patch.object(loading, "read", wraps=loading.read) as read:
        assert succeeded(fedsim(*SWEEP)).output.count("finished before") == 2
    assert read.call_count == 1


@pytest.mark.slow
def test_predictions_of_the_test_part_need_the_runs_own_images(work: Path) -> None:
    succeeded(fedsim("predict", RUN, "--out", "own.csv"))
    shutil.copytree("A", "copy")
    succeeded(fedsim("predict", RUN, "--data-dir", "copy", "--split", "test", "--out", "copy.csv"))
    assert Path("own.csv").read_bytes() == Path("copy.csv").read_bytes()
    invert()
    refused(
        fedsim("predict", RUN, "--out", "p.csv"),
        "data.dir A: the samples are not those that the run in",
        "for new data: --data-dir NEW",
    )
    succeeded(fedsim("predict", RUN, "--data-dir", "A", "--out", "new.csv"))


def test_a_search_goes_on_with_the_data_of_its_trials(work: Path) -> None:
    pytest.importorskip("optuna")
    more = ("tune", "search.yaml", "--trials", "2", "--out", "search")
    invert()
    refused(fedsim(*more), "the samples are not those", "search/trial-0000/seed=0")


@pytest.mark.slow
def test_two_versions_of_a_data_set_are_told_apart(work: Path) -> None:
    invert()
    run = ("run", "-c", "sweep/seed=0/config.yaml", "--out", "again")
    succeeded(fedsim(*run))
    compared = succeeded(fedsim("show", RUN, "again")).output
    assert "all are equal" not in compared
    (line,) = [line for line in compared.splitlines() if line.startswith("data_digest")]
    first, second = line.split()[1:]
    assert first != second
    refused(fedsim("table", RUN, "again"), "differ in data_digest", first, second)
