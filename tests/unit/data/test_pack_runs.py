"""Images that nodes read themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsim.config.run import RunConfig
from fedsim.core.errors import DataError
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


@pytest.fixture
def ready(folder: Path) -> Setup:
    """A run whose nodes read the images themselves."""
    data = {"name": "folder", "dir": str(folder), "num_clients": 2, "image_size": 16}
    return assemble.prepare(RunConfig(data=data, engine={"data_from": "node"}))


def test_other_images_on_a_node_are_still_refused(ready, folder):
    Image.new("L", (16, 16), 7).save(folder / "images" / "3.png")
    with pytest.raises(DataError, match="reads other images than the driver"):
        ready.spec.local_images()
