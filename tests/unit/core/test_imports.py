"""What a command imports, and what it does without: imports are most of the time of a short one."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedsim import algorithms
from fedsim.algorithms.catalogue import METHODS
from fedsim.core.errors import ConfigError
from tests.commands import clean_environment

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {"torch", "torchvision", "ray", "pandas", "scipy", "sklearn", "matplotlib"}


def imported(*args: str, when: str = "") -> set[str]:
    """The modules that a process has imported at the end of ``fedsim ARGS``, or at ``when``."""
    code = (
        "import json, sys\nfrom fedsim.cli import main\n"
        "def show(*_): print('imported', json.dumps(sorted(sys.modules)))\n"
        f"{when or 'import atexit; atexit.register(show)'}\n"
        f"main({list(args)})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("imported ")]
    assert lines, done.stderr
    return set(json.loads(lines[0].removeprefix("imported ")))


@pytest.mark.parametrize(
    ("args", "more"),
    [
        (["--help"], {"pydantic", "yaml"}),
        (["run", "--help"], set()),
        *((["list", kind], set()) for kind in ("datasets", "models", "presets")),
        (["run", "--alpha", "-1"], set()),
        (["runs", "no_such_folder"], {"pydantic"}),
    ],
)
def test_nothing_heavy_is_imported(args: list[str], more: set[str]) -> None:
    assert not imported(*args) & (HEAVY | more)


FIRST_ROUND = """
import fedsim.storage.run_dir as stored
append = stored.RunWriter.append
def first(self, table, rows):
    append(self, table, rows)
    if table == "rounds":
        show()
stored.RunWriter.append = first
"""


@pytest.mark.slow
@pytest.mark.integration
def test_the_first_round_of_the_serial_engine_imports_little(tmp_path: Path) -> None:
    args = ["run", "--engine", "serial", "--rounds", "1", "--out", str(tmp_path / "run")]
    found = imported(*args, when=FIRST_ROUND)
    unused = {"torch._dynamo", "torch._inductor", "torch.onnx", "triton", "sympy"}
    assert not found & (HEAVY - {"torch"} | unused)


@pytest.mark.slow
@pytest.mark.integration
def test_nothing_compiles_at_the_end_of_a_serial_run(tmp_path: Path) -> None:
    args = ["run", "--engine", "serial", "--rounds", "1", "--clients", "5", "--out"]
    assert not imported(*args, str(tmp_path / "run")) & {"torch._inductor", "torch._dynamo"}


def test_docstrings_are_read_without_an_import() -> None:
    import fedsim.algorithms.fedprox as module

    assert METHODS.docstrings("fedprox") == (inspect.getdoc(module), inspect.getdoc(module.build))
    assert algorithms.describe("fedprox") == module.__doc__.splitlines()[0]


def test_a_file_beside_the_methods_is_one_only_if_it_defines_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {
        "fedmine": "from nowhere import nothing\n\ndef build(rate: float = 1.0): ...\n",
        "_helpers": "raise SystemExit('not imported to be found')\n",
        "base2": "class Base:\n    def build(self): ...\n",
        "drafts": '"""As in::\n\n    def build(): ...\n"""\nbuild = None\n',
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    before = algorithms.names()
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    assert set(algorithms.names()) - set(before) == {"fedmine"}
    with pytest.raises(ConfigError, match="unknown algorithm 'base2'"):
        algorithms.load("base2")
