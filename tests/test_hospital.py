"""A hospital's day: from a messy folder to predictions for new images, by messages and commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from fedsim.cli import main

pytestmark = pytest.mark.integration
CLASSES = ("normal", "Katarakt", "Glaukom")
SITES = ("M\u00fcnchen", "K\u00f6ln", "Bad T\u00f6lz")
MISSING = "Bild 07.JPG"


def write_folder(folder: Path, count: int = 90) -> Path:
    """Images and a table with all that is usually wrong with them.

    Umlauts and spaces in names, ``.JPG`` and ``.png``, grey and colour, mixed sizes, a table with
    semicolons, byte order mark and CRLF, two labels with typing errors, a patient's name at two
    sites, and one file that is missing.
    """
    rng = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    rows = ["Filename;Label;Site;Patient"]
    for i in range(count):
        kind, site = i % 3, i // 3 % 3
        name = f"Bild {i:02d}.{'JPG' if i % 2 else 'png'}"
        size = (24 + i % 5, 30 + i % 7)
        pixels = np.clip(rng.normal(60 + 60 * kind, 20, (*size, 3)), 0, 255).astype(np.uint8)
        image = Image.fromarray(pixels if i % 4 else pixels[..., 0])
        if name != MISSING:
            image.save(folder / "images" / name)
        label = {31: "Kattarakt", 32: "glaukom "}.get(i, CLASSES[kind])
        patient = "M\u00fcller" if i in (0, 3) else f"P{i // 3:03d}"
        rows.append(f"{name};{label};{SITES[site]};{patient}")
    (folder / "labels.csv").write_bytes(("\ufeff" + "\r\n".join(rows) + "\r\n").encode())
    return folder


def write_new(folder: Path) -> Path:
    """New images without labels, one in a folder of its own."""
    (folder / "heute").mkdir(parents=True)
    for kind, name in enumerate(("neu 1.JPG", "neu 2.png", "heute/\u00dc.tif")):
        pixels = np.full((40, 28, 3), 60 + 60 * kind, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder


def fedsim(*args: object) -> Result:
    return CliRunner().invoke(main, list(map(str, args)))


@pytest.mark.slow
def test_tables_with_scales_and_medians_are_compared_over_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each partition scales and fills by rows of its own; the table has the mean over these."""
    monkeypatch.chdir(tmp_path)
    Path("tables").mkdir()
    rng = np.random.default_rng(0)
    for site, scale in (("a", 1), ("b", 10), ("c", 0.1)):
        doses = [rng.normal(i % 2, 1) * scale if rng.random() < 0.8 else "" for i in range(40)]
        rows = [f"{dose},{i % 2}" for i, dose in enumerate(doses)]
        Path("tables", f"{site}.csv").write_text("\n".join(["dose,target", *rows]) + "\n")
    Path("grid.yaml").write_text(
        "data: {name: csv, dir: tables}\ncsv: {missing: median}\n"
        "train: {rounds: 2, sample_rate: 1, batch_size: 10, lr: 0.1}\n"
        "evaluation: {clients_every: 2}\nengine: {kind: serial}\n"
        "grid: {algorithm: [local, fedavg], data.seed: [0, 1, 2]}\n"
    )
    done = fedsim("sweep", "grid.yaml", "--out", "sweep")
    assert done.exit_code == 0, done.output
    done = fedsim("table", "sweep", "--metric", "sites", "--unit", "partition", "--out", "t.csv")
    assert done.exit_code == 0, done.output
    table = pd.read_csv("t.csv").query("table == 'sites' and label == 'fedavg'").set_index("site")
    runs = [Path(f"sweep/algorithm=fedavg,data.seed={seed}") for seed in range(3)]
    scores = [pd.read_csv(run / "evaluations.csv").query("split == 'own_test'") for run in runs]
    for number, site in enumerate("abc"):
        expected = [own.set_index("client_id").loc[number, "accuracy"] for own in scores]
        assert table.loc[site, "mean"] == pytest.approx(np.mean(expected), abs=1e-12)
    pooled = [np.average(own["accuracy"], weights=own["num_samples"]) for own in scores]
    summary = pd.read_csv("sweep/summary.csv")
    final = summary[summary["algorithm"] == "fedavg"]["final_test_accuracy"]
    np.testing.assert_allclose(sorted(final), sorted(pooled), atol=1e-12)
    assert summary["data_digest"].nunique() == 1
    assert len({(run / "preprocessing.json").read_text() for run in runs}) == 3


