"""Bad data files end in one line that names the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from fedsim import data
from fedsim.cli import main
from fedsim.core.errors import DataError

ROWS = tuple(f"{i}.png,{i % 2}" for i in range(12))
HEADER = "filename,label"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])


def folder(root: Path, rows: tuple[str, ...] = ROWS, header: str = HEADER) -> Path:
    (root / "images").mkdir(parents=True)
    for i in range(12):
        Image.new("RGB", (6, 6), (20 * i, 0, 0)).save(root / "images" / f"{i}.png")
    (root / "labels.csv").write_text("\n".join([header, *rows]) + "\n")
    return root


def partition(*args: object) -> Result:
    common = ["--clients", "2", "--sample-rate", "1", "--partition", "iid"]
    return CliRunner().invoke(main, ["partition", *common, *map(str, args)])


def refused(done: Result, message: str) -> None:
    assert (done.exit_code, done.stderr.count("\n"), done.stdout) == (2, 1, ""), done.output
    assert message in done.stderr


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((ROWS[0], '"' + "x" * 140_000 + '",1'), "row 3: a quote is not closed"),
        (("0.png,x", *ROWS[1:]), "row 2: label 'x' beside '1': labels are numbers or names"),
        (("0.png,", *ROWS[1:]), "row 2: label '' beside '1'"),
        ((ROWS[0], "1.png,x", *ROWS[2:]), "row 3: label 'x' beside '0'"),
        (("0.png,a", "1.png,7", "2.png,b", "3.png,c"), "row 3: label '7' beside 'a'"),
    ],
)
def test_a_bad_cell_is_named_with_its_own_row(tmp_path, rows, message):
    root = folder(tmp_path / "d", rows)
    refused(partition("-d", "folder", "--data-dir", root), f"labels.csv, {message}")


@pytest.mark.parametrize("other", ["grade", "level", "class", "diagnosis"])
def test_a_column_of_another_name_beside_label_is_ignored(tmp_path, other):
    rows = tuple(f"{row},{9 + i}" for i, row in enumerate(ROWS))
    loaded = data.load("folder", folder(tmp_path, rows, f"{HEADER},{other}"), image_size=6)
    assert loaded.y.tolist() == [0, 1] * 6
    twice = "Level" if other == "grade" else "Grade"  # which of them is the label is not known
    both = folder(tmp_path / "both", tuple(f"{row},3" for row in ROWS), f"filename,{other},{twice}")
    with pytest.raises(DataError, match="needed are the columns filename, label, each once"):
        data.load("folder", both, image_size=6)


def test_class_names_that_are_given_twice_are_refused(tmp_path):
    root = folder(tmp_path / "d")
    (root / "classes.txt").write_text("ill\n\nwell\nill\n")
    done = partition("-d", "folder", "--data-dir", root)
    refused(done, "classes.txt, row 4: 'ill' was given in row 1")


def npz(folder: Path, **arrays: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    n = 20
    given = {"images": np.zeros((n, 6, 6), np.uint8), "labels": np.arange(n) % 2, **arrays}
    np.savez(folder / "a.npz", **given)
    return folder


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"images": np.zeros((0, 6, 6), np.uint8), "labels": np.zeros(0, np.int64),
             "class_names": np.array(["a", "b"])},
            "a.npz: data set npz: there are no samples",
        ),
        ({"class_names": np.array(["a", "a"])}, "a.npz: data set npz: the class name 'a' is given"),
        (
            {"sites": np.arange(20) % 2, "site_names": np.array(["x", "x"])},
            "a.npz: data set npz: the site name 'x' is given twice",
        ),
        ({"labels": np.array([None] * 20)}, "it holds pickled objects, which are never loaded"),
        ({"patients": np.arange(3)}, "a.npz, patients: (3,), labels have (20,)"),
    ],
)  # fmt: skip
def test_bad_arrays_are_refused_with_the_file(tmp_path, arrays, message):
    refused(partition("-d", "npz", "--data-dir", npz(tmp_path / "d", **arrays)), message)


def test_images_of_a_size_that_no_memory_holds_are_refused():
    done = CliRunner().invoke(main, ["partition", "--set", "data.image_size=100000"])
    refused(done, "--set data.image_size: '100000' given; must be less than or equal to 8192")


def test_numbers_too_large_for_a_feature_are_refused_without_a_warning(tmp_path):
    users = {"a": {"x": [[1e300], [1.5]], "y": [0, 1]}}
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(json.dumps({"users": ["a"], "user_data": users}))
    done = CliRunner().invoke(main, ["partition", "-d", "synthetic", "--data-dir", str(tmp_path)])
    refused(done, "x has to be lists of finite numbers")
