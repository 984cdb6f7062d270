"""``fedsim partition``: own test parts, feature shift and the picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

import fedsim
from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.core.analysis import analysis


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSIM_DEBUG", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


def partition(*args: str) -> Result:
    return CliRunner().invoke(main, ["partition", *args])


@pytest.mark.slow
@pytest.mark.integration
def test_the_picture_is_drawn_and_not_drawn_over(tmp_path: Path) -> None:
    args = ["--clients", "12", "--feature-shift", "noise", "--plot", "p.png"]
    done = partition(*args)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "picture: p.png"
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    again = partition(*args)
    assert (again.exit_code, again.stderr) == (2, "error: --plot p.png: is already there\n")


def test_the_clients_of_a_run_are_drawn(tmp_path: Path) -> None:
    (tmp_path / "partition.csv").write_text("client_id,label,train_samples\n0,0,4\n1,1,2\n")
    done = partition("partition.csv", "--plot", "p.svg")
    assert (done.exit_code, done.stdout) == (0, "picture: p.svg\n")
    assert "2 clients, 6 training samples" in (tmp_path / "p.svg").read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["RUN", "--plot", "p.png", "--alpha", "1"], "RUN: goes with --plot FILE, and with no"),
        ([".", "--plot", "p.png"], "partition.csv: there is no such file"),
        (["--plot", "p.jpg"], "--plot p.jpg: the name must end in .png, .pdf, .svg"),
        (["--plot", "no/p.png"], "--plot no/p.png: there is no directory no"),
        (["--feature-shift", "bluur"], "--feature-shift: 'bluur' given; must be 'none', 'blur'"),
        (["--feature-shift", "colour"], "digits has 1"),
        (["--feature-strength", "0"], "--feature-strength: '0' given; must be greater than 0"),
        (["--set", "data.shift_test=dirty"], "data.shift_test: 'dirty' given; must be 'mixed'"),
        (["--set", "data.client_test_fraction=1"], "data.client_test_fraction: '1' given"),
        (
            ["--set", "data.client_test_fraction=0.98"],
            "(76: data.min_samples 2 and the clients' own held-out parts)",
        ),
    ],
)
def test_bad_values_are_refused_in_one_line(args: list[str], message: str) -> None:
    done = partition(*args)
    assert (done.exit_code, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert message in done.stderr


def pictures(root: Path) -> Path:
    (root / "images").mkdir(parents=True)
    lines = ["filename,label,site"]
    for i in range(60):
        Image.new("RGB", (6, 6), (4 * i, 0, 0)).save(root / "images" / f"{i}.png")
        label = "diabetic retinopathy" if i % 2 else "normal"
        lines.append(f"{i}.png,{label},{('clinic a', 'b')[i // 2 % 2]}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


@pytest.mark.slow
@pytest.mark.integration
def test_classes_and_sites_go_by_their_names(tmp_path: Path, monkeypatch) -> None:
    drawn = []
    figure = analysis("figures.partition").figure
    monkeypatch.setattr(
        analysis("figures.partition"),
        "figure",
        lambda *args: drawn.append(figure(*args)) or drawn[-1],
    )
    args = ["-d", "folder", "--data-dir", str(pictures(tmp_path / "d")), "--sample-rate", "1"]
    args += ["--set", "data.image_size=6"]
    done = partition(*args, "--out", "p")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[1] == "2 sites: b 24, clinic a 24"
    head = lines[2].replace("0 diabetic reti...", "D").replace("1 normal", "N")
    assert head.split() == ["client", "name", "D", "N", "samples"]
    assert [line.split()[1:-3] for line in lines[3:5]] == [["b"], ["clinic", "a"]]
    texts = [t.get_text() for t in drawn[0].axes[1].get_yticklabels()]
    assert texts == ["diabetic retino\u2026", "normal"]
    run = fedsim.run(
        RunConfig(
            algorithm="fedavg",
            model={"name": "logistic"},
            data={"name": "folder", "dir": str(tmp_path / "d"), "image_size": 6},
            train={"rounds": 1, "sample_rate": 1.0},
            engine={"kind": "serial"},
        ),
        tmp_path / "run",
    )
    written = json.loads((run.path / "env.json").read_text())
    assert written["classes"] == ["diabetic retinopathy", "normal"]
    assert written["sites"] == ["b", "clinic a"]


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """40 images of two classes at two sites, a typing error, and a patient's name at both."""
    folder = tmp_path / "hospitals"
    folder.mkdir()
    rows = []
    for i in range(40):
        Image.new("L", (8, 8), 6 * i).save(folder / f"{i}.png")
        rows.append(f"{i}.png;{'well' if i % 2 else 'ill'};{'AB'[i // 20]};p{i % 39}")
    rows[6] = "6.png;illl;A;p6"
    (folder / "labels.csv").write_text("\n".join(["filename;label;site;patient", *rows]))
    return folder


def test_remarks_on_labels_and_patients_are_lines(hospitals: Path) -> None:
    args = ["-d", "folder", "--data-dir", "hospitals", "--set", "data.image_size=8"]
    done = partition(*args)
    assert done.exit_code == 0, done.output
    said = "labels that may be typing errors: 'illl' (1 image in row 8) like 'ill' (19)"
    lines = done.stdout.splitlines()
    assert lines[1].endswith(
        " 1 patient name occurs at several sites (p0): a different patient at each"
    )
    assert lines[2] == said
    refused = partition(*args, "--strict-labels")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"error: hospitals/labels.csv: {said}; correct the table, or leave out --strict-labels\n"
    )
    off = partition(*args, "--strict-labels", "--set", "folder.strict_labels=true")
    assert "folder.strict_labels is also given by --strict-labels" in off.stderr
