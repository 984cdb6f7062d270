"""Executors are found by the name of their file or as ``module:function``, and checked first."""

from __future__ import annotations

import sys

import pytest

import fedsim
import fedsim.engine
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.engine import registry

pytestmark = pytest.mark.integration

SOURCE = '''
"""A stranger's executor: the serial one by another name, for at most two retries."""

from fedsim.core.errors import ConfigError
from fedsim.engine.serial import SerialExecutor


class BackwardsExecutor(SerialExecutor):
    @property
    def description(self):
        return "backwards"

    def run(self, tasks, *args):
        parts = [super(BackwardsExecutor, self).run([task], *args) for task in tasks[::-1]]
        return [update for part in parts[::-1] for update in part]


def make_executor(spec, engine, *, update_bytes, whole, session):
    return BackwardsExecutor(spec, engine)


def check_settings(engine):
    if engine.max_retries > 2:
        raise ConfigError(f"engine.max_retries {engine.max_retries}: at most 2 here")
'''
TABLES = ("rounds.csv", "clients.csv", "classes.csv", "model.safetensors")


def run(kind, out):
    config = RunConfig(
        algorithm="fedbn",
        data={"num_clients": 8},
        train={"rounds": 2, "sample_rate": 0.5},
        engine={"kind": kind, "max_retries": 1},
    )
    store = fedsim.run(config, out)
    return {name: (store.path / name).read_bytes() for name in TABLES}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The folder of a file ``backwards.py`` with an executor."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "backwards.py").write_text(SOURCE)
    yield folder
    for name in ("backwards", "fedsim.engine.backwards"):
        sys.modules.pop(name, None)
    vars(fedsim.engine).pop("backwards", None)


@pytest.mark.slow
@pytest.mark.integration
def test_an_executor_is_one_file_and_gives_the_same_bytes(file, tmp_path, monkeypatch):
    expected = run("serial", tmp_path / "serial")
    monkeypatch.syspath_prepend(file)
    assert run("backwards:make_executor", tmp_path / "module") == expected
    monkeypatch.setattr(fedsim.engine, "__path__", [*fedsim.engine.__path__, str(file)])
    assert {"backwards", "ray", "serial"} <= set(registry.names())
    assert run("backwards", tmp_path / "file") == expected


def test_an_executor_checks_settings_before_anything_starts(file, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(file)
    config = RunConfig(data={"name": "mnist"}, engine={"kind": "backwards:make_executor"})
    with pytest.raises(ConfigError, match=r"^engine\.max_retries 3: at most 2 here$"):
        fedsim.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("rayy", "--engine 'rayy': must be one of ray, .*serial, or module:function .*'ray'"),
        ("worker", "--engine 'worker': must be one of"),
        ("nowhere:make", "engine.kind: 'nowhere' cannot be imported"),
        ("fedsim.engine.serial:mak_executor", "has no function 'mak_executor' .*'make_executor'"),
    ],
)
def test_an_unknown_executor_is_refused_before_the_data_are_read(kind, said, tmp_path):
    config = RunConfig(data={"name": "mnist", "dir": str(tmp_path)}, engine={"kind": kind})
    with pytest.raises(ConfigError, match=said):
        fedsim.run(config, tmp_path / "run")


def test_the_built_in_executors_are_those_of_the_files():
    assert {"ray", "serial"} <= set(registry.names())
    for name in registry.names():
        assert callable(registry.load(name))
        registry.check(EngineConfig(kind=name))
