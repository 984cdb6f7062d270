"""Odd surroundings: closed pipes, other locales, no home, no place to write; in processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import clean_environment

pytestmark = pytest.mark.integration

LIST = ("list", "algorithms")
PARTITION = ("partition", "--clients", "4")


def started(
    tmp_path: Path, *args: str, without: tuple[str, ...] = (), **environment: str
) -> subprocess.Popen[bytes]:
    """``fedsim ARGS`` in a folder of its own."""
    known = clean_environment(PYTHONDONTWRITEBYTECODE="1", TMPDIR=str(tmp_path))
    known = {k: v for k, v in known.items() if k not in without}
    return subprocess.Popen(
        [sys.executable, "-m", "fedsim", *args],
        cwd=tmp_path,
        env=known | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=300)
    assert b"Traceback" not in err, err
    return process.returncode, out, err


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"NO_COLOR": "1", "COLUMNS": "1", "TERM": "dumb"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "HOME": "/nonexistent"},
    ],
    ids=str,
)
def test_a_list_is_shown_whatever_the_terminal(environment: dict[str, str], tmp_path: Path) -> None:
    status, out, err = ended(started(tmp_path, *LIST, **environment))
    assert (status, err) == (0, b"")
    assert b"fedavg" in out
    assert list(tmp_path.iterdir()) == []


def test_names_in_other_scripts_in_a_plain_locale(tmp_path: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    args = ("partition", "-d", "\u533b\u9662", "--clients", "4")
    status, _, err = ended(started(tmp_path, *args, **plain))
    assert status == 2
    assert err.startswith(b"error: ")
    assert err.count(b"\n") == 1


@pytest.mark.parametrize(
    "args", [LIST, ("--help",), pytest.param(PARTITION, marks=pytest.mark.slow)], ids=" ".join
)
def test_a_reader_that_goes_away(args: tuple[str, ...], tmp_path: Path) -> None:
    process = started(tmp_path, *args, PYTHONUNBUFFERED="1")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=300)
    assert err == b""
    assert process.returncode in (1, 128 + signal.SIGPIPE, -signal.SIGPIPE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        run = ("run", "--engine", "serial", "--rounds", "1", "--clients", "4")
        status, _, err = ended(started(tmp_path, *run))
    finally:
        tmp_path.chmod(0o700)
    assert status == 1
    assert err.count(b"\n") == 1
