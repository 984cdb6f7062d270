"""What is refused before Ray starts, and the secret that it starts with."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import ray
from ray._private.node import Node
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
@pytest.mark.skipif(os.name == "nt", reason="neither forks nor such sockets")
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
    environment = clean_environment() | more
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 7, done.stderr
    assert message in done.stdout
    assert not (tmp_path / "run").exists()


class FailingNode:
    """Ray's node whose processes do not come up: ``fails`` times, or before it starts any."""

    def __init__(self, monkeypatch, folder, fails, started=True):
        self.begun, self.ended, self.agents, self.left, self.found = [], [], [], fails, []
        self.folder, self.started = folder, started
        monkeypatch.setattr(Node, "__init__", lambda node: self.begin(node))
        monkeypatch.setattr(Node, "kill_all_processes", lambda node, **_: self.end(node))
        monkeypatch.setattr(Node, "get_session_dir_path", lambda node: node.folder)
        monkeypatch.setattr(ray, "init", lambda **_: Node())

    def begin(self, node):
        node.all_processes = {}
        self.found.append([path.name for path in self.folder.iterdir()])
        self.begun.append(node)
        if self.started:
            node.all_processes = {"raylet": [SimpleNamespace(process=self.raylet())]}
            node.folder = self.folder / f"session_{len(self.begun)}"
            (node.folder / "logs").mkdir(parents=True)
        if len(self.begun) <= self.left:
            raise Exception("The current node timed out\nduring startup. This could happen")

    def raylet(self):
        """A process with an agent, which outlives it."""
        command = ["sh", "-c", "sleep 1000 >/dev/null & echo; wait"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=clean_environment())
        process.stdout.readline()
        self.agents += psutil.Process(process.pid).children()
        return process

    def end(self, node):
        self.ended.append(node)
        for info in node.all_processes["raylet"]:
            info.process.kill()
            info.process.communicate()


@pytest.mark.slow
def test_ray_that_starts_slowly_is_started_again(monkeypatch, tmp_path, caplog):
    caplog.set_level("INFO", "fedsim")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a secret")
    nodes = FailingNode(monkeypatch, tmp_path, fails=2)
    assert connect(EngineConfig()) is ray.shutdown
    assert nodes.ended == nodes.begun[:2], "the processes of the failed starts"
    assert nodes.found == [[], [], []], "and their folders"
    assert [agent.is_running() for agent in nodes.agents] == [False, False, True]
    nodes.end(nodes.begun[2])
    nodes.agents[2].kill()
    told = "Ray did not start (The current node timed out during startup. This could happen)"
    assert caplog.messages == [f"{told}; try {n} of 3" for n in (2, 3)]


@pytest.mark.slow
def test_ray_that_never_starts_ends_the_run_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a secret")
    nodes = FailingNode(monkeypatch, tmp_path, fails=9)
    with pytest.raises(FedsimError, match=r"^Ray did not start on this machine, 3 times") as caught:
        connect(EngineConfig(address="local"))
    assert (caught.value.exit_status, "\n" in str(caught.value)) == (1, False)
    assert "--engine serial needs no Ray" in str(caught.value)
    assert nodes.ended == nodes.begun
    assert not any(agent.is_running() for agent in nodes.agents)
    assert [path.name for path in tmp_path.iterdir()] == ["session_3"], "the logs that it names"


def test_what_fails_before_any_process_is_not_tried_again(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a secret")
    nodes = FailingNode(monkeypatch, tmp_path, fails=9, started=False)
    with pytest.raises(Exception, match=r"^The current node timed out"):
        connect(EngineConfig())
    assert (len(nodes.begun), nodes.ended) == (1, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raised", "named"),
    [
        (RuntimeEnvSetupError("Failed to upload working_dir"), ConfigError),
        (SystemExit(15), Interrupted),
    ],
)
def test_what_fails_once_the_processes_are_up_is_not_tried_again(
    raised, named, monkeypatch, tmp_path
):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a secret")
    nodes = FailingNode(monkeypatch, tmp_path, fails=0)

    def init(**_):
        Node()
        raise raised

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(named) as caught:
        connect(EngineConfig())
    if named is ConfigError:
        assert str(caught.value) == f"Ray cannot start ({one_line(raised)})"
    assert nodes.ended == nodes.begun
    assert [len(nodes.begun), *(agent.is_running() for agent in nodes.agents)] == [1, False]
