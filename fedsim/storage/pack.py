"""Archives of runs and sweeps: one zip file, the same bytes for the same files.

An archive named ``.xz`` is a zip file compressed as a whole, which is a third as large where runs
have tables in common.
"""

from __future__ import annotations

import lzma
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast

from fedsim.core import files
from fedsim.core.errors import DataError
from fedsim.storage.checkpoint import FOLDER

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time that every entry has, the first that zip can express."""
SOLID = ".xz"
_DAMAGED = (zlib.error, lzma.LZMAError)
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 1 << 26}]
"""Of an archive that is compressed as a whole: repeated tables are found 64 MiB apart."""
_MEMORY = 1 << 27
"""Bytes of memory that unpacking such an archive may take."""
MOST_BYTES = 1 << 38
"""Bytes that an archive may unpack to: 256 GiB."""
MOST_FILES = 1_000_000
"""Files that an archive may hold."""


def pack(folder: Path, out: Path, *, checkpoints: bool = True) -> str:
    """Writes the files of a run or sweep to one archive.

    Lock files, unfinished files and links are left out.

    Args:
        folder: the run or sweep.
        out: the file to write; compressed as a whole if its name ends with .xz.
        checkpoints: whether those of the runs go in; without them rounds are verified from the
            start alone.

    Returns:
        The SHA-256 of the archive.

    Raises:
        StoreError: a file cannot be read, or the archive not be written.
    """
    whole = out.suffix == SOLID
    method = zipfile.ZIP_STORED if whole else zipfile.ZIP_DEFLATED
    with files.replacing(out) as unfinished, files.reading(folder):
        with (
            _written(unfinished, whole=whole) as file,
            zipfile.ZipFile(file, "w") as archive,
        ):
            for path in _files(folder, checkpoints=checkpoints):
                name = path.relative_to(folder).as_posix()
                entry = zipfile.ZipInfo(name, EPOCH)
                entry.compress_type = method
                entry.external_attr = (stat.S_IFREG | 0o644) << 16
                with path.open("rb") as source, archive.open(entry, "w") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        return files.sha256(unfinished)


def _written(path: Path, *, whole: bool) -> IO[bytes]:
    """The file of a new archive, into which a zip file is written."""
    if not whole:
        return path.open("wb")
    return cast("IO[bytes]", lzma.open(path, "wb", filters=_FILTERS))


def _files(folder: Path, *, checkpoints: bool) -> Iterator[Path]:
    """The files to pack, in an order that does not depend on the file system."""
    for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).parts):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        left_out = not checkpoints and FOLDER in parts[:-1]
        if path.is_file() and not path.is_symlink() and not hidden and not left_out:
            yield path


def unpack(packed: Path, folder: Path) -> None:
    """Writes the files of an archive below an empty folder, and nothing anywhere else.

    Raises:
        DataError: it is damaged, or an entry is no plain file with a relative path below the
            folder, is there twice, is encrypted, packed in another way, or too large for the disk.
        StoreError: a file cannot be written.
    """
    try:
        with _zip_file(packed) as file, zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            check(packed, entries)
            size, free = sum(e.file_size for e in entries), _free(folder)
            if size > free:
                raise DataError(f"{packed}: unpacks to {size:,} bytes, of which {free:,} are free")
            for entry in entries:
                with files.writing(folder / entry.filename) as target:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as source, target.open("xb") as written:
                        shutil.copyfileobj(source, written, 1 << 20)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, *_DAMAGED) as error:
        raise DataError(f"{packed}: damaged, or no archive of 'fedsim pack' ({error})") from error


@contextmanager
def _zip_file(packed: Path) -> Iterator[IO[bytes]]:
    """The zip file of an archive; one that is compressed as a whole is first unpacked to the disk.

    Read through the compression, each step back in the zip file would unpack it from its start.
    """
    with packed.open("rb") as file:
        if packed.suffix != SOLID:
            yield file
            return
        with tempfile.TemporaryFile() as unpacked:
            most = min(MOST_BYTES, _free(Path(tempfile.gettempdir())))
            stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
            while not stream.eof:
                data = file.read(1 << 16) if stream.needs_input else b""
                if stream.needs_input and not data:
                    raise EOFError("it has no end")
                unpacked.write(stream.decompress(data, 1 << 20))
                if unpacked.tell() > most:
                    raise DataError(f"{packed}: unpacks to more than {most:,} bytes")
            yield unpacked


def _free(folder: Path) -> int:
    """Bytes that are free where a folder is, or will be."""
    there = next(path for path in (folder, *folder.resolve().parents) if path.is_dir())
    return shutil.disk_usage(there).free


def check(archive: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Refuses an archive with an entry that could do harm by a DataError."""
    names = [entry.filename for entry in entries]
    if len(names) > MOST_FILES or sum(entry.file_size for entry in entries) > MOST_BYTES:
        raise DataError(f"{archive}: holds more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes")
    seen: set[str] = set()
    for entry in entries:
        path, mode = PurePosixPath(entry.filename), entry.external_attr >> 16
        inside = not path.is_absolute() and ".." not in path.parts and "\\" not in entry.filename
        plain = stat.S_IFMT(mode) in (0, stat.S_IFREG) and ":" not in entry.filename
        plain = plain and entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if not (inside and plain) or entry.flag_bits & 1 or entry.filename.casefold() in seen:
            raise DataError(
                f"{archive}: the entry {entry.filename!r} is no plain file below the archive's "
                "folder, is there twice, or is not packed as by 'fedsim pack'; nothing was unpacked"
            )
        seen.add(entry.filename.casefold())
