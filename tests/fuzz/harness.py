"""Tries bad input: each try must end in one line with the right exit status, and change nothing."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from click.testing import CliRunner, Result

from fedsim.cli import main
from tests.commands import clean_environment

LONGEST = 1500
"""Characters of a line that a person still reads."""

LARGEST = 2**28
"""Bytes of a file that is read to see whether it was changed."""
LIMIT = 120
"""Seconds after which a command counts as one that never ends, on the slowest machine."""
BESIDE = ("note: ", "left out ", "run/checkpoints/")
"""What lines begin with that may stand beside the error."""
CACHES = (
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR"),
    "FEDSIM_CACHE",
)
"""Variables that say where libraries keep their caches."""

Content = str | bytes | Callable[[Path], object]
"""Of a file: text, bytes, or what makes it."""


@dataclass(frozen=True)
class Case:
    """One bad input.

    Args:
        name: of the test.
        args: after ``fedsim``, split at spaces where it is one text.
        says: what the line on stderr must contain.
        status: the exit status, or those that are right: with 0, chance may have made the input
            a valid one.
        files: written to the working folder before, by path.
        stays: False where a failed run leaves its directory.
    """

    name: str
    args: str | Sequence[str]
    says: tuple[str, ...] | str = ()
    status: int | tuple[int, ...] = 2
    files: Mapping[str, Content] = field(default_factory=dict)
    stays: bool = True

    @property
    def arguments(self) -> list[str]:
        return self.args.split() if isinstance(self.args, str) else list(self.args)


def contents(folder: Path) -> dict[str, str]:
    """Every path below a folder, with the digest of its bytes."""
    digests = {}
    for path in sorted(p for p in folder.rglob("*") if p.name != ".lock"):
        mode = path.lstat()
        if path.is_symlink():
            value = os.readlink(path)
        elif path.is_file() and mode.st_size <= LARGEST:
            value = hashlib.sha256(path.read_bytes()).hexdigest()
        else:  # a folder, a pipe, or what nobody reads
            value = f"{stat.filemode(mode.st_mode)} {mode.st_size if path.is_file() else ''}"
        digests[path.relative_to(folder).as_posix()] = value
    return digests


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """An empty working folder, home and temporary files beside it; own modules are forgotten."""
    for name in ("home", "tmp", "work"):
        (folder / name).mkdir(parents=True)
    environment = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    caches = folder.parent / "caches"  # of the libraries, which may be filled
    environment |= dict.fromkeys(CACHES, str(caches))
    before, path, modules = Path.cwd(), list(sys.path), set(sys.modules)
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(tempfile, "tempdir", None),
        mock.patch.object(sys, "dont_write_bytecode", True),
    ):
        os.chdir(folder / "work")
        try:
            yield folder / "work"
        finally:
            os.chdir(before)
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                origin = getattr(sys.modules[name], "__file__", None) or ""
                if origin.startswith(str(folder)):
                    del sys.modules[name]


@contextmanager
def answering(what: str) -> Iterator[None]:
    """Ends a command that waits for what never comes."""

    def late(*_: object) -> None:
        raise KeyboardInterrupt(f"no answer: fedsim {what[:300]}")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fedsim(*args: str) -> Result:
    """The command in this process; what it warns of would stand on stderr as well."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)  # as Python does outside of tests
        warnings.filterwarnings("ignore", module=r"PIL\.")  # as fedsim.data.images does
        with answering(" ".join(args)):
            result = CliRunner().invoke(main, args)
    report = [f"{w.category.__name__}: {w.message}" for w in caught]
    assert not report, f"fedsim {' '.join(args)}: a warning of Python: {report[0]}"
    return result


def parts(count: int) -> list[Any]:
    """Numbers of the parts ``cases[number::count]``: the first with the slow tests, all nightly.

    Take a count that has no divisor in common with the period in which the cases repeat.
    """
    others = (pytest.param(number, marks=pytest.mark.nightly) for number in range(1, count))
    return [pytest.param(0, marks=pytest.mark.slow), *others]


def tried(cases: Iterable[Case], folder: Path) -> None:
    """Tries all cases and tells all that failed."""
    failed = []
    for number, case in enumerate(cases):
        try:
            attempt(case, folder / str(number))
        except AssertionError as error:
            failed.append(f"{case.name}: {error}")
    assert not failed, "\n".join(failed)


def attempt(case: Case, folder: Path) -> Result:
    """Tries a bad input in a new folder and checks what must hold."""
    with workplace(folder) as work:
        for name, content in case.files.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if callable(content):
                content(path)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        before = contents(folder)
        result = fedsim(*case.arguments)
        check(case, result)
        after = contents(folder)
        if result.exit_code == 0:
            return result
        if case.stays:
            assert after == before, changes(before, after)
        else:
            kept = {path: after.get(path) for path in before}
            assert kept == before, changes(before, kept)
        assert not psutil.Process().children(recursive=True), "a process is left"
    return result


def check(case: Case, result: Result) -> None:
    """One line on stderr that says what it must, and the exit status."""
    said = f"fedsim {' '.join(case.arguments)}\n{result.output[-3000:]}"
    error = result.exception
    assert error is None or isinstance(error, SystemExit), f"{said}\n{error!r}"
    allowed = (case.status,) if isinstance(case.status, int) else case.status
    if result.exit_code == 0 and 0 in allowed:
        return
    assert result.exit_code in allowed, f"exit status {result.exit_code}: {said}"
    lines = [line for line in result.stderr.splitlines() if not line.startswith(BESIDE)]
    assert len(lines) == 1, said
    assert lines[0].startswith("error: "), said
    assert len(lines[0]) < LONGEST, said[:3000]
    assert "Traceback" not in result.output, said
    assert not lines[0].startswith("error: unexpected "), said
    assert not re.search(r"[\x00-\x08\x0e-\x1f]", lines[0]), said
    for part in (case.says,) if isinstance(case.says, str) else case.says:
        assert part in lines[0], f"{part!r} is missing: {said}"


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """Which paths differ."""
    paths = sorted(p for p in {*before, *after} if before.get(p) != after.get(p))
    return f"changed, new or lost: {', '.join(map(str, paths))}"


def started(
    tmp_path: Path, *args: str, without: tuple[str, ...] = (), **environment: str
) -> subprocess.Popen[bytes]:
    """``fedsim ARGS`` in a folder of its own."""
    expected = clean_environment(PYTHONDONTWRITEBYTECODE="1", TMPDIR=str(tmp_path))
    expected = {k: v for k, v in expected.items() if k not in without}
    return subprocess.Popen(
        [sys.executable, "-m", "fedsim", *args],
        cwd=tmp_path,
        env=expected | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=300)
    assert b"Traceback" not in err, err
    return process.returncode, out, err
