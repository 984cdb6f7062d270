"""Fixtures of the data tests, and LEAF's files as they need them."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packs and downloads of each test in a folder of its own."""
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing: the log would go to the test's output."""


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a web server on this machine that serves ``tmp_path``."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def write_users(folder: Path, name: str, users: Mapping[str, tuple[list[Any], list[Any]]]) -> Path:
    """One json file of LEAF's form, with wrong counts as in some of LEAF's own."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "num_samples": [len(y) + 79 for _, y in users.values()],
        "users": list(users),
        "user_data": {user: {"y": y, "x": x} for user, (x, y) in users.items()},
    }
    (folder / name).write_text(json.dumps(content))
    return folder / name
