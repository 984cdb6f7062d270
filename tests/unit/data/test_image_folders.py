"""Image folders: Retina, COVID-FL, Tiny-ImageNet, one's own, and the pack in the cache."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedsim import data
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.rng import torch_scope
from fedsim.data import cache as packs
from fedsim.data import partitions
from fedsim.data.readers import medical
from fedsim.data.transforms import Transforms
from fedsim.training import assemble


def grey(value: int, height: int = 12, width: int = 12) -> np.ndarray:
    return np.full((height, width, 3), value, dtype=np.uint8)


TRAIN = [f"{i}_left" for i in range(8)]
TEST = ["0_right", "9_left", "9_right"]


@pytest.fixture
def retina(tmp_path: Path) -> Path:
    """Retina: image i has the value 10 i, float for odd i, label i mod 2; two splits."""
    root = tmp_path / "data" / "Retina"
    for part, names in (("train", TRAIN), ("test", TEST)):
        (root / part).mkdir(parents=True)
        for i, name in enumerate(names):
            array = grey(10 * i).astype(np.float32 if i % 2 else np.uint8)
            np.save(root / part / f"{name}.npy", array)
        (root / f"{part}.csv").write_text("".join(f"{name}.npy\n" for name in names))
    rows = [f"{n}.npy,{float(i % 2)}\n" for names in (TRAIN, TEST) for i, n in enumerate(names)]
    (root / "labels.csv").write_text("".join(rows))
    lists = {
        "split_1": {"client_1": [1, 0], "client_2": [2, 3, 4], "client_10": [5, 6, 7]},
        "split_2": {"client_1": [0, 1, 2, 3], "client_2": [4, 5, 6, 7]},
    }
    for split, clients in lists.items():
        folder = root / "3_clients" / split
        folder.mkdir(parents=True)
        for client, members in clients.items():
            text = "".join(f"{TRAIN[i]}.npy,x\n" for i in members)
            (folder / f"{client}.csv").write_text(text)
    return root


def test_retina_as_published(retina: Path):
    for folder in (retina, retina.parent):
        loaded = data.load("retina", folder)
        assert loaded.x.shape == (11, 3, 256, 256)
        assert loaded.x[:, 0, 0, 0].tolist() == [10 * i for i in (*range(8), *range(3))]
        assert loaded.y.tolist() == [0, 1] * 4 + [0, 1, 0]
        assert loaded.pipeline.size == 384
        assert loaded.pipeline.augment == "retina"
        assert loaded.pipeline.mean == (0.5007, 0.5010, 0.5019)
        assert loaded.clients is not None
        assert {k: v.tolist() for k, v in loaded.clients.items()} == {
            "client_1": [1, 0],
            "client_10": [5, 6, 7],
            "client_2": [2, 3, 4],
        }
    made = partitions.make(loaded, "files", num_clients=3)
    assert made.names == ("client_1", "client_10", "client_2")


def test_validation_images_leave_the_clients_and_patients_stay_whole(retina: Path):
    (retina / "train" / "0_right.npy").write_bytes((retina / "train/0_left.npy").read_bytes())
    for file, text in (("train.csv", "0_right.npy\n"), ("3_clients/split_2/client_2.csv", "")):
        (retina / file).write_text((retina / file).read_text() + text)
    (retina / "test.csv").write_text("9_left.npy\n9_right.npy\n")
    loaded = data.load("retina", retina, image_size=8, split="split_2", val_fraction=0.5)
    assert 0 < len(loaded.val) < 9
    assert (0 in loaded.val) == (8 in loaded.val)  # 0_left and 0_right
    listed = np.concatenate(list((loaded.clients or {}).values()))
    assert set(listed.tolist()) == set(loaded.train.tolist()) - {8}


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


CLIENT = "3_clients/split_1/client_2.csv"


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("labels.csv", "1_left.npy,1.0", "1_left.npy,2", r"labels\.csv, row 2: label 2 is outside"),
        ("labels.csv", "1_left.npy,1.0", "1_left.npy,-1", r"row 2: label -1 is outside"),
        ("labels.csv", "1_left.npy,1.0", "1_left.npy,0.5", r"row 2: label '0\.5' is not a whole"),
        ("labels.csv", "1_left.npy,1.0", "1_left.npy,yes", r"row 2: label 'yes' is not a whole"),
        ("labels.csv", "1_left.npy,1.0", "1_left.npy", r"row 2: '1_left\.npy' is not name,label"),
        ("labels.csv", "1_left.npy", "0_left.npy", r"row 2: '0_left\.npy' was given in an earlier"),
        ("labels.csv", "1_left.npy", "x.npy", r"train\.csv, row 2: '1_left\.npy' has no label"),
        ("train.csv", "1_left.npy", "x.npy", r"train\.csv, row 2: there is no file .*x\.npy"),
        ("train.csv", "7_left.npy", "0_left.npy", r"row 8: .*given in .*train\.csv, row 1 alr"),
        ("test.csv", "9_left.npy", "../train/1_left.npy", r"test\.csv, row 2: .*leaves the data"),
        (CLIENT, "3_left.npy", "x.npy", r"client_2\.csv, row 2: 'x.npy' is not in .*train\.csv"),
        (CLIENT, "3_left.npy", "1_left.npy", r"client_2\.csv, row 2: .*client_1\.csv, row 1 alr"),
    ],
)
def test_damaged_lists_are_refused_with_file_and_row(retina: Path, file, old, new, message):
    edit(retina / file, old, new)
    with pytest.raises(DataError, match=message):
        data.load("retina", retina, image_size=8)


def test_retina_grey_and_many_channels(retina: Path):
    np.save(retina / "train" / "1_left.npy", np.full((9, 12), 77.0))
    many = np.stack([np.full((6, 6), v, np.uint8) for v in (1, 2, 3, 200)], axis=2)
    np.save(retina / "train" / "2_left.npy", many)
    loaded = data.load("retina", retina, image_size=8)
    assert (loaded.x[1] == 77).all()
    assert loaded.x[2, :, 0, 0].tolist() == [1, 2, 3]


def test_unknown_split_is_refused_with_the_nearest(retina: Path):
    with pytest.raises(DataError, match=r"'split_3' is unknown .*did you mean 'split_"):
        data.load("retina", retina, split="split_3")
    (retina / "50_clients" / "split_1").mkdir(parents=True)
    with pytest.raises(DataError, match=r"'split_1' is ambiguous; there are: 3_clients/split_1"):
        data.load("retina", retina, split="split_1")
    with pytest.raises(DataError, match="no client lists"):
        data.load("retina", retina, split="50_clients/split_1")


def picture(path: Path, value: int, mode: str = "L", size: tuple[int, int] = (20, 12)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


@pytest.fixture
def covid(tmp_path: Path) -> Path:
    root = tmp_path / "COVID-FL"
    for part, names in (("train", ["a.png", "b.png", "c.png"]), ("test", ["d.png", "e.jpg"])):
        for i, name in enumerate(names):
            picture(root / part / name, 40 * (i + 1))
        (root / f"{part}.csv").write_text("\n".join(names))
    (root / "labels.csv").write_text("a.png,0\nb.png,1\nc.png,2\nd.png,0\ne.jpg,1\n")
    for name, text in (("sirm", "c.png\n"), ("bimcv", "b.png\na.png\n")):
        path = root / "2_clients" / "split_real" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_covid_fl_as_published(covid: Path):
    loaded = data.load("covid_fl", covid.parent, image_size=16)
    assert loaded.x.shape == (5, 3, 16, 16)
    assert loaded.x[:3, 2, 3, 4].tolist() == [40, 80, 120]
    assert loaded.class_names == ("normal", "pneumonia", "COVID-19")
    assert loaded.pipeline.mean == (0.485, 0.456, 0.406)
    assert loaded.pipeline.augment == "covid_fl"
    made = partitions.make(loaded, "files", num_clients=2, min_samples=1)
    assert made.names == ("bimcv", "sirm")
    assert [i.tolist() for i in made.train] == [[1, 0], [2]]
    with pytest.raises(ConfigError, match="covid_fl has no sites; its client lists are"):
        partitions.make(loaded, "by_site", num_clients=2)
    assert data.load("covid_fl", covid).pipeline.size == medical.PUBLISHED_SIZE


def test_pack_is_made_once_and_anew_when_a_file_changes(covid, cache, monkeypatch):
    first = data.load("covid_fl", covid, image_size=8)
    assert isinstance(first.x.base, np.memmap)
    assert not first.x.flags.writeable
    packed = list((cache / "packed").iterdir())
    assert len(packed) == 1

    def never(*_: object) -> None:
        raise AssertionError("decoded again")

    with monkeypatch.context() as patch:
        patch.setattr(packs, "ThreadPoolExecutor", never)
        again = data.load("covid_fl", covid, image_size=8)
        assert np.array_equal(first.x, again.x)
    picture(covid / "train" / "b.png", 81)
    os.utime(covid / "train" / "b.png", ns=(1, 1))
    changed = data.load("covid_fl", covid, image_size=8)
    assert changed.x[1, 0, 0, 0] == 81
    assert first.x[1, 0, 0, 0] == 80
    assert len(list((cache / "packed").iterdir())) == 2


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


DAMAGE = {
    "header": lambda path: path.write_bytes(b"\x93NUMPY" + bytes(9)),
    "cut off": lambda path: os.truncate(path, 100),
    "empty": lambda path: os.truncate(path, 0),
    "without its end": lambda path: os.truncate(path, path.stat().st_size - 16),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_pack_is_made_anew_and_said_so(damage, covid, cache, caplog):
    first = np.array(data.load("covid_fl", covid, image_size=8).x)
    path = only(cache / "packed")
    whole = path.read_bytes()
    DAMAGE[damage](path)
    assert path.read_bytes() != whole
    assert not caplog.records
    assert np.array_equal(data.load("covid_fl", covid, image_size=8).x, first)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("fedsim", "WARNING")
    assert record.getMessage().startswith(f"{path}: ")
    assert record.getMessage().endswith("; it is made anew")
    assert path.read_bytes() == whole
    data.load("covid_fl", covid, image_size=8)
    assert len(caplog.records) == 1


def test_other_images_on_a_node_are_refused(covid, cache):
    data = {"name": "covid_fl", "dir": str(covid), "image_size": 8, "min_samples": 1}
    ready = assemble.prepare(RunConfig(data=data, engine={"data_from": "node"}))
    picture(covid / "train" / "b.png", 7)
    with pytest.raises(DataError, match="reads other images than the driver"):
        ready.spec.local_images()


def write_folder(root: Path, rows: list[str], header: str = "filename,label") -> Path:
    for i, row in enumerate(rows):
        name = row.split(",")[0]
        if not name.startswith((".", "/")):
            picture(root / "images" / name, i, "RGB")
    (root / "labels.csv").write_text("\n".join([header, *rows]) + "\n")
    return root


def test_own_folder_with_names_sites_and_patients(tmp_path: Path):
    rows = [f"{i}.png,{'cat' if i % 2 else 'dog'},s{i % 3},p{i // 2}" for i in range(60)]
    root = write_folder(tmp_path / "mine", rows, "filename,label,site,patient")
    loaded = data.load("folder", root, image_size=16)
    assert loaded.x.shape == (60, 3, 16, 16)
    assert loaded.class_names == ("cat", "dog")
    assert loaded.y.tolist() == [1, 0] * 30
    assert loaded.site_names == ("s0", "s1", "s2")
    assert loaded.site is not None
    assert loaded.site.tolist() == [0, 1, 2] * 20
    assert {i // 2 for i in loaded.test}.isdisjoint({i // 2 for i in loaded.train})
    assert 8 <= len(loaded.test) <= 16
    assert partitions.default_kind(loaded) == "by_site"
    assert loaded.pipeline.augment == "none"


def test_own_folder_with_given_parts_and_numbers(tmp_path: Path):
    parts = ["train", "test", "val", "train", "train"]
    rows = [f"{i}.jpg,{i % 2},{part}" for i, part in enumerate(parts)]
    loaded = data.load("folder", write_folder(tmp_path, rows, "filename,label,split"))
    assert loaded.train.tolist() == [0, 3, 4]
    assert loaded.val.tolist() == [2]
    assert loaded.test.tolist() == [1]
    assert loaded.pipeline.size == 224
    assert loaded.x.shape == (5, 3, 224, 224)


@pytest.mark.parametrize("header", ["image,level", "id_code,diagnosis", "Filename,Grade"])
def test_kaggles_headers_and_names_without_extension(tmp_path: Path, header):
    write_folder(tmp_path, [f"{i}.png,{i % 2}" for i in range(20)])
    (tmp_path / "labels.csv").write_text(
        "\ufeff" + header + "\r\n" + "".join(f"{i},{i % 2}\r\n" for i in range(20))
    )
    assert data.load("folder", tmp_path, image_size=8).y.tolist() == [0, 1] * 10


def test_classes_file_settles_order_and_allows_empty_classes(tmp_path: Path):
    write_folder(tmp_path, [f"{i}.png,{'high' if i % 2 else '2'}" for i in range(20)])
    (tmp_path / "classes.txt").write_text("none\nhigh\nsevere\n")
    loaded = data.load("folder", tmp_path, image_size=8)
    assert loaded.class_names == ("none", "high", "severe")
    assert loaded.y.tolist() == [2, 1] * 10
    edit(tmp_path / "labels.csv", "3.png,high", "3.png,hgh")
    with pytest.raises(DataError, match=r"row 5: label 'hgh' is outside the classes of classes"):
        data.load("folder", tmp_path, image_size=8)


GOOD = [f"{i}.png,{i % 2}" for i in range(6)]


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([*GOOD, "6.png,9"], None, r"row 8: label 9: .*without a gap \(there is no 2\)"),
        ([*GOOD, "6.png,-1"], None, r"row 8: label -1: they are numbered"),
        ([*GOOD, "6.png,1.5"], None, r"row 8: label '1\.5' is not a whole number"),
        ([*GOOD, "6.png,cat"], None, r"row 8: label 'cat' beside '0': labels are numbers or"),
        (["0.png,a", "1.png,"], None, "row 3: the label is empty"),
        ([*GOOD, "0.png,1"], None, r"row 8: '0\.png' was given in .*row 2"),
        ([*GOOD, "../images/0.png,1"], None, r"row 8: '\.\./images/0\.png' leaves the data folder"),
        ([*GOOD, "6.png"], None, "row 8: 1 values, the header has 2"),
        (GOOD, "filename,kind", "needed are the columns filename, label"),
        (GOOD, "filename,label,label", "each once"),
        ([r + ",p" for r in GOOD[:5]] + ["5.png,1,"], "filename,label,patient", "row 7: patient"),
        (
            [r + ",train" for r in GOOD[:5]] + ["5.png,1,tset"],
            "filename,label,split",
            "row 7, column split: 'tset' is unknown; known are train, val, test",
        ),
        (
            [r + ",train,p" for r in GOOD[:5]] + ["5.png,1,test,p"],
            "filename,label,split,patient",
            r"row 7: patient 'p' is in part test, and in part train in .*row 2",
        ),
    ],
)
def test_damaged_own_folder_is_refused_with_the_row(tmp_path: Path, rows, header, message):
    write_folder(tmp_path, rows, header or "filename,label")
    with pytest.raises(DataError, match=rf"labels\.csv.*{message}"):
        data.load("folder", tmp_path, image_size=8)


def test_missing_picture_and_not_a_text_file_are_refused(tmp_path: Path):
    write_folder(tmp_path, GOOD)
    (tmp_path / "images" / "4.png").unlink()
    with pytest.raises(DataError) as error:
        data.load("folder", tmp_path)
    images = tmp_path / "images"
    said = f"1 of 6 files is missing in {tmp_path} or {images}: 4.png (row 6)"
    said += "; add what is missing, or remove its rows"
    assert str(error.value) == f"{tmp_path / 'labels.csv'}: {said}"
    (tmp_path / "labels.csv").write_bytes(b"filename,label\n\xff\xfe,1\n")
    with pytest.raises(DataError, match=r"labels\.csv: not a readable UTF-8"):
        data.load("folder", tmp_path)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_table_as_excel_writes_it_in_germany(tmp_path: Path, separator: str):
    write_folder(tmp_path, [f"{i}.png,{i % 2}" for i in range(20)])
    rows = [("Filename", "Label", "Site"), *((f"{i}.png", f"{i % 2},0", "a,b") for i in range(20))]
    text = "\ufeff" + "".join(separator.join(row) + "\r\n" for row in rows)
    (tmp_path / "labels.csv").write_text(text, newline="")
    loaded = data.load("folder", tmp_path, image_size=8)
    assert loaded.y.tolist() == [0, 1] * 10
    assert (loaded.class_names, loaded.site_names) == (("0", "1"), ("a,b",))
    (tmp_path / "classes.txt").write_text("well\nill\n")
    assert data.load("folder", tmp_path, image_size=8).y.tolist() == [0, 1] * 10
    (tmp_path / "labels.csv").write_bytes("filename;label\n\xe4.png;1\n".encode("cp1252"))
    with pytest.raises(DataError, match="a spreadsheet saves one as 'CSV UTF-8'"):
        data.load("folder", tmp_path)


TYPED = [*["cataract"] * 12, "cataracct", "Cataract ", "glaucoma", *["grade 1", "grade 2"] * 12]


def test_odd_labels_are_remarked_on_and_refused_if_asked_for(tmp_path: Path):
    write_folder(tmp_path, [f"{i}.png,{label}" for i, label in enumerate(TYPED)])
    loaded = data.load("folder", tmp_path, image_size=8)
    typed, single = (
        "labels that may be typing errors: 'Cataract' (1 image in row 15) like 'cataract' (12), "
        "'cataracct' (1 image in row 14) like 'cataract' (12)",
        "class with a single image: 'glaucoma' (1 image in row 16)",
    )
    assert loaded.remarks == (typed, single)
    with pytest.raises(DataError) as error:
        data.load("folder", tmp_path, image_size=8, strict_labels=True)
    assert f"labels.csv: {typed}; {single}; correct the table" in str(error.value)
    names = sorted({label.strip() for label in TYPED})
    (tmp_path / "classes.txt").write_text("\n".join(names))  # all of them are meant
    (remark,) = data.load("folder", tmp_path, image_size=8).remarks
    assert remark.startswith("classes with a single image: 'Cataract' (1 image in row 15), 'catar")


def save(path: Path, grey: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16), (grey,) * 3).convert(mode).save(path, quality=95)


def make(parent: Path) -> Path:
    """Three classes, whose ids wnids.txt gives in another order than the sorted one."""
    root = parent / "tiny-imagenet-200"
    for k, wnid in enumerate(("n03", "n01", "n02")):
        for i in range(2):
            save(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 80 * k, "L" if i else "RGB")
        save(root / "val" / "images" / f"val_{k}.JPEG", 80 * k)
    (root / "wnids.txt").write_text("n03\nn01\nn02\n")
    (root / "words.txt").write_text("n00\tother\nn01\tgoldfish, Carassius auratus\nn02\tdog\n")
    rows = (f"val_{k}.JPEG\t{wnid}\t0\t0\t9\t9\n" for k, wnid in enumerate(("n03", "n01", "n02")))
    (root / "val" / "val_annotations.txt").write_text("".join(rows))
    return root


def test_labels_follow_the_sorted_ids(tmp_path: Path):
    make(tmp_path)
    for place in (tmp_path, tmp_path / "tiny-imagenet-200"):
        loaded = data.load("tiny_imagenet", place)
        assert loaded.x.shape == (9, 3, 16, 16)  # as stored
        assert loaded.class_names == ("goldfish, Carassius auratus", "dog", "n03")
        assert loaded.y[loaded.train].tolist() == [0, 0, 1, 1, 2, 2]
        assert loaded.y[loaded.test].tolist() == [2, 0, 1]
        # n01 was drawn in grey 80, n02 in 160, n03 in 0; the second image of each is a grey one
        shown = loaded.x.mean(axis=(1, 2, 3))
        assert np.abs(shown - [80, 80, 160, 160, 0, 0, 0, 80, 160]).max() < 2
    assert data.load("tiny_imagenet", tmp_path, image_size=8).x.shape == (9, 3, 8, 8)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("val_0.JPEG\tn03\nval_1.JPEG\tn01\n", r"val_annotations\.txt: no row for 'val_2\.JPEG'"),
        ("val_0.JPEG\tn09\n", r"val_annotations\.txt, row 1: 'n09' is no id of .*wnids\.txt"),
        ("val_0.JPEG\tn03\nval_1.JPEG\n", r"val_annotations\.txt, row 2: '' is no id of"),
        ("val_9.JPEG\tn03\n", r"row 1: there is no file .*val_9\.JPEG"),
        ("../x.JPEG\tn03\n", r"row 1: '\.\./x\.JPEG' leaves the data folder"),
        ("", r"val_annotations\.txt: the file is empty"),
    ],
)
def test_annotations_that_do_not_fit_are_refused(tmp_path: Path, rows: str, message: str):
    root = make(tmp_path)
    (root / "val" / "val_annotations.txt").write_text(rows)
    with pytest.raises(DataError, match=message):
        data.load("tiny_imagenet", tmp_path)


@pytest.mark.parametrize("split", ["split_1", "split_2", "split_3"])
def test_retina(shared_data: Path, split):
    loaded = data.load("retina", shared_data / "fedld-layout", split=split, image_size=64)
    assert (len(loaded.train), len(loaded.test)) == (50, 10)
    assert np.bincount(loaded.y).tolist() == [30, 30]
    made = partitions.make(loaded, "files", num_clients=5)
    assert sum(len(i) for i in made.train) == 50
    # stored as 64 x 64, so nothing is resized: each value is the file's
    name = (shared_data / "fedld-layout/Retina/train.csv").read_text().split()[0]
    original = np.load(shared_data / "fedld-layout/Retina/train" / name)
    assert np.array_equal(loaded.x[0], original.transpose(2, 0, 1))
    transforms = Transforms(loaded.pipeline, torch.device("cpu"))
    with torch_scope(0):
        batch = transforms.train(torch.from_numpy(loaded.x[loaded.train[:4]]))
    assert batch.shape == (4, 3, 64, 64)
    assert torch.isfinite(batch).all()


def test_covid_fl(shared_data: Path):
    loaded = data.load("covid_fl", shared_data / "fedld-layout" / "COVID-FL", image_size=32)
    assert (len(loaded.train), len(loaded.test)) == (45, 11)
    made = partitions.make(loaded, "files", num_clients=6)
    assert made.names == ("actualmed", "cohen-papers", "figure1", "nih", "radiopaedia", "sirm")
    assert [len(i) for i in made.train] == [8, 8, 8, 8, 8, 5]


def test_covid_cxr_by_site(shared_data: Path):
    loaded = data.load("covid_cxr", shared_data / "covid-cxr")
    assert loaded.x.shape == (1224, 1, 64, 64)
    assert np.bincount(loaded.y).tolist() == [521, 524, 179]
    patients = np.load(shared_data / "covid-cxr" / "covid_cxr_64.npz")["patients"]
    assert not set(patients[loaded.train]) & set(patients[loaded.test])
    share = np.bincount(loaded.y[loaded.test]) / np.bincount(loaded.y)
    assert np.abs(share - 0.2).max() < 0.03
    made = partitions.make(loaded, partitions.default_kind(loaded), num_clients=6)
    assert made.names[3] == "nih"


@pytest.mark.parametrize(
    ("name", "below", "shape", "parts"),
    [
        ("retinamnist", "retinamnist", (1600, 3, 28, 28), (1080, 120, 400)),
        ("pneumoniamnist", "", (5856, 1, 28, 28), (4708, 524, 624)),
        ("mnist", "mnist", (16000, 1, 28, 28), (6000, 0, 10000)),
        ("cifar10", "cifar10-small", (1250, 3, 32, 32), (1000, 0, 250)),
    ],
)
def test_sets_with_parts_of_their_own(shared_data: Path, name, below, shape, parts):
    loaded = data.load(name, shared_data / below)
    assert loaded.x.shape == shape
    assert (len(loaded.train), len(loaded.val), len(loaded.test)) == parts
