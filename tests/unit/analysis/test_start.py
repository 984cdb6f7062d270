"""The command's start: PyPI's other project ``fedsim`` in the same environment is recognised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fedsim.version import __version__
from tests.commands import clean_environment

ROOT = Path(__file__).resolve().parents[3]
START = """
import sys
sys.path.insert(0, {site!r})
sys.argv = ["fedsim", "--version"]
import runpy
runpy.run_path({start!r}, run_name="__main__")
"""


def started(site: Path) -> subprocess.CompletedProcess[str]:
    code = START.format(site=str(site), start=str(ROOT / "analysis" / "start.py"))
    command = [sys.executable, "-c", code]
    env = clean_environment()
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=env)


def test_the_other_package_ends_the_command_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "fedsim").mkdir()
    (tmp_path / "fedsim" / "__init__.py").write_text("x = 1\n")
    done = started(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        f"error: {tmp_path}/fedsim is of the other project fedsim of PyPI"
    )
    assert "'pip uninstall fedsim'" in done.stderr


def test_this_environment_is_quiet() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "analysis" / "start.py"), "--version"],
        capture_output=True, text=True, cwd=ROOT, check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fedsim {__version__}\n", "")


def test_the_name_is_not_that_of_the_other_project() -> None:
    import tomllib

    from fedsim.version import DISTRIBUTION

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION != "fedsim"
    assert project["scripts"] == {"fedsim": "fedsim_analysis.start:main"}
    extras = project["optional-dependencies"]
    own = [text for texts in extras.values() for text in texts if text.startswith("fedsim")]
    assert own == [f"{DISTRIBUTION}[datasets,models,privacy,track,tune]"]
