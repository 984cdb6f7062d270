"""docs/leaderboard: the page follows from the files of its packs, and these from the packs."""

import importlib.util
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.config import experiments
from fedsim.core.errors import ConfigError
from fedsim.core.machine import processor
from fedsim.storage.pack import unpack
from fedsim.studies import leaderboard

DOCS = Path(__file__).resolve().parents[3] / "docs"
FOLDER = DOCS / "leaderboard"


def module():
    spec = importlib.util.spec_from_file_location("leaderboard_page", DOCS / "leaderboard.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


made = module()
TASKS = sorted(FOLDER.glob("*/task.yaml"))
PACKS = [
    (path, pack)
    for path in TASKS
    for pack in sorted(path.parent.iterdir())
    if pack.suffix in (".zip", ".xz")
]


@pytest.mark.slow
def test_the_page_follows_from_the_files_beside_it():
    page = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert made.page(FOLDER) == page, "run: python docs/leaderboard.py"


def test_consecutive_numbers_are_a_range():
    given = ([20, 21, 22], [1, 2], [0, 2, 3], [7])
    assert [made._numbers(each) for each in given] == ["20 to 22", "1, 2", "0, 2, 3", "7"]


@pytest.mark.parametrize("name", ["fundus_sites", "covid_sites", "fundus_clients", "covid_clients"])
def test_a_task_of_the_study_has_the_settings_of_its_block(name):
    task = leaderboard.load(FOLDER / name / "task.yaml")
    block = experiments.yaml.safe_load((DOCS / "study" / f"head_{name}.yaml").read_text())
    wanted = {
        f"{section}.{key}": value
        for section in ("data", "model", "train", "evaluation", "clock")
        for key, value in block[section].items()
    }
    own = {key: given.value for key, given in task.settings.items()}
    assert {k: v for k, v in own.items() if not k.startswith("engine.")} == wanted
    assert sorted(task.runs) == [(p, s) for p in block["partitions"] for s in block["seeds"]]


# the order


def entries(**scores):
    """A pack with these scores by label, for partitions 0, 1, .. and training seeds 1 and 2."""
    runs = pd.DataFrame(
        {"label": label, "data.seed": partition, "seed": seed, "balanced_accuracy": value,
         "accuracy": value / 2}
        for label, own in scores.items()
        for partition, values in enumerate(own)
        for seed, value in zip((1, 2), values, strict=True)
    )  # fmt: skip
    return made.Pack(path=Path("x.yaml"), said={}, runs=runs)


def test_entries_are_ordered_by_their_mean_rank_over_partitions():
    """By hand, with the means over two seeds.

    Partition 0: A 0.9, B 0.8, C 0.7; 1: A 0.8, B 0.9, C 0.7; 2: A 0.7, B 0.6, and C, whose
    other run has the best score of all, lacks one: ranks A 1, 2, 1; B 2, 1, 2; C 3, 3, 3. A's have
    standard deviation 0.57735 and the interval 4/3 +- 4.30265 * 0.57735 / sqrt(3) = 1.434, which
    begins at 1.
    """
    known = entries(
        C=[(0.7, 0.7), (0.7, 0.7), (0.99, math.nan)],
        A=[(0.85, 0.95), (0.8, 0.8), (0.7, 0.7)],
        B=[(0.8, 0.8), (0.9, 0.9), (0.6, 0.6)],
    )
    table = made.table([known]).set_index("label")
    assert list(table.index) == ["A", "B", "C"]
    assert list(table["place"]) == [1, 2, 3]
    assert table["rank"].tolist() == pytest.approx([4 / 3, 5 / 3, 3])
    assert table["low"].tolist() == pytest.approx([1, 1, 3])
    assert table["high"].tolist() == pytest.approx([2.76755, 3, 3], abs=1e-5)
    assert table["lacking"].tolist() == [0, 0, 1]
    assert table.loc["A", "balanced_accuracy"] == pytest.approx(0.8)
    assert table.loc["A", "balanced_accuracy_ci95"] == pytest.approx(4.30265 * 0.1 / 3**0.5)
    assert table.loc["A", "accuracy"] == pytest.approx(0.4)
    assert math.isnan(table.loc["C", "balanced_accuracy"])


def test_equal_entries_share_their_place():
    one, two = entries(A=[(0.9, 0.9)] * 3, C=[(0.5, 0.5)] * 3), entries(B=[(0.9, 0.9)] * 3)
    table = made.table([one, two])
    assert list(zip(table["pack"], table["label"], table["place"], strict=True)) == [
        (0, "A", 1), (1, "B", 1), (0, "C", 3)
    ]  # fmt: skip
    assert table["rank"].tolist() == [1.5, 1.5, 3]


def test_a_lost_run_never_improves_a_place():
    rng = np.random.default_rng(0)
    for _ in range(3):
        scores = {label: rng.random((4, 2)) for label in "ABC"}
        before = made.table([entries(**scores)]).set_index("label")["rank"]
        scores["A"][rng.integers(4), rng.integers(2)] = math.nan
        after = made.table([entries(**scores)]).set_index("label")["rank"]
        assert after["A"] >= before["A"]
        assert (after[["B", "C"]] <= before[["B", "C"]]).all()


# what is refused


@pytest.fixture
def digits(tmp_path):
    return shutil.copytree(FOLDER / "digits", tmp_path / "digits")


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("yaml", "sha256: ", "sha256: 0", "fedsim.yaml: sha256: is not that of fedsim.zip: "),
        ("yaml", "pack: fedsim.zip", "pack: x.zip", "fedsim.yaml: pack: x.zip is not beside it"),
        ("yaml", "candidates: 1", "candidates: many", "fedsim.yaml: candidates: must be "),
        ("yaml", "candidates: 1\n", "", "fedsim.yaml: candidates: must be there"),
        ("yaml", "by: fedsim", "by: fedsim\nrank: 1", "fedsim.yaml: rank: unknown; allowed are by"),
        ("yaml", "  seed: 0\n", "", "fedsim.yaml: verified.seed: is missing"),
        ("yaml", "    FedAvg: 6\n", "", "fedsim.yaml: verified.runs: lacks FedAvg"),
        ("csv", "FedAvg,0,1,", "FedAvg,0,3,", "fedsim.csv: FedAvg: has the runs "),
    ],
)  # fmt: skip
def test_what_is_not_of_the_task_is_refused_with_file_and_key(digits, file, old, new, reason):
    path = digits / f"fedsim.{file}"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=re.escape(reason)):
        made.section(leaderboard.load(digits / "task.yaml"))


