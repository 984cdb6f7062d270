"""A hospital's day: from a messy folder to predictions for new images, by messages and commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from fedsim.cli import main
from tests import hospital

pytestmark = pytest.mark.integration


def fedsim(*args: object) -> Result:
    return CliRunner().invoke(main, list(map(str, args)))


@pytest.mark.slow
def test_a_messy_folder_leads_to_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = hospital.write(Path("unsere Bilder"))
    hospital.write_new(Path("neue"))
    data = ["-d", "folder", "--data-dir", folder, "--set", "data.image_size=16"]

    stopped = fedsim("partition", *data)
    assert (stopped.exit_code, stopped.stdout) == (2, "")
    assert stopped.stderr == (
        "error: unsere Bilder/labels.csv: 1 of 90 files is missing in unsere Bilder or "
        "unsere Bilder/images: Bild 07.JPG (row 9); add what is missing, or remove its rows\n"
    )
    Image.fromarray(np.zeros((20, 20), np.uint8)).save(folder / "images" / hospital.MISSING)

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
    assert set(sites["site"]) == set(hospital.SITES)
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
        f"probability_{name}" for name in sorted({*hospital.CLASSES, "Kattarakt", "glaukom"})
    ]
    np.testing.assert_allclose(table.iloc[:, 2:].sum(axis=1), 1, atol=1e-9)
