"""split.csv: what is written reads back as the same parts and clients; damage is named."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import fedsim
from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.core.errors import DataError
from fedsim.core.types import Dataset, Partition, Pipeline
from fedsim.data import holdout, partitions, splits
from fedsim.storage.run_dir import csv_text
from fedsim.training import loading
from tests.unit.data import leaf_files

N = 240


def toy(**changes: object) -> Dataset:
    """240 samples of three classes at four sites, with patients and files."""
    made = Dataset(
        name="toy",
        x=np.zeros((N, 1, 4, 4), dtype=np.uint8),
        y=np.arange(N) % 3,
        class_names=("a", "b", "c"),
        train=np.arange(20, 200),
        val=np.arange(20),
        test=np.arange(200, N),
        pipeline=Pipeline(size=4, mean=(0.5,), std=(0.5,)),
        site=np.arange(N) // 2 % 4,
        site_names=("x", "y,z", "=w", "v"),
        patient=np.arange(N) // 2 % 50,
        patient_names=tuple(f"p{i}" for i in range(50)),
        files=tuple(f"images/{i}.png" for i in range(N)),
    )
    return replace(made, **changes)


def written(data: Dataset, made: Partition, file: Path) -> pd.DataFrame:
    file.write_text(csv_text(splits.columns(data, made)), encoding="utf-8", newline="")
    return pd.read_csv(file, keep_default_na=False, dtype=str)


FRACTIONS = [(0.0, 0.0), (0.0, 0.2), (0.2, 0.0), (0.2, 0.2)]


@pytest.mark.parametrize("kind", [*partitions.NAMES])
@pytest.mark.parametrize(("val", "test"), FRACTIONS)
def test_every_partition_reads_back_in_its_order(tmp_path, kind, val, test):
    lists = {"k1": np.arange(30, 90)[::-1], "k0": np.arange(90, 190)}
    data = toy(clients=lists, sites_are_users=kind == "natural")
    made = partitions.make(data, kind, num_clients={"files": 2}.get(kind, 4), alpha=10.0)
    made = holdout.hold_out(data, made, val_fraction=val, test_fraction=test)
    table = written(data, made, tmp_path / "split.csv")
    assert list(table)[:7] == ["sample", "part", "client_id", "label", "file", "patient", "site"]
    bare = replace(data, train=data.test, val=data.train, test=data.val)  # the file says all parts
    again, read = splits.read(bare, tmp_path / "split.csv")
    for part in ("train", "val", "test"):
        assert np.array_equal(getattr(again, part), getattr(data, part))
        assert len(getattr(read, part)) == len(getattr(made, part))
        for a, b in zip(getattr(read, part), getattr(made, part), strict=True):
            assert np.array_equal(a, b)
    assert read.names == made.names
    assert csv_text(splits.columns(again, read)) == (tmp_path / "split.csv").read_text()


def test_the_columns_say_what_is_known(tmp_path):
    data = toy()
    made = partitions.make(data, "by_site")
    table = written(data, made, tmp_path / "split.csv").set_index("sample")
    assert len(table) == N
    assert "name" not in table  # the sites say it
    for i in map(str, range(N)):
        row = table.loc[i]
        assert row["label"] == str(data.y[int(i)])
        assert row["file"] == f"images/{i}.png"
        assert row["patient"] == f"p{int(i) // 2 % 50}"
        assert row["client_id"] == str(int(i) // 2 % 4)  # also of the common parts: its site's
        part = "val" if int(i) < 20 else "train" if int(i) < 200 else "test"
        assert row["part"] == part
    plain = replace(data, site=None, site_names=(), patient=None, patient_names=(), files=())
    dealt = partitions.make(plain, "dirichlet_per_client", num_clients=7, alpha=10.0)
    table = written(plain, dealt, tmp_path / "plain.csv")
    assert list(table) == ["sample", "part", "client_id", "label"]
    left = table[(table["part"] == "train") & (table["client_id"] == "")]
    assert len(left) == 180 - 7 * (180 // 7)
    assert set(table.loc[table["part"] != "train", "client_id"]) == {""}


def test_the_parts_of_a_file_are_not_drawn_again(tmp_path):
    own = {"client_val_fraction": 0.1, "client_test_fraction": 0.2}
    config = RunConfig(data={"num_clients": 10, **own})
    data, made, _ = loading.load(config)
    written(data, made, tmp_path / "split.csv")
    files = {"partition_file": str(tmp_path / "split.csv"), "partition": "files"}
    for seed, fractions in itertools.product((0, 1), (own, {})):
        again = RunConfig(data={**files, **fractions, "seed": seed, "test_fraction": 0.3})
        data2, read, _ = loading.load(again)
        for part in ("train", "val", "test"):
            assert np.array_equal(getattr(data2, part), getattr(data, part))
            for a, b in zip(getattr(read, part), getattr(made, part), strict=True):
                assert np.array_equal(a, b)


GOOD = ["0,train,0,0", "1,train,0,1", "2,train,1,2", "3,train,1,0", "4,test,,1", "5,val,,2"]
HEAD = "sample,part,client_id,label"


@pytest.mark.parametrize(
    ("row", "text", "message"),
    [
        (2, "240,train,0,0", "row 3: sample 240 is not in toy, which has 0..239"),
        (2, "-1,train,0,0", "row 3: sample -1 is not in toy"),
        (2, "0,train,0,0", "row 3: sample 0 is given twice"),
        (2, "x,train,0,0", "row 3: sample 'x' is not a whole number"),
        (2, "1.5,train,0,0", "row 3: sample '1.5' is not a whole number"),
        (2, ",train,0,0", "row 3: sample '' is not a whole number"),
        (2, "1e300,train,0,0", "row 3: sample '1e300' is not a whole number"),
        (2, "1,training,0,1", "row 3: part 'training' is unknown; known: train, val, test, own_"),
        (2, "1,train,a,1", "row 3: client_id 'a' is not a whole number"),
        (2, "1,train,-2,1", "row 3: a sample of train needs a client"),
        (2, "1,own_test,,1", "row 3: a sample of own_test needs a client"),
        (2, "1,train,0,2", "row 3: label '2' of sample 1, toy has '1' there: the split belongs to"),
        (2, "1,train,0", "row 3: 3 values, the header has 4"),
        (2, "1,train,0,1,9", "row 3: 5 values, the header has 4"),
        (1, "0,train,0,0,9", "row 2: 5 values"),
        (2, '1,train,0,"1', "row 3: a quote is not closed"),
        (3, "2,train,3,2", "client 2 has no training samples; clients are numbered 0, 1"),
        (3, "2,train,999999999999,2", "client 2 has no training samples"),
        (3, "2,train,1," + "2" * 140_000, "row 4: a quote is not closed"),
        (5, "4,test,7,1", "client 2 has no training samples"),
        (5, "4,val,,1", "no sample is in the part test"),
        (0, "sample,part,label", "the header is sample,part,label, needed are the columns sample"),
        (0, "sample,part,client_id,part", "each once"),
    ],
)
def test_a_damaged_file_is_refused_with_its_row(tmp_path, row, text, message):
    lines = [HEAD, *GOOD]
    lines[row] = text
    (tmp_path / "split.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=message) as caught:
        splits.read(toy(), tmp_path / "split.csv")
    assert "\n" not in str(caught.value)


def test_spaces_line_ends_and_a_byte_order_mark_are_read(tmp_path):
    lines = [HEAD.replace(",", " , "), *(line.replace(",", ", ") for line in GOOD)]
    (tmp_path / "split.csv").write_text("\ufeff" + "\r\n".join(lines) + "\r\n", newline="")
    data, read = splits.read(toy(), tmp_path / "split.csv")
    assert [own.tolist() for own in read.train] == [[0, 1], [2, 3]]
    assert (data.val.tolist(), data.test.tolist()) == ([5], [4])


@pytest.mark.slow
@pytest.mark.integration
def test_a_run_with_the_split_of_another_has_its_bytes(tmp_path):
    small = {"train": {"rounds": 2, "sample_rate": 1.0}, "engine": {"kind": "serial"}}
    own = {"num_clients": 4, "val_fraction": 0.1, "client_test_fraction": 0.2}
    config = RunConfig(algorithm="fedavg", model={"name": "logistic"}, data=own, **small)
    first = fedsim.run(config, tmp_path / "first")
    files = {"partition": "files", "partition_file": str(first.path / "split.csv")}
    config = RunConfig(
        algorithm="fedavg",
        model={"name": "logistic"},
        data={**files, "test_fraction": 0.4},
        **small,
    )
    again = fedsim.run(config, tmp_path / "again")
    for name in ("rounds.csv", "clients.csv", "classes.csv", "partition.csv", "split.csv"):
        assert (first.path / name).read_bytes() == (again.path / name).read_bytes()
    done = CliRunner().invoke(
        main,
        ["partition", "--config", str(first.path / "config.yaml"), "--out", str(tmp_path / "p")],
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "p/split.csv").read_bytes() == (first.path / "split.csv").read_bytes()


def test_groups_of_test_samples_follow_an_edited_test_part(tmp_path):
    data = toy(groups={"hard": np.arange(200, 210), "easy": np.arange(210, N)})
    made = partitions.make(data, "iid", num_clients=2)
    table = written(data, made, tmp_path / "split.csv")
    table = table[~table["sample"].isin([str(i) for i in range(205, N)])]
    table.to_csv(tmp_path / "split.csv", index=False)
    again, _ = splits.read(data, tmp_path / "split.csv")
    assert {name: own.tolist() for name, own in again.groups.items()} == {
        "hard": [200, 201, 202, 203, 204]
    }


def patients(file: Path, changed: int | None = None) -> Path:
    """A table of 120 patients of two sites, with gaps; the row ``changed`` has other values."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=(120, 3)).round(3).astype(object)
    values[::7, 1] = "?"
    if changed is not None:
        values[changed] = 1e4
    lines = [f"{a},{b},{c},{i % 2},{'ns'[i % 3 == 0]}" for i, (a, b, c) in enumerate(values)]
    file.write_text("a,b,c,target,site\n" + "\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("scaling", ["site", "all", "none"])
@pytest.mark.parametrize("missing", ["mean", "median"])
def test_what_is_fitted_follows_the_file_never_the_draw_that_it_replaces(
    scaling, missing, tmp_path: Path
):
    options = {"csv": {"scaling": scaling, "missing": missing}}

    def config(table: Path, **more: object) -> RunConfig:
        return RunConfig(data={"name": f"csv:{table}", **more}, hyperparameters=options)

    table = patients(tmp_path / "one.csv")
    data, made, _ = loading.load(
        config(table, seed=7, client_test_fraction=0.2, client_val_fraction=0.2)
    )
    written(data, made, tmp_path / "split.csv")
    split = {"partition": "files", "partition_file": str(tmp_path / "split.csv")}
    used = np.concatenate([data.train, data.val, data.test])
    other = patients(tmp_path / "other.csv", changed=int(data.test[0]))
    for seed, read in itertools.product((7, 1, 2), (table, other)):
        again = config(read, seed=seed, **split)
        found, partition, _ = loading.load(again)
        same = np.setdiff1d(used, data.test[:1] if read == other else [])
        assert found.x[same].tobytes() == data.x[same].tobytes()
        parts = found.train, found.val, found.test
        assert loading.read_images(again, partition, parts).tobytes() == found.x.tobytes()
        assert found.prepare is not None
        assert found.prepare(found.train).tobytes() == found.x.tobytes()


def test_the_vocabulary_of_texts_follows_neither_the_draw_nor_the_file(tmp_path: Path):
    texts = [["1", "d", "q", "u", f"word{i} word{i % 7}", "x"] for i in range(40)]
    leaf_files.write(tmp_path / "train", "a.json", {"u": (texts, [i % 2 for i in range(40)])})
    given = {"name": "sent140", "dir": str(tmp_path), "min_samples": 1}
    data, made, _ = loading.load(RunConfig(data={**given, "seed": 7}))
    written(data, made, tmp_path / "split.csv")
    split = {"partition": "files", "partition_file": str(tmp_path / "split.csv")}
    for seed in (7, 1):
        again, _, _ = loading.load(RunConfig(data={**given, **split, "seed": seed}))
        assert again.words == data.words
        assert again.x.tobytes() == data.x.tobytes()
        assert again.test.tobytes() == data.test.tobytes()
