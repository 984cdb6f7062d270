"""Rules that are plain functions of the user's, and the one of the tutorial."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedsim
from fedsim import algorithms
from fedsim.core.errors import ConfigError, ContractError, FedsimError
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from tests.commands import clean_environment

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "own-rule.md"
RULES = """
from __future__ import annotations
import numpy as np


def mean(K, n): return n / n.sum()
def typed(gram: np.ndarray, num_samples: np.ndarray, scale: float = 2.0, *, power=1):
    return scale * num_samples**power / num_samples.sum()
def counted(gram, num_samples, *, state, ctx):
    state["calls"] = state.get("calls", 0) + 1
    return num_samples / num_samples.sum() * state["calls"] * (1 + ctx.round)
def one(gram): return gram
def untyped(gram, num_samples, *, mode=None): return num_samples
def matrix(gram, num_samples): return gram
def nothing(gram, num_samples): gram[:] = 0
def nan(gram, num_samples): return num_samples * np.nan
def words(gram, num_samples): return ["a"] * len(gram)
def fails(gram, num_samples): return 1 / 0
def keeps(gram, num_samples, state): state["name"] = "a"; return num_samples
"""


@pytest.fixture
def paths(monkeypatch):
    """Where Python looks for modules, as it is now when the test has ended."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


@pytest.fixture
def rules(tmp_path, monkeypatch, paths):
    """A file of rules in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("some_rules.py").write_text(RULES)
    yield "some_rules.py"
    sys.modules.pop("some_rules", None)


def fedexp_loop(updates, num_samples, eps):
    """FedExP's step (d,), Eq. 10 of the paper with shares p_k: vector by vector."""
    total, mean, squares = sum(num_samples), np.zeros(len(updates[0])), 0.0
    for update, n in zip(updates, num_samples, strict=True):
        mean = mean + n / total * update
        squares += n / total * float(np.sum(update * update))
    return max(1.0, squares / (2 * (float(np.sum(mean * mean)) + eps))) * mean


@pytest.mark.parametrize("spread", [0.01, 3.0, 100.0])
def test_fedexp_of_the_tutorial_is_that_of_a_loop(tmp_path, paths, spread):
    (text,) = re.findall(r'title="my_rules.py"\n(.*?)^```$', PAGE.read_text(), re.S | re.M)
    (tmp_path / "tutorial_rules.py").write_text(text)
    try:
        rng = np.random.default_rng(3)
        updates = rng.normal(size=40) + spread * rng.normal(size=(6, 40))
        n = [3, 1, 4, 1, 5, 9]
        step = fedsim.aggregate(updates, n, f"{tmp_path}/tutorial_rules.py:fedexp", eps=0.05)
        np.testing.assert_allclose(step, fedexp_loop(updates, n, 0.05), rtol=1e-9)
        mean = np.asarray(n) / sum(n) @ updates
        assert np.allclose(step, mean) == (spread == 0.01), "only near updates have FedAvg's step"
    finally:
        sys.modules.pop("tutorial_rules", None)


def test_hyperparameters_have_types_or_numbers_as_defaults(rules):
    updates, n = np.eye(3), [1, 2, 3]
    own = fedsim.aggregate(updates, n, f"{rules}:typed", power="2", scale=0.5)
    np.testing.assert_allclose(own, 0.5 * np.array([1, 4, 9]) / 6)
    np.testing.assert_allclose(fedsim.aggregate(updates, n, f"{rules}:mean"), np.array(n) / 6)
    assert set(algorithms.parameters(f"{rules}:typed")) == {"scale", "power"}
    with pytest.raises(ConfigError, match=r"unknown hyperparameter 'powr'.*'power'"):
        fedsim.aggregate(updates, n, f"{rules}:typed", powr=2)


def test_a_state_goes_from_round_to_round_and_into_checkpoints(rules):
    server = algorithms.load(f"{rules}:counted").server
    layout = Layout((Slot(name="w", shape=(2,), start=0, stop=2, role="param", head=False),))
    state = RuleState()
    for number in range(2):
        ctx = RoundContext(round=number, num_rounds=2, num_clients=1, lr=1.0, seed=0)
        update = ClientUpdate(client_id=0, num_samples=1, num_steps=1, delta=np.ones(2))
        done = server.step(RuleState.unflatten(state.flatten()), Cohort.of([update], layout), ctx)
        state = done.state
    assert done.step.tolist() == [4, 4], "second call, times the round"
    assert {key: int(value) for key, value in state.flatten().items()} == {"reduce.calls": 2}
    with pytest.raises(ContractError, match=r"keeps a state from round to round"):
        fedsim.aggregate(np.eye(2), [1, 1], f"{rules}:counted", round=1)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("one", r"some_rules\.py:12: a rule takes gram and num_samples first: def rule\("),
        ("untyped", r"some_rules\.py:13: a rule has a parameter 'mode=None', which needs a type"),
        ("matrix", r"some_rules\.py:14, in matrix: returned an array of shape \(2, 2\); needed"),
        ("nothing", r"some_rules\.py:15, in nothing: returned None; .* coefficients \(2,\)"),
        ("nan", r"some_rules\.py:16, in nan: returned NaN or infinity"),
        ("words", r"some_rules\.py:17, in words: returned list \(could not convert"),
        ("fails", r"ZeroDivisionError: division by zero \(some_rules\.py:18, in fails\)"),
        ("keeps", r"some_rules\.py:19, in keeps: state\['name'\] is str; a state holds arrays"),
        ("meen", r"some_rules has no function 'meen' \(did you mean 'mean'\?\)"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(rules, rule, message):
    with pytest.raises(FedsimError, match=message) as raised:
        fedsim.aggregate(np.eye(2), [1, 1], f"{rules}:{rule}")
    assert "\n" not in str(raised.value)


def test_two_files_of_one_name_are_not_mixed_up(rules):
    algorithms.parameters(f"{rules}:mean")
    Path("other").mkdir()
    Path("other/some_rules.py").write_text(RULES)
    with pytest.raises(ConfigError, match=r"already has another module 'some_rules' .*; rename"):
        algorithms.parameters("other/some_rules.py:mean")


def test_rules_stand_in_chains_with_their_section(rules):
    chain = f"{rules}:typed,fedadam"
    options = {f"{rules}:typed": {"power": 2}, f"{rules}:mean": {}}
    config = fedsim.RunConfig(algorithm="fedprox", server=chain, **options)
    assert config.hyperparameters[f"{rules}:typed"] == {"scale": 2.0, "power": 2}
    composed = algorithms.compose("fedprox", config.hyperparameters, server=chain)
    assert len(composed.server.optimizers) == 1


@pytest.mark.ray
@pytest.mark.slow
def test_a_method_in_a_file_elsewhere_runs_on_ray(tmp_path):
    page = (PAGE.parent / "own-method.md").read_text()
    (text,) = re.findall(r'title="my_method.py"\n(.*?)^```$', page, re.S | re.M)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a_method.py").write_text(text)
    (tmp_path / "own" / "a_rule.py").write_text(RULES)
    names = ["-a", "own/a_method.py:build", "--server", "own/a_rule.py:mean"]
    for engine in ("ray", "serial"):
        done = subprocess.run(
            [sys.executable, "-m", "fedsim", "run", *names, "--engine", engine, "--clients", "2",
             "--sample-rate", "1", "--rounds", "1", "--out", engine],
            cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    rounds = [(tmp_path / engine / "rounds.csv").read_bytes() for engine in ("ray", "serial")]
    assert rounds[0] == rounds[1]
