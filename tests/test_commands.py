"""What the processes inherit that tests start: nothing that another test has left behind."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import clean_environment, temporary_sandbox

TESTS = Path(__file__).parent
STARTERS = {"run", "Popen", "call", "check_call", "check_output"}
NO_PYTHON = ("'ps'", "*alone", "browser", "'bash'", "program, LAUNCH")
"""In the calls that start something else: ps, unshare, a browser, a shell script, shellcheck."""


@pytest.fixture
def _a_ray_before(monkeypatch):
    """The variables that a Ray leaves in the process in which it was started, and others."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "RAY_ADDRESS", "RAY_TMPDIR", "FEDSIM_CHAOS"):
        monkeypatch.setenv(name, "another's")
    monkeypatch.setenv("FEDSIM_CACHE", "the user's")


@pytest.mark.usefixtures("_a_ray_before")
def test_a_child_inherits_nothing_of_a_ray_that_was_started_before():
    code = "import os; print(sorted(k for k, v in os.environ.items() if v.endswith(chr(39) + 's')))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment(), capture_output=True, text=True
    )
    assert done.stdout == "['FEDSIM_CACHE']\n"
    added = clean_environment(RAY_ADDRESS="given")
    assert added["RAY_ADDRESS"] == "given"
    with temporary_sandbox() as sandbox:
        rays = {k: v for k, v in sandbox.environment.items() if k.startswith("RAY_")}
        assert rays == {"RAY_TMPDIR": str(sandbox.folder / "ray")}


@pytest.mark.parametrize(
    "path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS))
)
def test_every_python_that_a_test_starts_is_given_its_environment(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        called = ast.unparse(node.func)
        if called.partition(".")[0] != "subprocess" or node.func.attr not in STARTERS:
            continue
        given = any(k.arg in ("env", None) for k in node.keywords)
        if not given and not any(name in ast.unparse(node) for name in NO_PYTHON):
            pytest.fail(f"{path}:{node.lineno}: pass env=clean_environment() of tests/commands.py")