def test_another_pack_than_the_one_that_was_verified_is_refused(digits):
    with (digits / "fedsim.zip").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ConfigError, match=r"fedsim\.yaml: sha256: is not that of fedsim\.zip"):
        made.section(leaderboard.load(digits / "task.yaml"))


def test_packs_of_other_data_are_refused(tmp_path):
    folder = shutil.copytree(FOLDER / "fundus_sites", tmp_path / "fundus_sites")
    for file in ("fedsim.yaml", "fedsim.csv"):
        text = (folder / file).read_text().replace(",sha256:", ",sha256:0")
        (folder / file.replace("fedsim", "other")).write_text(text)
    reason = r"other\.csv: partition 20: data sha256:0\w+, not sha256:\w+ as in fedsim\.csv"
    with pytest.raises(ConfigError, match=reason):
        made.section(leaderboard.load(folder / "task.yaml"))


# the packs that are here


@pytest.mark.slow
@pytest.mark.parametrize(("file", "pack"), PACKS, ids=lambda path: path.parent.name)
def test_a_pack_gives_the_stored_scores(file, pack, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "study")  # engine.working_dir of tasks of the study
    unpack(pack, tmp_path / "runs")
    task = leaderboard.load(file)
    runs, wrong = leaderboard.check(tmp_path / "runs", task, leaderboard.code(task))
    assert not wrong
    text = made.rows(runs).to_csv(index=False, lineterminator="\n")
    assert text == pack.with_suffix(".csv").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("pack", sorted((FOLDER / "digits").glob("*.zip")), ids=lambda p: p.name)
def test_a_pack_whose_data_are_within_fedsim_is_verified(pack):
    task = FOLDER / "digits" / "task.yaml"
    given = ["--task", task, "--sample", 1000, "--rounds", "all", "--seed", 0]
    done = CliRunner().invoke(main, ["verify", *map(str, (pack, *given))])
    assert done.exit_code == 0, done.output
    said, here = experiments.yaml.safe_load(pack.with_suffix(".yaml").read_text()), processor()
    if said["verified"]["processor"] == f"{here['model']}, {here['kernels']}":
        # runs that name another processor would be compared to a tolerance alone
        assert not re.search("tolerance .*: processor", done.output), done.output


@pytest.mark.slow
def test_an_entry_is_added_by_one_command(digits, monkeypatch):
    monkeypatch.setattr(made, "FOLDER", digits.parent)
    before = {file: (digits / file).read_text() for file in ("fedsim.csv", "fedsim.yaml")}
    for file in before:
        (digits / file).unlink()
    given = ["add", "digits", str(digits / "fedsim.zip"), "--by=someone", "--candidates=4"]
    given += ["--rounds=1", "--seed=3"]
    with pytest.raises(SystemExit, match=r"--sample 1: no run of .* is among .*; 18 runs are"):
        made.main([*given, "--sample=1"])
    assert not (digits / "fedsim.csv").exists()
    made.main([*given, "--sample=6"])
    assert (digits / "fedsim.csv").read_text() == before["fedsim.csv"]
    said = experiments.yaml.safe_load((digits / "fedsim.yaml").read_text())
    assert (said["by"], said["candidates"], said["pack"]) == ("someone", 4, "fedsim.zip")
    assert sum(said["verified"]["runs"].values()) == 6
    assert "1 round of 6 runs of 18, seed 3" in (digits.parent / "index.md").read_text()