@pytest.mark.slow
def test_a_messy_folder_leads_to_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = write_folder(Path("unsere Bilder"))
    write_new(Path("neue"))
    data = ["-d", "folder", "--data-dir", folder, "--set", "data.image_size=16"]

    stopped = fedsim("partition", *data)
    assert (stopped.exit_code, stopped.stdout) == (2, "")
    assert stopped.stderr == (
        "error: unsere Bilder/labels.csv: 1 of 90 files is missing in unsere Bilder or "
        "unsere Bilder/images: Bild 07.JPG (row 9); add what is missing, or remove its rows\n"
    )
    Image.fromarray(np.zeros((20, 20), np.uint8)).save(folder / "images" / MISSING)

    shown = fedsim("partition", *data)
    assert shown.exit_code == 0, shown.output
    remark = (
        "labels that may be typing errors: 'Kattarakt' (1 image in row 33) like 'Katarakt' (29), "
        "'glaukom' (1 image in row 34) like 'Glaukom' (29)"
    )
    names = "; 1 patient name occurs at several sites (M\u00fcller): a different patient at each"
    lines = shown.stdout.splitlines()
    assert lines[1].endswith(names)
    assert lines[2] == remark
    assert lines[3].startswith("3 sites: Bad T\u00f6lz ")
    strict = fedsim("partition", *data, "--set", "folder.strict_labels=true")
    assert (strict.exit_code, remark in strict.stderr) == (2, True)

    for method in ("local", "fedbn"):
        trained = fedsim(
            *("run", "-a", method, *data, "--sample-rate", 1, "--rounds", 3, "--engine", "serial"),
            *("--set", "train.batch_size=8", "--lr", 0.05, "--evaluate-clients-every", 3),
            *("--out", f"runs/{method}"),
        )
        assert trained.exit_code == 0, trained.output
        assert remark in trained.output

    helped = fedsim("table", "runs", "--metric", "sites", "--out", "sites.csv")
    assert helped.exit_code == 0, helped.output
    sites = pd.read_csv("sites.csv")
    assert set(sites["site"]) == set(SITES)
    assert set(sites["label"]) == {"local", "fedbn"}

    asked = fedsim("predict", "runs/fedbn", "--images", "neue", "--out", "neu.csv")
    assert asked.exit_code == 2
    assert (
        "choose one by --client K, 0 to 2 (0 Bad T\u00f6lz, 1 K\u00f6ln, 2 M\u00fcnchen)"
        in asked.stderr
    )
    predicted = fedsim(
        "predict", "runs/fedbn", "--client", 1, "--images", "neue", "--out", "neu.csv"
    )
    assert predicted.exit_code == 0, predicted.output
    table = pd.read_csv("neu.csv")
    assert table["file"].tolist() == ["neue/heute/\u00dc.tif", "neue/neu 1.JPG", "neue/neu 2.png"]
    assert table.columns[2:].tolist() == [
        f"probability_{name}" for name in sorted({*CLASSES, "Kattarakt", "glaukom"})
    ]
    np.testing.assert_allclose(table.iloc[:, 2:].sum(axis=1), 1, atol=1e-9)


@pytest.mark.slow
def test_each_hospital_is_left_out_in_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From a table of three hospitals to what the model of the others is worth to each."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    site = np.repeat(["lund", "va", "zurich"], 60)
    dose = rng.normal(0, 1, 180)
    target = (dose > 0) ^ (site == "zurich")  # the cure of the others is the harm of this one
    table = pd.DataFrame({"dose": dose, "target": target.astype(int), "site": site})
    table.to_csv("patients.csv", index=False)
    Path("grid.yaml").write_text(
        "data: {name: 'csv:patients.csv', client_test_fraction: 0.3}\n"
        "train: {rounds: 3, sample_rate: 1.0, lr: 0.5, batch_size: 10}\n"
        "evaluation: {finetune_epochs: 1}\n"
        "grid:\n  algorithm: [local, fedavg]\n"
        "  data.partition: [by_site, leave_one_site_out]\n  data.seed: [0, 1, 2]\n"
    )
    swept = fedsim("sweep", "grid.yaml", "--out", "swept", "--parallel", 1, "--engine", "serial")
    assert swept.exit_code == 0, swept.output
    without = Path("swept/algorithm=fedavg,data.partition=without_va,data.seed=1")
    final = pd.read_csv(without / "final_clients.csv")
    assert final["held_out"].tolist() == [0, 1, 0]

    shown = fedsim("table", "swept", "--metric", "sites", "--out", "sites.csv")
    assert shown.exit_code == 0, shown.output
    sites = pd.read_csv("sites.csv")
    levels = sites[sites["table"] == "sites"].set_index(["label", "site"])
    runs = [pd.read_csv(f"{str(without)[:-1]}{seed}/final_clients.csv") for seed in range(3)]
    mean = np.mean([run["accuracy"][1] for run in runs])
    assert levels["mean"]["fedavg, without the site", "va"] == pytest.approx(mean)
    verdicts = sites[sites["table"] == "sites_difference"].set_index(["label", "site"])["verdict"]
    assert set(verdicts) <= {"helps", "harms", "cannot be told"}

    reported = fedsim("report", "swept", "--out", "report")
    assert reported.exit_code == 0, reported.output
    page = Path("report/report.html").read_text(encoding="utf-8")
    start = page[page.index("<header>") : page.index("</header>")]
    assert "figures/site_pairs.png" in start
    assert "without the site" not in start.partition("<details>")[0]
    assert verdicts["fedavg"].to_dict() == {
        "lund": "cannot be told",
        "va": "cannot be told",
        "zurich": "harms",
    }
    assert verdicts["fedavg, without the site"]["zurich"] == "harms"
    assert "FedAvg <strong>harms</strong> zurich; for lund and va it cannot be told." in start
    predicted = fedsim(
        *("predict", without, "--client", "va", "--split", "own_test", "--out", "va.csv")
    )
    assert predicted.exit_code == 0, predicted.output
    assert len(pd.read_csv("va.csv")) == final["num_samples"][1]
