"""What is refused before Ray starts, and the secret that it starts with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import ray
from ray.exceptions import RuntimeEnvSetupError

import fedsim
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, FedsimError, Interrupted, one_line
from fedsim.engine.ray import cluster as clusters
from fedsim.engine.ray.cluster import connect
from tests.commands import clean_environment


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nothing_answers(address):
    with pytest.raises(ConfigError, match=rf"--address {address}: nothing answers there"):
        connect(EngineConfig(address=address))
    assert not ray.is_initialized()


def test_a_working_dir_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"--working-dir .*nowhere: there is no such folder"):
        connect(EngineConfig(working_dir=str(tmp_path / "nowhere")))


def test_serial_on_a_gpu_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"--gpus-per-client 1: torch finds no GPU here"):
        fedsim.run(RunConfig(engine={"kind": "serial", "gpus_per_client": 1}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "made"),
    [({}, True), ({"RAY_AUTH_MODE": "token"}, True), ({"RAY_AUTH_TOKEN": "a"}, False),
     ({"RAY_AUTH_TOKEN_PATH": "b"}, False)],
)  # fmt: skip
def test_a_secret_is_made_where_the_user_has_none(given, made, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert set(clusters._auth_token()) == ({"RAY_AUTH_TOKEN"} if made else set())
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").touch()
    assert clusters._auth_token() == {}


def test_a_user_without_a_home_has_no_secret_of_their_own(monkeypatch):
    for name in ("HOME", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_007)
    assert set(clusters._auth_token()) == {"RAY_AUTH_TOKEN"}


FORK = """
import os, sys, fedsim
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.engine.ray.cluster import connect

connect(EngineConfig(actors=1))()
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    fedsim.run(fedsim.RunConfig(engine={"actors": 1}), sys.argv[1])
except ConfigError as error:
    print(error)
    os._exit(7)
"""


LONG = """
import sys
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.engine.ray.cluster import connect

try:
    connect(EngineConfig())
except ConfigError as error:
    print(error)
    sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "folder", "message"),
    [
        (FORK, "", "this process was forked from one that had connected to Ray"),
        (LONG, "a" * 80, "; set RAY_TMPDIR to a folder with a shorter name, such as /tmp"),
    ],
)
def test_where_ray_cannot_run_one_line_says_so(script, folder, message, tmp_path):
    more = {"RAY_TMPDIR": str(tmp_path / folder)} if folder else {}
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    done = subprocess.run(
        command,
        env=clean_environment() | more,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert message in done.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (Exception("The node timed out\nduring startup"), FedsimError, "timed out during startup"),
        (RuntimeEnvSetupError("Failed to upload working_dir"), ConfigError, "Failed to upload"),
        (SystemExit(15), Interrupted, "15"),
    ],
)
def test_a_start_that_fails_is_one_line(raised, error, message, monkeypatch):
    def init(**_):
        raise raised

    monkeypatch.setenv("RAY_AUTH_TOKEN", "a secret")
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(error, match=message) as caught:
        connect(EngineConfig())
    if error is ConfigError:
        text = f"Ray cannot start ({one_line(raised)}); --engine serial needs no Ray"
        assert str(caught.value) == text
