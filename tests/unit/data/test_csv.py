"""``-d csv:FILE``: columns by name, categories, parts, scaling by site, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from click.testing import CliRunner

import fedsim
from fedsim import data
from fedsim.cli import main
from fedsim.core import settings
from fedsim.core.errors import ConfigError, DataError
from fedsim.data import files, partitions, table_features
from fedsim.identity.provenance import data_of
from fedsim.testing import check_reader

TABLE = """Age,kind,Weight,grade,hospital,fold
30,a,1.5,no,north,train
40,b,2.5,yes,north,train
50,c,3.0,no,north,train
60,a,9.0,yes,north,test
10,a,-1,no,south,train
30,c,-3,yes,south,train
20,b,-2,yes,south,test
"""
COLUMNS = {"target": "grade", "site": "hospital", "split": "fold"}


def load(folder: Path, text: str = TABLE, columns: dict[str, str] | None = None, **given):
    file = folder / "table.csv"
    file.write_text(text)
    named = COLUMNS if columns is None else columns
    if "kind" in text and "features" not in given:
        given.setdefault("categorical", "kind")
    return data.load("csv", file, columns=named, **given)


def write(folder: Path, header: list[str], rows: list[list[object]]) -> Path:
    with (folder / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return folder / "t.csv"


def standard(values: list[float], x: float) -> float:
    """The formula, with n - 1, from the standard library."""
    return (x - fmean(values)) / (stdev(values) + 1e-9)


def test_a_table_by_hand(tmp_path: Path):
    d = load(tmp_path, scaling="none")
    assert d.x.tolist() == [
        [30, 1, 0, 0, 1.5], [40, 0, 1, 0, 2.5], [50, 0, 0, 1, 3], [60, 1, 0, 0, 9],
        [10, 1, 0, 0, -1], [30, 0, 0, 1, -3], [20, 0, 1, 0, -2],
    ]  # fmt: skip
    assert d.class_names == ("no", "yes")
    assert d.y.tolist() == [0, 1, 0, 1, 0, 1, 1]
    assert (d.train.tolist(), d.test.tolist()) == ([0, 1, 2, 4, 5], [3, 6])
    assert d.site is not None
    assert [d.site_names[s] for s in d.site] == ["north"] * 4 + ["south"] * 3
    split = partitions.make(d, partitions.default_kind(d))
    assert [own.tolist() for own in split.train] == [[0, 1, 2], [4, 5]]
    assert [own.tolist() for own in split.test] == [[3], [6]]


def test_each_site_is_scaled_by_its_own_training_rows(tmp_path: Path):
    d = load(tmp_path, features="weight,age")
    north, south = ([1.5, 2.5, 3.0], [30, 40, 50]), ([-1, -3], [10, 30])
    rows = {0: (1.5, 30, north), 3: (9, 60, north), 5: (-3, 30, south), 6: (-2, 20, south)}
    for row, (weight, age, (weights, ages)) in rows.items():
        expected = [standard(weights, weight), standard(ages, age)]
        np.testing.assert_allclose(d.x[row], expected, rtol=1e-6)
    pooled = load(tmp_path, features="weight", scaling="all")
    weights = [1.5, 2.5, 3.0, -1, -3]
    expected = [standard(weights, v) for v in (*weights[:3], 9, *weights[3:], -2)]
    np.testing.assert_allclose(pooled.x[:, 0], expected, rtol=1e-6)


def test_categories_in_order_without_the_one_that_is_named(tmp_path: Path):
    text = "target,c,t\n0,10,b\n1,9.0,a\n1,9,a\n0,2,b\n0,2,b\n1,10.0,c\n"
    d = load(tmp_path, text, {}, categorical="c=9,t", scaling="none", test_fraction=0.4)
    assert d.x.tolist() == [  # c: 2, 10 (numbers ascending); t: a, b, c
        [0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0],
        [1, 0, 0, 1, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1],
    ]  # fmt: skip
    ordered = load(tmp_path, text, {}, features="t,c", categorical="t=a,c", scaling="none")
    assert ordered.x[5].tolist() == [0, 1, 0, 0, 1]


def test_parts_are_drawn_within_classes_of_sites_where_no_column_gives_them(tmp_path: Path):
    rows = [f"{i},{i % 2},{'ab'[i // 40]}" for i in range(60)]  # 40 rows of a, 20 of b
    text = "v,target,site\n" + "\n".join(rows) + "\n"
    d = load(tmp_path, text, {}, test_fraction=0.25)
    held = [(int(i >= 40), int(i % 2)) for i in d.test.tolist()]
    assert sorted(map(held.count, {*held})) == [2, 2, 5, 5]  # 5 is 0.25 * 20 * 0.5, rounded to even
    own = [i for i in d.train.tolist() if i < 40]
    np.testing.assert_allclose(d.x[3, 0], standard([float(i) for i in own], 3.0), rtol=1e-6)
    again = load(tmp_path, text, {}, test_fraction=0.25, seed=1)
    assert again.test.tolist() != d.test.tolist()


GAPS = """v,w,target,site,split
1,5,0,a,train
?,7,1,a,train
6,,1,a,train
,1,0,a,test
2,1,1,b,train
NA,3,0,b,train
8,9,0,b,test
?,1,1,c,test
"""


@pytest.mark.parametrize(("missing", "own"), [("mean", (3.5, 2)), ("median", (3.5, 2))])
def test_gaps_are_filled_from_the_training_rows_of_the_site(tmp_path: Path, missing, own):
    d = load(tmp_path, GAPS, {}, missing=missing, scaling="none")
    every = {"mean": 3, "median": 2}[missing]  # of 1, 6, 2: c has no training rows
    assert d.x[:, 0].tolist() == [1, own[0], 6, own[0], 2, own[1], 8, every]
    assert d.x[2, 1] == 6
    scaled = load(tmp_path, GAPS, {}, missing=missing)
    expected = [standard([1, 3.5, 6], v) for v in (1, 3.5, 6, 3.5)]
    np.testing.assert_allclose(scaled.x[:4, 0], expected, rtol=1e-6, atol=1e-7)


def test_constant_columns_are_not_divided(tmp_path: Path):
    text = "v,target,site,split\n3,0,a,train\n3,1,a,train\n3,1,a,test\n5,1,a,test\n"
    assert load(tmp_path, text, {}).x[:, 0].tolist() == [0, 0, 0, 2]


OWN = """v,target,site,split
0,0,a,train
2,1,a,train
3,1,a,own_test
4,0,b,train
8,1,b,train
9,0,b,own_test
3,1,,test
9,0,,test
"""


def test_a_row_of_no_site_is_scaled_by_all_sites_and_in_the_common_part_alone(tmp_path: Path):
    d = load(tmp_path, OWN, {})
    every = [0.0, 2.0, 4.0, 8.0]
    expected = [standard([0, 2], 3), standard([4, 8], 9), standard(every, 3), standard(every, 9)]
    np.testing.assert_allclose(d.x[[2, 5, 6, 7], 0], expected, rtol=1e-6)
    split = partitions.make(d, "by_site")
    assert [own.tolist() for own in split.test] == [[2], [5]]
    assert (d.test.tolist(), d.own_test.tolist()) == ([6, 7], [2, 5])
    assert split.names == ("a", "b")


@pytest.mark.integration
def test_a_run_evaluates_both_parts_and_predicts_them(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(OWN)
    words = "run -a fedavg -d csv:t.csv --engine serial --rounds 2 --sample-rate 1 --lr 0.1 --out r"
    done = CliRunner().invoke(main, [*words.split(), "--evaluate-clients-every", "2"])
    assert done.exit_code == 0, done.output
    rows = fedsim.RunStore(tmp_path / "r").read("evaluations")
    assert rows[rows["split"] == "own_test"]["client_id"].tolist() == [0, 1]
    split = fedsim.RunStore(tmp_path / "r").read("split")
    assert split["part"].tolist() == ["train", "train", "own_test"] * 2 + ["test", "test"]
    one = CliRunner().invoke(main, ["predict", "r", "--split", "own_test", "--out", "own.csv"])
    assert one.exit_code == 0, one.output
    assert len((tmp_path / "own.csv").read_text().splitlines()) == 3


@pytest.mark.integration
def test_the_reader_keeps_the_contract(tmp_path: Path):
    rows = [f"{i % 7},{i % 3},{i % 2},{'abcd'[i % 4]}" for i in range(80)]
    (tmp_path / "t.csv").write_text("v,w,target,site\n" + "\n".join(rows) + "\n")
    check_reader("csv", tmp_path / "t.csv", scaling="all")


@pytest.mark.parametrize(
    ("change", "given", "message"),
    [
        ((",grade,", ",level,"), {}, "needed are the columns grade"),
        (("9.0", "1e39"), {}, r"table\.csv, row 5, column weight: '1e39' is no finite number"),
        (("9.0", "?"), {}, r"row 5, column weight: the value is missing \('\?'\); csv.missing"),
        ((",b,", ",,"), {"missing": "mean"}, "row 3, column kind: the category is missing"),
        (("50,c,3.0,no", "50,c,3.0,"), {}, "row 4, column grade: the class is missing"),
        (("south,test", "south,tset"), {}, "row 8, column fold: 'tset' is unknown; known are"),
        (("30,a,1.5,no", "30,a,1.5,no,1"), {}, "row 2: 7 values, the header has 6"),
        (("train", "test"), {}, "csv.scaling=site needs training rows"),
        (("no", "yes"), {}, "column grade: one class, needed are two"),
        (("no", "0.5"), {}, "row 2, column grade: '0.5' is no class"),
        (("Weight", ""), {}, "column 3 of the header has no name"),
        (("Weight", "age"), {}, "each once, .*; 'age' is given twice; data"),
        (("1.5", "1_000"), {}, "row 2, column weight: '1_000' is no finite number"),
        (("1.5,no,north", "1.5,no,NA"), {}, "row 2, column hospital: the site is missing"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, change, given, message):
    text = TABLE.replace(*change)
    with pytest.raises(DataError, match=message):
        load(tmp_path, text, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"features": "agee"}, r"csv.features: there is no column 'agee' \(did you mean 'age'"),
        ({"features": "age,age"}, "csv.features: 'age' is given twice"),
        ({"features": "age,grade"}, "'grade' is given twice, here or in data.columns"),
        ({"categorical": "kind=d"}, "csv.categorical: kind=d given, but no row has it; values are"),
        ({"categorical": "kin"}, "csv.categorical: there is no column 'kin'"),
        ({"features": "age", "categorical": "kind"}, "csv.categorical: 'kind' is no feature"),
        ({"columns": COLUMNS | {"site": "fold"}}, "'fold' is site and split, one column can be"),
        ({"columns": COLUMNS | {"site": "place"}}, "data.columns.site: there is no column 'place'"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, given, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **given)


def test_what_is_odd_about_a_table_is_said(tmp_path: Path):
    cells = [[i % 4 or "?", ["Yes", "yes", "no"][i % 3]] for i in range(30)]
    file = write(tmp_path, ["code", "target"], [*cells, [1, "ni"]])
    remarks = data.load("csv", file, missing="median").remarks
    assert remarks[0].startswith("labels that may be typing errors: 'yes' (10 rows, first in row 3")
    assert remarks[1] == "class with a single row: 'ni' (1 row in row 32)"
    numbers = write(tmp_path, ["v", "target"], [[i, 1 - i % 2 * 2] for i in range(30)])
    assert data.load("csv", numbers).remarks == ()
    rows = [[1, "a"], [2, "b"]]
    with pytest.raises(DataError, match=r"t.csv: 2 samples are too few to hold out a fraction 0.2"):
        data.load("csv", write(tmp_path, ["v", "target"], rows))


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (("0", "-0", "1", "+1.0"), ("0", "1")),
        (("10", "1_0"), ("10", "1_0")),
        (("9007199254740993", "9007199254740992"), ("9007199254740992", "9007199254740993")),
        (("-1", "1e2", "7.0"), ("-1", "7", "100")),
    ],
)
def test_two_classes_are_one_only_where_their_numbers_are_equal(tmp_path: Path, cells, classes):
    text = "v,target\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(cells * 10))
    assert load(tmp_path, text, {}).class_names == classes


def test_a_patient_in_two_parts_is_refused(tmp_path: Path):
    text = "v,target,site,split,who\n1,0,a,train,p\n2,1,a,train,q\n3,1,a,test,q\n"
    with pytest.raises(DataError, match="row 4: patient 'q' is in part test, and in part train in"):
        load(tmp_path, text, {"patient": "who"})
    text = text.replace("test,q", "test,r") + "4,0,b,train,q\n5,0,b,test,s\n"
    assert load(tmp_path, text, {"patient": "who"}).patient_names == ("p", "q", "r", "s")


def hospitals(folder: Path, **tables: str) -> Path:
    """A file of each hospital; by default of two, whose columns stand in another order."""
    folder.mkdir(exist_ok=True)
    default = {
        "va": "v,kind,target\n1,a,0\n2,,1\n4,b,0\n8,a,1\n",
        "york": "target,v,kind\n0,10,b\n1,,a\n1,30,?\n0,50,b\n",
    }
    for name, text in (tables or default).items():
        (folder / f"{name}.csv").write_text(text)
    return folder


READ = {"missing": "median", "categorical": "kind", "missing_categories": "own"}


def test_a_folder_has_a_file_for_each_hospital(tmp_path: Path):
    folder = hospitals(tmp_path / "tables")
    d = data.load("csv", folder, test_fraction=0.3, scaling="none", **READ)
    assert d.site_names == ("va", "york")
    assert d.site is not None
    assert d.site.tolist() == [0] * 4 + [1] * 4
    assert d.y.tolist() == [0, 1, 0, 1, 0, 1, 1, 0]
    assert d.x[:, 1:].tolist() == [  # a, b, missing
        [1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]
    ]  # fmt: skip
    given = Path(f"{folder / 'york.csv'},{folder / 'va.csv'}")
    listed = data.load("csv", given, test_fraction=0.3, scaling="none", **READ)
    assert listed.y.tolist() == d.y.tolist()[4:] + d.y.tolist()[:4]
    assert [listed.site_names[s] for s in listed.site] == ["york"] * 4 + ["va"] * 4
    assert list(map(Path, settings.listed(files.absolute(str(given))))) == files.places(given)
    place = tmp_path / "a,b.csv"
    place.write_text((folder / "va.csv").read_text())
    assert data.load("csv", place, test_fraction=0.3, **READ).site is None
    assert files.absolute(str(place)) == str(place)


def test_a_column_of_sites_counts_before_the_names_of_files(tmp_path: Path):
    tables = {name: "v,target,ward\n" + f"1,0,{name}1\n2,1,{name}1\n3,1,x\n" * 4 for name in "ab"}
    folder = hospitals(tmp_path / "tables", **tables)
    d = data.load("csv", folder, columns={"site": "ward"}, test_fraction=0.2)
    assert d.site_names == ("a1", "b1", "x")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, "no CSV file"),
        ({"a": "v,target\n1,0\n", "b": "vv,v,target\n1,1,0\n"}, r"a\.csv: there is no column 'vv'"),
        ({"a": "v,target\n1,0\n", "b": "v,class\n1,0\n"}, r"b\.csv: the header is v,class, needed"),
        ({"a": "v,target\n1,0\n", "b": "v,target\n1,0\nx,1\n"}, r"b\.csv, row 3, column v: 'x' is"),
        ({"a": "v,target\n1,0\n2,1\n2,ni\n", "b": ""}, r"b\.csv: the file is empty"),
    ],
)
def test_bad_tables_among_several_are_named(tmp_path: Path, tables, message):
    (tmp_path / "tables").mkdir()
    folder = hospitals(tmp_path / "tables", **tables) if tables else tmp_path / "tables"
    with pytest.raises(DataError, match=message):
        data.load("csv", folder)


def test_two_files_of_one_name_are_no_two_sites(tmp_path: Path):
    files = [hospitals(tmp_path / name) / "va.csv" for name in ("one", "two")]
    with pytest.raises(ConfigError, match="two files are called 'va'"):
        data.load("csv", Path(",".join(map(str, files))), **READ)


def test_the_digest_is_of_the_tables_and_not_of_what_becomes_of_them(tmp_path: Path):
    """So that runs on several partitions of scaled tables are runs on the same data."""
    folder = hospitals(tmp_path / "tables")
    loaded = [data.load("csv", folder, test_fraction=0.3, seed=seed, **READ) for seed in (0, 3)]
    assert loaded[0].x.tolist() != loaded[1].x.tolist()
    one, other = (data_of(dataset, str(folder)) for dataset in loaded)
    assert one.short == other.short
    listed = f"{folder / 'va.csv'},{folder / 'york.csv'}"
    assert data_of(loaded[0], listed).short == one.short
    (folder / "va.csv").write_text((folder / "va.csv").read_text().replace("8,a", "9,a"))
    assert data_of(loaded[0], str(folder)).short != one.short


def test_codes_whose_gaps_are_filled_by_a_median_are_a_remark(tmp_path: Path):
    rows = [[[3, 6, 7, "?"][i % 4], i % 2 or "", i / 7, i % 3 % 2] for i in range(40)]
    file = write(tmp_path, ["thal", "sex", "age", "target"], rows)
    (remark,) = data.load("csv", file, missing="median").remarks
    assert remark.startswith(
        "csv.missing=median fills columns of few whole numbers: thal (3, 6, 7)"
    )
    assert "sex" not in remark
    columns = {"categorical": "thal,sex", "missing": "median", "missing_categories": "own"}
    assert data.load("csv", file, **columns).remarks == ()


HEADER = ["age", "a", "b", "days", "dead", "split"]
ROWS = [[30, 0, 1, 3, 0, "train"], [40, "1.0", 1, 2.5, "1.0", "train"], [50, 0, 0, 9, 1, "test"]]
SURVIVAL = {"time": "days", "event": "dead"}


@pytest.mark.parametrize(
    ("task", "columns", "names", "y", "features"),
    [
        ("regression", {"target": "days"}, ("days",), [3, 2.5, 9], 4),
        ("regression", {"target": "B+Days"}, ("b", "days"), [[1, 3], [1, 2.5], [0, 9]], 3),
        ("multilabel", {"target": "a+b"}, ("a", "b"), [[0, 1], [1, 1], [0, 0]], 3),
        ("multilabel", {"target": "a"}, ("a",), [[0], [1], [0]], 4),
        ("survival", SURVIVAL, ("risk",), [[3, 0], [2.5, 1], [9, 1]], 3),
        (None, SURVIVAL, ("risk",), [[3, 0], [2.5, 1], [9, 1]], 3),
    ],
)
def test_targets_of_other_tasks_are_columns(tmp_path: Path, task, columns, names, y, features):
    file = write(tmp_path, HEADER, ROWS)
    d = data.load("csv", file, task=task, columns=columns, scaling="none")
    assert d.class_names == tuple(name.lower() for name in names)
    assert (d.y.dtype, d.y.tolist()) == (np.float32, y)
    assert d.x.shape == (3, features)
    assert d.task is not None
    assert d.task.name == (task or "survival")


@pytest.mark.parametrize(
    ("task", "columns", "cells", "message"),
    [
        ("regression", {"target": "a"}, {"a": ""}, "row 2, column a: '' is no finite number"),
        ("multilabel", {"target": "a+b"}, {"b": "?"}, "row 2, column b: '.' is no label; .* 0 or"),
        ("multilabel", {"target": "a+c"}, {}, "needed are the columns a, c.*data.columns.target"),
        ("multilabel", {"target": "a+a"}, {}, "'a' is target and target 2, one column can be"),
        ("survival", SURVIVAL, {"days": -1}, "row 2, column days: '-1' is no finite number of at"),
        (None, SURVIVAL, {"dead": 2}, "row 2, column dead: '2' is neither 0"),
        (None, {"event": "dead"}, {}, r"columns\.event: given without data\.columns\.time"),
        ("survival", {}, {}, "needed are the columns time, event, .*event say which"),
        ("regression", SURVIVAL, {}, "columns.time: given; task regression takes a target"),
        ("tokens", {"target": "a"}, {}, "task tokens: data set csv has no targets of this kind"),
    ],
)
def test_targets_that_are_none_are_refused(tmp_path: Path, task, columns, cells, message):
    first = [cells.get(name, cell) for name, cell in zip(HEADER, ROWS[0], strict=True)]
    file = write(tmp_path, HEADER, [first, *ROWS[1:]])
    with pytest.raises((ConfigError, DataError), match=message):
        data.load("csv", file, task=task, columns=columns)


def test_what_a_run_keeps_makes_the_same_features_of_the_same_cells(tmp_path: Path):
    """From the texts of the table and JSON, to the bit; with numbers from the standard library."""
    file = tmp_path / "t.csv"
    file.write_text(GAPS.replace("1,0,a,test", "1,0,,test"))
    own = {"categorical": "w", "missing_categories": "own"}
    for given in ({}, {"scaling": "all"}, {"scaling": "none"}, own):
        d = data.load("csv", file, missing="median", **given)
        kept = json.loads(json.dumps(d.prepare.record(d.train)))
        with file.open() as rows:
            cells = list(csv.DictReader(rows))
        x = table_features.features(cells, kept, [row["site"] for row in cells])
        assert x.tobytes() == d.x.tobytes()
    numbers = data.load("csv", file, missing="median").prepare.record(d.train)["sites"]["a"]
    assert numbers["fill"][0] == 3.5
    assert numbers["scale"][0] == pytest.approx(stdev([1, 3.5, 6]) + 1e-9, rel=1e-12)
