"""What users import: the public names, aggregate, types; and what is installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedsim
from analysis.cli import main as analysis_main
from fedsim import algorithms
from fedsim.cli.report import COMMANDS, descriptions
from fedsim.core.errors import ConfigError, ContractError, FedsimError
from tests.commands import clean_environment

ROOT = Path(__file__).resolve().parents[2]


# api


METHODS = ("fedavg", "fedprox", "fedbn", "fedgh", "fedld", "fedld_released", "fedgh_released")
G = np.random.default_rng(0).normal(size=(4, 30))
N = [10, 20, 30, 40]
SIZES = [12, 1, 17]
GRID = {"grid": {"seed": [0, 1]}}
STUDY = {"methods": {"A": {}, "B": {"algorithm": "fedavg"}}, "partitions": [0], "seeds": 1}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_matrix_or_list_the_step_is_one_vector_of_their_precision(method, dtype):
    g = G.astype(dtype)
    before = g.copy()
    step = fedsim.aggregate(g, N, method, sizes=SIZES)
    assert (step.shape, step.dtype) == ((30,), dtype)
    np.testing.assert_array_equal(g, before)
    np.testing.assert_array_equal(fedsim.aggregate(list(g), np.array(N), method, sizes=SIZES), step)
    assert np.isfinite(step).all()


def test_the_default_method_is_fedld_and_rounds_draw_anew():
    np.testing.assert_array_equal(fedsim.aggregate(G, N), fedsim.aggregate(G, N, "fedld"))
    g = np.random.default_rng(3).normal(size=(6, 6)) - 0.3
    steps = {fedsim.aggregate(g, np.ones(6), "fedgh", seed=s, round=t).tobytes()
             for s in range(3) for t in range(3)}  # fmt: skip
    assert len(steps) > 1
    again = [fedsim.aggregate(g, np.ones(6), "fedgh", seed=1, round=2) for _ in range(2)]
    np.testing.assert_array_equal(*again)


def test_tensors_of_the_released_rule_are_independent():
    step = fedsim.aggregate(G, N, "fedld_released", sizes=SIZES, round=1)
    first = fedsim.aggregate(G[:, :12], N, "fedld_released", round=1)
    last = fedsim.aggregate(G[:, 13:], N, "fedld_released", round=1)
    np.testing.assert_allclose(step[:12], first, rtol=1e-12)
    np.testing.assert_allclose(step[13:], last, rtol=1e-12)
    np.testing.assert_allclose(step[12], G[:, 12].mean(), rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"updates": []}, "m vectors of one length"),
        ({"updates": [np.ones(3), np.ones(2)]}, r"one length, got \[\(3,\), \(2,\)\]"),
        ({"updates": np.ones((2, 2, 2))}, "m vectors of one length"),
        ({"updates": np.array([[1, np.nan], [1, 2]]), "num_samples": [1, 1]}, r"\[0\] contain NaN"),
        ({"num_samples": [1, 2, 3]}, r"4 updates need num_samples and num_steps \(m,\), positive"),
        ({"num_samples": [1, 2, 3, 0]}, "positive, got"),
        ({"num_samples": [1, 2, 3, np.nan]}, "positive, got"),
        ({"num_steps": [1, 2]}, r"got .* and \[1, 2\]"),
        ({"sizes": [10, 10]}, r"sizes \[10, 10\] must be positive and add up to 30"),
        ({"sizes": [31, -1]}, r"sizes \[31, -1\]"),
        ({"algorithm": "fedpac"}, "fedpac also combines what clients upload"),
        ({"algorithm": "qffl"}, "qffl also combines what clients upload"),
        ({"algorithm": "fedgh_released", "round": 1}, "sorts by its history"),
    ],
)
def test_what_does_not_fit_is_a_contract_error(arguments, message):
    given = {"updates": G, "num_samples": N} | arguments
    with pytest.raises(ContractError, match=message) as error:
        fedsim.aggregate(given.pop("updates"), given.pop("num_samples"), **given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        ("fedldd", {}, "did you mean 'fedld'"),
        ("fedld", {"kep": 0.5}, "did you mean 'keep'"),
        ("fedld", {"keep": "much"}, "keep"),
        ("fedld", {"norm": "L2"}, "norm.*L2"),
        ("nowhere:build", {}, "nowhere:build.*cannot be imported"),
    ],
)
def test_unknown_methods_and_options_are_config_errors(algorithm, options, message):
    with pytest.raises(ConfigError, match=message) as error:
        fedsim.aggregate(G, N, algorithm, **options)
    assert isinstance(error.value, FedsimError)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "given"),
    [(fedsim.run, fedsim.RunConfig()), (fedsim.sweep, GRID), (fedsim.study, STUDY)],
)
def test_the_url_of_a_storage_is_no_directory(call, given):
    with pytest.raises(ConfigError, match="out: 's3://b/r' given; must be a path on this machine"):
        call(given, "s3://b/r")


def test_the_public_names():
    assert set(fedsim.__all__) >= {"RunConfig", "__version__", "aggregate", "decompose", "run"}
    assert all(hasattr(fedsim, name) for name in fedsim.__all__)
    with pytest.raises(AttributeError, match="no attribute 'agregate'"):
        fedsim.agregate  # noqa: B018


# package


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


def test_the_report_says_what_methods_and_settings_are() -> None:
    found = descriptions()
    assert found["fedprox.mu"] == "weight of the proximal term, >= 0."
    assert found["synthetic.beta"].startswith("standard deviation of the means")
    assert set(algorithms.names()) <= found.keys()
    assert algorithms.describe("fedprox") == f"FedProx: {found['fedprox']}"
    assert {"dataset", "alpha", "train.lr", "margin"} <= found.keys()


# types


SETTINGS = """
[mypy]
strict = true
[mypy-fedsim.*]
follow_imports = silent
[mypy-torch.*,torchvision.*,ray.*,pandas.*,scipy.*,rich.*]
follow_imports = skip
ignore_missing_imports = true
"""
SCRIPT = """
import fedsim

fedsim.RunConfig()
fedsim.RunConfig(algorithm="fedprox", train={"rounds": 20}, fedprox={"mu": 0.1})
train = fedsim.TrainConfig(rounds=3, lr=0.1)
config = fedsim.RunConfig(data=fedsim.DataConfig(name="digits"), train=train)
config.train.rounds + 1
fedsim.TrainConfig(rounds="many")
"""


@pytest.mark.slow
def test_plain_dictionaries_are_accepted_and_mistakes_are_found(tmp_path: Path) -> None:
    (tmp_path / "settings.ini").write_text(SETTINGS)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=settings.ini", "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=clean_environment(MYPYPATH=str(ROOT)),
    )
    places = [line.split(":")[1] for line in done.stdout.splitlines() if "error:" in line]
    assert places == [str(len(SCRIPT.splitlines()))], done.stdout + done.stderr
