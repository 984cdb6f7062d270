"""The code of tutorials and recipes runs, as their pages write it."""

from __future__ import annotations

import csv
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import fedsim
from fedsim.cli import main
from fedsim.config import presets
from fedsim.config.experiments import Setting
from fedsim.studies import sweep
from tests.commands import clean_environment
from tests.sampling import marked_beside

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]


# tutorials


PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
LONG = ROOT / "docs" / "tutorials" / "attack-and-defend.md"
"""Two sweeps: minutes."""
FENCE = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = {"fedsim": "fedsim", "python": ""}


class Block(NamedTuple):
    """A block of a page: a file where it has a title, else commands or code to run."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


@pytest.fixture
def environment(tmp_path):
    """An empty folder of work, and ``fedsim`` and ``python`` of this checkout on the path."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in (("fedsim", "-m fedsim"), ("python", "")):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        script.chmod(0o755)
    (tmp_path / "work" / "launch").symlink_to(ROOT / "launch")
    return clean_environment(
        PATH=f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        FEDSIM_CACHE=str(tmp_path / "cache"),
        MPLBACKEND="agg",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", marked_beside({*PAGES} - {LONG}, PAGES, pytest.mark.nightly), ids=lambda page: page.stem
)
def test_the_blocks_of_a_tutorial_run_in_order(page, tmp_path, environment):
    ran = 0
    for block in blocks(page):
        if block.title:
            (tmp_path / "work" / block.title).write_text(block.text)
        elif block.language in ("bash", "python"):
            shell = ["bash", "-euo", "pipefail"] if block.language == "bash" else [sys.executable]
            done = subprocess.run(
                [*shell, "-c", block.text],
                cwd=tmp_path / "work",
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran >= 2


# recipes


HOW_TO = ROOT / "docs" / "how-to"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def chapter(page: str) -> str:
    """A page, or its chapter (``PAGE#HEADING``)."""
    name, _, heading = page.partition("#")
    text = (HOW_TO / name).read_text()
    if not heading:
        return text
    (chapter,) = (part for part in re.split(r"(?m)^## ", text) if part.startswith(heading))
    return chapter


def follow(page: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Writes the files of a page or chapter and runs its commands in order; what they print."""
    printed = []
    for language, title, text in FENCE.findall(chapter(page)):
        if title:
            Path(title).write_text(text)
        for line in text.replace("\\\n", " ").splitlines() if language == "bash" else ():
            program, *words = shlex.split(line)
            if program == "python":
                monkeypatch.setattr(sys, "argv", words)
                runpy.run_path(words[0])
                continue
            assert program == "fedsim", line
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, f"{line}\n{done.output}"
            printed.append(done.stdout)
    return printed


def save(path: Path, seed: int, mode: str = "RGB", size: tuple[int, int] = (16, 12)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


def rows_of(file: str) -> list[dict[str, str]]:
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
def test_fed_isic2019_of_flamby(monkeypatch):
    folder = Path("FLamby/flamby/datasets/fed_isic2019/dataset_creation_scripts")
    folder.mkdir(parents=True)
    classes = ["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK"]
    lines = [",".join(["image", *classes, "target", "center", "fold", "fold2"])]
    metadata = ["image,age_approx,anatom_site_general,lesion_id,sex"]
    for i in range(96):
        name = f"ISIC_{i:07d}" + "_downsampled" * (i % 6 == 4)
        save(Path("ISIC_2019_Training_Input_preprocessed", f"{name}.jpg"), i)
        target, center, fold = i // 6 % 2, i % 6, "test" if i // 6 % 8 > 5 else "train"
        one_hot = [str(float(c == target)) for c in range(9)]
        lines.append(",".join([name, *one_hot, str(target), str(center), fold, f"{fold}_{center}"]))
        lesion = f"BCN_{i // 12}" if center < 3 else ""
        metadata.append(f"{name},55.0,anterior torso,{lesion},female")
    (folder / "train_test_split").write_text("\n".join(lines) + "\n")
    Path("ISIC_2019_Training_Metadata.csv").write_text("\n".join(metadata) + "\n")
    split, _, lesions = follow("flamby.md#FLamby: Fed-ISIC2019", monkeypatch)
    assert "72 training samples of 8 classes on 6 clients" in split
    assert "vidir_molemax" in split
    evaluated = rows_of("runs/isic/evaluations.csv")
    assert {row["client_id"] for row in evaluated} >= set("012345")
    assert "patients, each with one client" in lesions


@pytest.mark.slow
def test_folders_of_domains(monkeypatch):
    for d, domain in enumerate(("amazon", "caltech", "dslr", "webcam")):
        for i in range(20):
            folder = Path("office_caltech_10", domain, ("backpack", "mug")[i % 2])
            save(folder / f"frame_{i:04d}.jpg", 20 * d + i)
    for d, domain in enumerate(("mnist", "mnist_m", "svhn", "syn")):
        for i in range(24):
            folder = Path("digits_dg", domain, "val" if i > 19 else "train", str(i % 2))
            save(folder / f"{i:05d}.jpg", 24 * d + i, "L" if domain == "mnist" else "RGB")
    office, _, digits, _ = follow("flamby.md#Digits and Office", monkeypatch)
    assert "64 training samples of 2 classes on 4 clients" in office
    assert "64 training samples of 2 classes on 4 clients" in digits
    assert "4 sites: mnist 16, mnist_m 16, svhn 16, syn 16" in digits
    assert len(rows_of("runs/office/rounds.csv")) == 2
    assert rows_of("runs/digits/rounds.csv")[-1]["val_accuracy"]


@pytest.mark.slow
def test_a_hugging_face_data_set(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs pip install 'fedsim-ray[datasets]'")
    datasets.disable_progress_bars()
    monkeypatch.setenv("HF_HOME", "hub")
    split, _ = follow("hugging-face.md#Save", monkeypatch)
    assert "hf, by_site: 287 training samples of 3 classes on 3 clients" in split
    assert "0 3  1 5  2 8" in split


def test_a_table(monkeypatch):
    split, _ = follow("csv.md", monkeypatch)
    assert "csv, by_site: 192 training samples of 2 classes on 2 clients" in split


HEART = Path(__file__).resolve().parents[3] / "shared" / "data" / "flamby"


def hearts(real: bool) -> None:
    """The four files of UCI's archive: the real ones, or 60 rows of random numbers each."""
    Path("heart-disease").mkdir()
    for seed, site in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        draw = np.random.default_rng(seed)
        rows = [
            f"{draw.integers(30, 80)}.0,{i % 2},{1 + i % 4},{draw.integers(90, 180)},"
            f"{'?' if i % 9 == 8 else draw.integers(150, 400)},{i % 3 // 2},{i % 3},"
            f"{draw.integers(90, 190)},{i % 2},{draw.integers(0, 40) / 10},?,?,?,{i * 7 % 5}"
            for i in range(60)
        ]
        if real:
            rows = (HEART / "heart-disease" / f"{site}.csv").read_text().splitlines()[1:]
        Path("heart-disease", f"processed.{site}.data").write_text("\n".join(rows) + "\n")


@pytest.mark.slow
def test_fed_heart_disease_of_flamby_on_random_numbers(monkeypatch):
    hearts(real=False)
    split, _ = follow("flamby.md#FLamby: Fed-Heart", monkeypatch)
    assert "csv, by_site: 140 training samples of 2 classes on 4 clients" in split
    evaluated = rows_of("runs/heart/evaluations.csv")
    assert [r["num_samples"] for r in evaluated if r["split"] == "own_test"] == ["19"] * 4
    assert {r["num_steps"] for r in rows_of("runs/heart/clients.csv")} == {"100"}


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param((42,), marks=pytest.mark.slow),
        pytest.param((43, 44, 45, 46), marks=pytest.mark.nightly),
    ],
)
def test_the_published_accuracies_of_fed_heart_disease(seeds, monkeypatch):
    if not HEART.is_dir():
        pytest.skip(f"needs the four hospitals' files and FLamby's results in {HEART}")
    hearts(real=True)
    text = dict((t, text) for _, t, text in FENCE.findall(chapter("flamby.md#FLamby: Fed-Heart")))
    Path("flamby_heart.py").write_text(text["flamby_heart.py"])
    runpy.run_path("flamby_heart.py")
    published = {
        (r["method"], int(r["seed"]), r["scope"]): float(r["value"])
        for r in rows_of(str(HEART / "published" / "flamby.csv"))
        if r["dataset"] == "fed_heart_disease"
    }
    found = {}
    table = {"data.dir": Setting("heart.csv", "test"), "engine.kind": Setting("serial", "test")}
    for run in sweep.expand(presets.load("flamby_heart"), table):
        if run.config.seed in seeds:
            made = fedsim.run(run.config, Path("runs", run.name))
            key = run.config.label, run.config.seed
            own = made.read("evaluations").query("split == 'own_test'")["accuracy"]
            found |= {(*key, f"client_{c}"): value for c, value in enumerate(own)}
            found[*key, "pooled"] = made.rounds["test_accuracy"].iloc[-1]
            found[*key, "mean"] = made.rounds["client_test_accuracy"].iloc[-1]
    assert len(found) == 36 * len(seeds)
    assert found == {key: pytest.approx(published[key], abs=1e-9) for key in found}


@pytest.mark.slow
def test_an_attack_that_knows_the_others(monkeypatch):
    follow("attacks.md#An attack of your own", monkeypatch)
    table = rows_of("runs/turned/clients.csv")
    by_round = {row["round"]: [] for row in table}
    for row in table:
        by_round[row["round"]].append((row["attacker"], float(row["update_norm"])))
    for norms in by_round.values():
        sent = [norm for attacker, norm in norms if attacker == "1"]
        longest = max(norm for attacker, norm in norms if attacker == "0")
        assert len(sent) == 2
        assert sent == pytest.approx([2 * longest] * 2, rel=1e-4)


@pytest.mark.slow
def test_a_study(monkeypatch):
    listed, done, table, _ = follow("tune.md#A study", monkeypatch)
    assert "comparison: 18 runs, 6 rows with training seeds 1, 2, 3" in listed
    assert listed.partition("\n\n")[0] in chapter("tune.md#A study")
    assert "34 runs" in listed.partition("\n\n")[2]  # the estimate of time, disk and memory
    assert "wrote runs/study/report/report.html" in done
    assert "| FedProx, alpha=0.1 |" in table
    assert rows_of("runs/study/chosen.csv")[0]["trials"] == "4"
