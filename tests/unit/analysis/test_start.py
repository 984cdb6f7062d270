"""The command's start: PyPI's other project ``fedsim`` in the same environment is recognised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from analysis.start import installed
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


def packages(site: Path, *names: str, brought: str = "fedsim\n", init: str = "x = 1\n") -> Path:
    """A folder of installed packages with a package ``fedsim``."""
    (site / "fedsim").mkdir(parents=True)
    (site / "fedsim" / "__init__.py").write_text(init)
    for name in names:
        (site / name).mkdir()
        (site / name / "top_level.txt").write_text(brought)
    return site


def started(site: Path) -> subprocess.CompletedProcess[str]:
    code = START.format(site=str(site), start=str(ROOT / "analysis" / "start.py"))
    command = [sys.executable, "-c", code]
    env = clean_environment()
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=env)


def test_the_other_package_ends_the_command_with_one_line(tmp_path: Path) -> None:
    done = started(packages(tmp_path / "site", "fedsim-0.9.0.dist-info"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {tmp_path}/site/fedsim is of the other project fedsim ")
    assert "fedsim 0.9.0 of PyPI" in done.stderr
    assert "'pip uninstall fedsim'" in done.stderr


def test_beside_this_one_it_is_told_in_one_line(tmp_path: Path) -> None:
    site = packages(tmp_path / "site", "fedsim-0.9.0.dist-info")
    (site / "fedsim" / "__init__.py").unlink()
    (site / "fedsim").rmdir()
    (site / "fedsim").symlink_to(ROOT / "fedsim")
    done = started(site)
    assert (done.returncode, done.stdout) == (0, f"fedsim {__version__}\n")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("warning: the other project fedsim 0.9.0 of PyPI is installed")


@pytest.mark.parametrize(
    ("name", "brought", "version"),
    [
        ("fedsim-0.9.0.dist-info", "fedsim\nfedsim_cli\n", "0.9.0"),
        ("fedsim-0.9.0-py3.11.egg-info", "fedsim\n", "0.9.0"),
        ("fedsim-0.1.0.dist-info", "fedsim\nfedsim_analysis\n", None),  # this one, before its name
        ("fedsim_ray-0.1.0.dist-info", "fedsim\nfedsim_analysis\n", None),
        ("fedsim_ray.egg-info", "fedsim\nfedsim_analysis\n", None),
        ("fedsim.egg-info", "fedsim\nfedsim_analysis\n", None),
    ],
)
def test_which_project_was_installed(
    tmp_path: Path, name: str, brought: str, version: str | None
) -> None:
    assert installed(packages(tmp_path / "site", name, brought=brought)) == version


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
