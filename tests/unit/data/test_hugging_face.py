"""``-d hf:DIR``: a saved Hugging Face data set, its columns, and what is refused in one line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

from fedsim import data
from fedsim.cli import main
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.settings import COLUMNS
from fedsim.data.dataset import TEST, TRAIN
from fedsim.data.readers import hf as reader
from fedsim.data.readers.leaf_text import tokens
from fedsim.data.readers.tables import people

FOLDER = Path("saved")
SCANS = {"label": "grade", "site": "hospital"}


def png(value: int, width: int = 6, height: int = 6) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (value, 0, 255 - value)).save(file, "png")
    return file.getvalue()


# What needs no package ``datasets``


def test_columns_are_found_by_their_usual_names():
    names = ["id", "img", "text", "labels", "site", "patient"]
    found = reader.choose(names, {}, FOLDER)
    assert found == {"image": "img", "label": "labels", "site": "site", "patient": "patient"}
    assert tuple(what for what in COLUMNS if what in reader.USUAL) == tuple(reader.USUAL)


def test_a_column_that_is_given_wins_over_a_usual_name():
    names = ["image", "photo", "text", "label", "grade", "site", "user"]
    assert reader.choose(names, {"label": "grade", "user": "user"}, FOLDER) == {
        "image": "image",
        "label": "grade",
        "user": "user",
    }
    assert "image" not in reader.choose(names, {"text": "text", "site": "site"}, FOLDER)
    assert "site" not in reader.choose(["text", "label", "site"], {"user": "site"}, FOLDER)


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (["img", "grade"], {}, "label is needed: no column is called label, labels; columns of"),
        (["label"], {}, "data.columns.image or data.columns.text is needed"),
        (["img", "grade"], {"label": "grades"}, "label: there is no column 'grades' (did you mean"),
        (
            ["img", "label", "site", "user"],
            {},
            "columns site and user, at most one can be used: name it",
        ),
        (
            ["img", "label", "a"],
            {"site": "a", "user": "a"},
            "has the columns site and user, at most one",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(names, given, message):
    with pytest.raises(ConfigError) as error:
        reader.choose(names, given, FOLDER)
    assert message in str(error.value)


# The settings


# With the package


@pytest.fixture(scope="module")
def datasets() -> Any:
    """The package, with its progress bars off."""
    package = pytest.importorskip("datasets", reason="needs pip install 'fedsim-ray[datasets]'")
    package.disable_progress_bars()
    return package


def scans(datasets: Any, count: int, first: int = 0, size: int = 6) -> Any:
    """Image i is grey i, of grade i mod 3; hospitals in turn, two scans of each patient."""
    rows = range(first, first + count)
    return datasets.Dataset.from_dict(
        {
            "img": [{"bytes": png(i, size, size), "path": None} for i in rows],
            "grade": [i % 3 for i in rows],
            "hospital": [("north", "south")[i // 2 % 2] for i in rows],
            "patient": [f"p{i // 2}" for i in rows],
        },
        features=datasets.Features(
            {
                "img": datasets.Image(),
                "grade": datasets.ClassLabel(names=["none", "mild", "severe"]),
                "hospital": datasets.Value("string"),
                "patient": datasets.Value("string"),
            }
        ),
    )


def refusal(folder: Path, *sets: str) -> str:
    given = [word for text in sets for word in ("--set", text)]
    done = CliRunner().invoke(main, ["partition", "-d", f"hf:{folder}", *given])
    assert (done.exit_code, done.stderr.count("\n"), done.stdout) == (2, 1, ""), done.output
    return done.stderr


@pytest.mark.parametrize(
    ("columns", "named", "message"),
    [
        ({"label": ["ill"]}, "", "column label: labels are texts, needed are classes (ClassLabel"),
        ({"label": [1.0]}, "", "column label: labels are float64, needed are classes"),
        ({"label": [0, -1]}, "", "row 1: label -1: they are numbered 0, 1, ... without a gap"),
        ({"label": [0, 3]}, "", "row 1: label 3: they are numbered 0, 1, ... without a gap"),
        ({"label": [0, None]}, "", "row 1: there is no label"),
        ({"site": [0.5, 1.5]}, "", "column site: sites are float64, needed are texts"),
        ({"site": ["a", ""]}, "", "row 1: the site is empty"),
        ({"text": ["a", None]}, "", "row 1: there is no text"),
        ({"text": [1, 2]}, "", "column text: texts are integers, needed are texts"),
        ({"image": ["a", "b"]}, "image=image", "images are texts, needed are images"),
        ({"image": [b"GIF"] * 2}, "image=image", "row 0: truncated or not an image"),
        ({"image": [{"path": "/etc/passwd"}] * 2}, "image=image", "needed are images"),
    ],
)
def test_columns_that_cannot_be_read_are_refused_with_their_row(
    datasets, tmp_path, columns, named, message
):
    plain = {"text": ["a", "b"], "label": [0, 1]}
    rows = {name: values[: len(columns.get("label", "ab"))] for name, values in plain.items()}
    datasets.Dataset.from_dict(rows | columns).save_to_disk(tmp_path / "d")
    sets = [f"data.columns.{pair}" for pair in named.split() if pair]
    assert message in refusal(tmp_path / "d", *sets)


def test_rows_of_all_splits_are_put_together(datasets, tmp_path):
    """Numbers of sites are sorted as numbers; the splits are in the order of their use."""
    parts = {"test": ([2, 0], [10, 10]), "train": ([1, 0, 2], [9, 9, 10])}
    splits = {
        name: datasets.Dataset.from_dict({"text": ["x"] * len(y), "label": y, "site": site})
        for name, (y, site) in parts.items()
    }
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "d")
    loaded = data.load("hf", tmp_path / "d")
    assert (loaded.y.tolist(), loaded.class_names) == ([1, 0, 2, 2, 0], ("0", "1", "2"))
    assert (loaded.site.tolist(), loaded.site_names) == ([0, 0, 1, 1, 1], ("9", "10"))
    datasets.DatasetDict(splits | {"test": splits["test"].remove_columns("site")}).save_to_disk(
        tmp_path / "e"
    )
    assert "its splits have other columns" in refusal(tmp_path / "e")
    bad = datasets.Dataset.from_dict({"text": ["x"], "label": [-1], "site": [9]})
    datasets.DatasetDict(splits | {"test": bad}).save_to_disk(tmp_path / "f")
    assert "split test, row 0: label -1" in refusal(tmp_path / "f")


def test_a_patient_in_two_parts_is_refused_but_not_of_two_sites():
    parts, patient = np.array([TRAIN, TRAIN, TEST], dtype=np.int8), np.array([0, 1, 0])
    with pytest.raises(DataError, match=r"row 2: patient 'p' is in part test, .*row 0"):
        people(((), None), (("p", "q"), patient), parts, "row {}".format)
    people(((), np.array([0, 0, 1])), (("p", "q"), patient), parts, "row {}".format)


def test_texts_become_the_frequent_words_of_the_training_split():
    texts = ["a good, good day", "a bad", "night night night"]
    x, words = tokens(texts, 4, np.array([True, True, False]), 2)
    assert words == ("a", "good")  # the comma, "day" and "night" are unknown, and what fills up
    assert x.tolist() == [[0, 1, 2, 1], [0, 2, 2, 2], [2, 2, 2, 2]]
    assert x.dtype == np.int32


def test_a_saved_data_set_is_split_and_its_patients_stay_together(datasets, tmp_path):
    scans(datasets, 60).save_to_disk(tmp_path / "d")
    loaded = data.load("hf", tmp_path / "d", columns=SCANS, group="auto")
    assert loaded.class_names == ("none", "mild", "severe")
    assert loaded.site_names == ("north", "south")
    assert (loaded.x.shape, len(loaded.test)) == ((60, 3, 6, 6), 12)
    assert loaded.x[7, :, 0, 0].tolist() == [7, 0, 248]
    assert loaded.y.tolist() == [i % 3 for i in range(60)]
    assert loaded.patient is not None
    assert not set(loaded.patient[loaded.train]) & set(loaded.patient[loaded.test])


def test_splits_are_the_parts_and_others_are_named(datasets, tmp_path, caplog):
    splits = {"test": scans(datasets, 6, 30), "train": scans(datasets, 24)}
    splits |= {"validation": scans(datasets, 6, 24), "extra": scans(datasets, 6)}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "d")
    loaded = data.load("hf", tmp_path / "d", columns=SCANS)
    assert [len(part) for part in (loaded.train, loaded.val, loaded.test)] == [24, 6, 6]
    assert loaded.x[:, 0, 0, 0].tolist() == list(range(36))
    assert "splits that are not used: extra" in caplog.text
    caplog.clear()
    datasets.DatasetDict(test=scans(datasets, 6)).save_to_disk(tmp_path / "e")
    assert "no split train; splits are test" in refusal(tmp_path / "e")


def test_images_of_mixed_sizes_need_a_size_and_are_cached(datasets, tmp_path):
    both = [scans(datasets, 12), scans(datasets, 12, 12, size=8)]
    datasets.concatenate_datasets(both).save_to_disk(tmp_path / "d")
    named = [f"data.columns.{what}={name}" for what, name in SCANS.items()]
    message = "d, row 12: 8 x 8 pixels, the first image has 6 x 6: set data.image_size"
    assert message in refusal(tmp_path / "d", *named)
    packs = tmp_path / "cache" / "packed"
    loaded = data.load("hf", tmp_path / "d", columns=SCANS, image_size=6)
    assert loaded.x[:, 0, 0, 0].tolist() == list(range(24))
    (pack,) = packs.glob("hf-6-*.npy")
    before = pack.stat().st_mtime_ns
    data.load("hf", tmp_path / "d", columns=SCANS, image_size=6)
    assert pack.stat().st_mtime_ns == before
    assert message in refusal(tmp_path / "d", *named)  # the pack of another image_size is not taken


def test_images_with_masks(datasets, tmp_path):
    """The label is an image; a mask of another size than its image is named."""

    def file(array: np.ndarray) -> bytes:
        content = io.BytesIO()
        Image.fromarray(array.astype(np.uint8)).save(content, "png")
        return content.getvalue()

    masks = [np.arange(36).reshape(6, 6) // 12 for _ in range(10)]
    columns = {"image": [png(k) for k in range(10)], "annotation": [file(m) for m in masks]}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "d")
    given = {"columns": {"label": "annotation"}, "task": "segmentation"}
    loaded = data.load("hf", tmp_path / "d", **given)
    assert loaded.class_names == ("background", "1", "2")
    np.testing.assert_array_equal(loaded.y, masks)
    columns["annotation"][3] = file(np.zeros((6, 7)))
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "e")
    with pytest.raises(DataError, match=r"row 3, annotation: 7 x 6 pixels, its image has 6 x 6"):
        data.load("hf", tmp_path / "e", **given)


def test_texts_of_users(datasets, tmp_path):
    rows = [(f"{word} thing, {word}", i % 2, f"u{i % 3}") for i, word in enumerate("ab" * 15)]
    texts, y, users = map(list, zip(*rows, strict=True))
    saved = datasets.Dataset.from_dict({"text": texts, "label": y, "user": users})
    saved.save_to_disk(tmp_path / "d")
    loaded = data.load("hf", tmp_path / "d", words=4)
    assert (loaded.inputs, loaded.x.shape, loaded.vocabulary) == ("tokens", (30, 4), 5)
    assert loaded.sites_are_users
    assert loaded.site_names == ("u0", "u1", "u2")
    assert "hf has texts, no images" in refusal(tmp_path / "d", "data.image_size=8")


@pytest.mark.parametrize(("keep", "what"), [(0.5, "cut off"), (0.0, "empty")])
def test_a_damaged_file_is_named(datasets, tmp_path, keep, what):
    datasets.DatasetDict(train=scans(datasets, 30), test=scans(datasets, 30)).save_to_disk(
        tmp_path / "d"
    )
    (file,) = (tmp_path / "d" / "test").glob("*.arrow")
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content))])
    assert f"{tmp_path / 'd'}: missing, damaged or cut off" in refusal(tmp_path / "d"), what


@pytest.mark.integration
def test_a_run_and_its_config_repeat_each_other(datasets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scans(datasets, 60, size=16).save_to_disk("d")
    common = ["run", "--engine", "serial", "--rounds", "2", "--sample-rate", "1", "--out"]
    named = ["--set", "data.columns.label=grade", "--set", "data.columns.site=hospital"]
    for words in (["a", "-d", "hf:d", *named], ["b", "--config", "a/config.yaml"]):
        done = CliRunner().invoke(main, [*common, *words])
        assert done.exit_code == 0, done.output
    written = yaml.safe_load(Path("a/config.yaml").read_text())["data"]
    assert (written["name"], written["dir"]) == ("hf", "d")
    assert written["columns"] == "label=grade,site=hospital"
    assert (written["partition"], written["num_clients"]) == ("by_site", 2)
    assert Path("a/rounds.csv").read_bytes() == Path("b/rounds.csv").read_bytes()
    assert "data.columns" in Path("a/summary.csv").read_text().splitlines()[0]
