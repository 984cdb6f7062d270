"""Archives: the same bytes for the same files, and nothing is unpacked outside its folder."""

import lzma
import stat
import zipfile

import numpy as np
import pytest

from fedsim.core.errors import DataError
from fedsim.storage import pack as archives
from fedsim.storage.pack import pack, unpack

FILES = {
    "rounds.csv": b"round\n1\n",
    "sub/model.safetensors": bytes(range(256)) * 40,
    "checkpoints/round-000001.json": b"{}",
}


@pytest.fixture
def run(tmp_path):
    for name, data in FILES.items():
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / "link.csv").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "run"


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}


@pytest.mark.parametrize("name", ["run.zip", "run.xz"])
def test_there_and_back(run, tmp_path, name):
    pack(run, tmp_path / name)
    unpack(tmp_path / name, tmp_path / "new")
    assert content(tmp_path / "new") == FILES


def test_the_same_files_give_the_same_bytes(run, tmp_path):
    digest = pack(run, tmp_path / "a.zip")
    (run / "rounds.csv").touch()
    (run / "rounds.csv").chmod(0o600)
    assert pack(run, tmp_path / "b.zip") == digest
    (run / "rounds.csv").write_bytes(b"round\n2\n")
    assert pack(run, tmp_path / "c.zip") != digest


def test_tables_that_runs_share_are_stored_once(tmp_path):
    noise = np.random.default_rng(0).bytes(50_000)
    for number in range(8):
        (tmp_path / "sweep" / str(number)).mkdir(parents=True)
        (tmp_path / "sweep" / str(number) / "split.csv").write_bytes(noise)
    for name, most in (("a.xz", 1.1), ("b.zip", 8.1)):
        digest = pack(tmp_path / "sweep", tmp_path / name)
        assert (most - 0.2) * len(noise) < (tmp_path / name).stat().st_size < most * len(noise)
        assert pack(tmp_path / "sweep", tmp_path / f"again-{name}") == digest


def test_without_checkpoints(run, tmp_path):
    pack(run, tmp_path / "run.zip", checkpoints=False)
    unpack(tmp_path / "run.zip", tmp_path / "new")
    assert content(tmp_path / "new").keys() == FILES.keys() - {"checkpoints/round-000001.json"}


def entry(name, mode=stat.S_IFREG | 0o644):
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    return made


def by(method):
    made = entry("packed.csv")
    made.compress_type = method
    return made


@pytest.mark.parametrize(
    "entries",
    [
        [by(zipfile.ZIP_LZMA)],
        [entry("../outside.csv")],
        [entry("/absolute.csv")],
        [entry("a/../../outside.csv")],
        [entry("a\\..\\outside.csv")],
        [entry("C:outside.csv")],
        [entry("link", stat.S_IFLNK | 0o777)],
        [entry("pipe", stat.S_IFIFO | 0o644)],
        [entry("a.csv"), entry("A.CSV")],
    ],
    ids=lambda entries: entries[-1].filename,
)
def test_an_entry_that_could_do_harm(entries, tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("good.csv", "fine")
        for each in entries:
            archive.writestr(each, "x")
    with pytest.raises(DataError, match=r"bad\.zip: the entry .* is no plain file below"):
        unpack(tmp_path / "bad.zip", tmp_path / "in" / "new")
    assert not (tmp_path / "in").exists()
    assert not list(tmp_path.glob("*outside*"))


def test_an_archive_that_is_too_large(run, tmp_path, monkeypatch):
    pack(run, tmp_path / "run.zip")
    monkeypatch.setattr(archives, "MOST_BYTES", 10_000)
    with pytest.raises(DataError, match="holds more than"):
        unpack(tmp_path / "run.zip", tmp_path / "new")


def test_a_whole_archive_that_is_too_large(tmp_path, monkeypatch):
    """However few bytes it has, no more are unpacked than may be."""
    (tmp_path / "run.xz").write_bytes(lzma.compress(bytes(1 << 23)))
    monkeypatch.setattr(archives, "MOST_BYTES", 1 << 22)
    with pytest.raises(DataError, match=r"run\.xz: unpacks to more than 4,194,304 bytes"):
        unpack(tmp_path / "run.xz", tmp_path / "new")


def test_a_whole_archive_that_takes_too_much_memory(run, tmp_path, monkeypatch):
    pack(run, tmp_path / "run.xz")
    monkeypatch.setattr(archives, "_MEMORY", 1 << 26)
    with pytest.raises(DataError, match=r"damaged, .*\(Memory usage limit exceeded\)"):
        unpack(tmp_path / "run.xz", tmp_path / "new")


def test_a_size_that_is_not_what_the_archive_says(run, tmp_path):
    """The bytes behind an entry may be more than it says; no more are written."""
    pack(run, tmp_path / "run.zip")
    data = bytearray((tmp_path / "run.zip").read_bytes())
    directory = data.rindex(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = (10).to_bytes(4, "little")
    (tmp_path / "run.zip").write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        unpack(tmp_path / "run.zip", tmp_path / "new")


@pytest.mark.parametrize("data", [b"", b"no zip file", b"PK\x03\x04" + bytes(60)])
@pytest.mark.parametrize("name", ["run.zip", "run.xz"])
def test_no_archive(data, name, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match="damaged, or no archive of 'fedsim pack'"):
        unpack(tmp_path / name, tmp_path / "new")


@pytest.mark.parametrize("name", ["run.zip", "run.xz"])
def test_a_damaged_archive(run, tmp_path, name):
    pack(run, tmp_path / name)
    data = bytearray((tmp_path / name).read_bytes())
    data[60] ^= 255
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        unpack(tmp_path / name, tmp_path / "new")


def test_an_archive_that_is_larger_than_the_disk(run, tmp_path, monkeypatch):
    pack(run, tmp_path / "run.zip")
    monkeypatch.setattr(archives, "_free", lambda folder: 100)
    with pytest.raises(DataError, match="unpacks to 10,250 bytes, of which 100 are free"):
        unpack(tmp_path / "run.zip", tmp_path / "new")
    assert not (tmp_path / "new").exists()
