"""What is installed, and the commands that fedsim takes from its analysis package."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from click.testing import CliRunner

from analysis.cli import main as analysis_main
from fedsim import algorithms
from fedsim.cli import main
from fedsim.cli.report import COMMANDS, descriptions
from tests.commands import clean_environment

ROOT = Path(__file__).resolve().parents[2]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_package_is_installed() -> None:
    for package, folder in (("fedsim", ROOT / "fedsim"), ("fedsim_analysis", ROOT / "analysis")):
        folders = {path.parent.relative_to(folder) for path in folder.rglob("*.py")}
        found = sorted(".".join((package, *path.parts)) for path in folders)
        assert found == sorted(p for p in SETUP["packages"] if p.partition(".")[0] == package)
    assert SETUP["package-dir"] == {"fedsim_analysis": "analysis"}


def test_every_file_of_data_is_installed() -> None:
    for package, folder in (("fedsim", ROOT / "fedsim"), ("fedsim_analysis", ROOT / "analysis")):
        patterns = SETUP["package-data"][package]
        installed = {path for pattern in patterns for path in folder.glob(pattern)}
        files = {path for path in folder.rglob("*.*") if path.suffix not in (".py", ".pyc")}
        assert files == installed


def test_fedsim_has_all_commands_of_analysis_and_its_words() -> None:
    known = {command.name: command for command in COMMANDS}
    assert known.keys() == analysis_main.commands.keys()
    for name, command in known.items():
        own = analysis_main.commands[name].help
        assert own.partition("\n")[0] == command.help


def test_help_lists_the_commands_without_importing_them() -> None:
    code = (
        "import sys; from fedsim.cli import main; main(['--help'], standalone_mode=False); "
        "sys.exit(any(m in sys.modules for m in ('pandas', 'matplotlib', 'torch', 'scipy')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "\n  report " in done.stdout


def test_a_command_has_its_own_help_and_refusals(tmp_path: Path) -> None:
    text = CliRunner().invoke(main, ["table", "--help"])
    assert text.output.startswith("Usage: main table [OPTIONS] [DIR]...")
    assert "--baseline METHOD" in text.output
    absent = CliRunner().invoke(main, ["table", str(tmp_path)])
    assert absent.exit_code == 2
    assert absent.stderr == f"error: {tmp_path}: no run directory (a folder with rounds.csv) here\n"


def test_the_report_says_what_methods_and_settings_are() -> None:
    found = descriptions()
    assert found["fedprox.mu"] == "weight of the proximal term, >= 0."
    assert found["synthetic.beta"].startswith("standard deviation of the means")
    assert set(algorithms.names()) <= found.keys()
    assert algorithms.describe("fedprox") == f"FedProx: {found['fedprox']}"
    assert {"dataset", "alpha", "train.lr", "margin"} <= found.keys()
