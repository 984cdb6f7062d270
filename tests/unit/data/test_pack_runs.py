"""Runs on a pack of images in the cache that was damaged since it was made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.core.errors import DataError
from fedsim.data import cache as packs
from fedsim.training import assemble
from fedsim.training.setup import Setup


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty pictures of two classes; the cache is empty."""
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "pictures"
    (made / "images").mkdir(parents=True)
    draw = np.random.default_rng(0)
    rows = ["filename,label"]
    for i in range(40):
        pixels = draw.integers(0, 200, (16, 16)) + 50 * (i % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(made / "images" / f"{i}.png")
        rows.append(f"{i}.png,{i % 2}")
    (made / "labels.csv").write_text("\n".join(rows) + "\n")
    return made


def flip_middle(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / "packed").iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x80
    path.write_bytes(content)
    return path


@pytest.mark.integration
def test_a_flipped_byte_changes_no_result(folder, tmp_path):
    def run(name: str) -> tuple[bytes, str]:
        args = ["run", "-d", "folder", "--data-dir", str(folder), "--engine", "serial"]
        args += ["--clients", "2", "--sample-rate", "1", "--rounds", "2", "-a", "fedavg"]
        args += ["--set", "data.image_size=16", "--out", str(tmp_path / name)]
        done = CliRunner().invoke(main, args)
        assert done.exit_code == 0, done.output
        return (tmp_path / name / "rounds.csv").read_bytes(), done.stderr

    first, silent = run("first")
    path = flip_middle(tmp_path)
    second, told = run("second")
    assert second == first
    assert silent == ""
    assert told.count("\n") == 1
    assert told.startswith(f"{path}: damaged")


@pytest.fixture
def ready(folder: Path) -> Setup:
    """A run whose nodes read the images themselves."""
    data = {"name": "folder", "dir": str(folder), "num_clients": 2, "image_size": 16}
    return assemble.prepare(RunConfig(data=data, engine={"data_from": "node"}))


def test_a_node_mends_its_own_cache(ready, tmp_path, caplog):
    wanted, local_images = np.array(ready.dataset.x), ready.spec.local_images
    flip_middle(tmp_path)
    assert np.array_equal(local_images(), wanted)
    assert "damaged" in caplog.text


def test_actors_do_not_check_a_pack_that_the_driver_checked(ready, monkeypatch):
    checked = []
    damage = packs._damage
    monkeypatch.setattr(packs, "_damage", lambda path: checked.append(path) or damage(path))
    for _ in range(3):
        ready.spec.local_images()
    assert checked == [], "their images are compared with the driver's"
    assemble.prepare(ready.config)
    assert len(checked) == 1


def test_other_images_on_a_node_are_still_refused(ready, folder):
    Image.new("L", (16, 16), 7).save(folder / "images" / "3.png")
    with pytest.raises(DataError, match="reads other images than the driver"):
        ready.spec.local_images()
