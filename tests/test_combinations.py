"""Every combination of parts runs, or is refused before anything starts: docs/pairs.py."""

from __future__ import annotations

import importlib.util
import random
import re
from pathlib import Path

import numpy as np
import pytest

import fedsim
from fedsim.core.errors import ConfigError
from fedsim.testing.rounds import rounds
from fedsim.training import driver
from tests.sampling import marked_beside

ROOT = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("docs_pairs", ROOT / "docs" / "pairs.py")
pairs = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(pairs)

pytestmark = pytest.mark.integration
CHUNKS = 12


def short(*parts):
    """A small run of two rounds."""
    config = pairs.configuration(parts)
    return config.model_copy(
        update={
            "train": config.train.model_copy(update={"rounds": 2}),
            "evaluation": config.evaluation.model_copy(update={"every": 2}),
        }
    )


def runs(*parts):
    """Whether the parts run together; else they are refused. Anything else is an error."""
    if pairs.refusal(*parts) is not None:
        return False
    made = rounds(short(*parts))
    assert len(made) == 2
    assert np.isfinite(made[-1].after.params).all(), parts
    return True


def drawn(count, seed=0):
    """Combinations of a part, or none, of every kind."""
    draw = random.Random(seed)
    for _ in range(count):
        kinds = pairs.parts().items()
        yield [(k, draw.choice(list(named))) for k, named in kinds if draw.random() < 0.5]


@pytest.mark.slow
def test_every_part_runs_alone():
    refused = {part: pairs.refusal(part) for part in pairs.everything()}
    of_parts = {part: why for part, why in refused.items() if why}
    assert not of_parts


@pytest.mark.slow
def test_a_sample_of_combinations():
    found = [runs(*chosen) for chosen in drawn(12)]
    assert any(found)
    assert not all(found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, CHUNKS + 1))
def test_more_combinations(seed):
    for chosen in drawn(40, seed):
        runs(*chosen)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", marked_beside((0,), range(CHUNKS), pytest.mark.nightly))
def test_every_pair(chunk):
    for pair in pairs.pairs()[chunk::CHUNKS]:
        runs(*pair)


def test_what_is_refused_has_started_nothing(tmp_path, monkeypatch):
    def started(*_):
        raise AssertionError("an executor was started")

    monkeypatch.setattr(driver, "make_executor", started)
    refused = [chosen for chosen in drawn(20) if pairs.refusal(*chosen) is not None]
    assert refused
    for i, chosen in enumerate(refused[:4]):
        with pytest.raises(ConfigError):
            fedsim.run(pairs.configuration(chosen), tmp_path / str(i), progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_page_names_every_part_and_every_reason():
    page = pairs.page()
    assert page.count("### ") == len(pairs.parts()) + 1
    for kind, name in pairs.everything():
        section = page.partition(f"### {pairs.TITLES[kind]}\n")[2].partition("### ")[0]
        assert f"`{name}`" in section
    for one, other in pairs.pairs():
        reason = pairs.refusal(one, other)
        if reason is not None:
            assert pairs.SERVER.sub("server rules", reason) in page
    assert set(re.findall(r"#why-(\d+)\)", page)) == set(re.findall(r'id="why-(\d+)"', page))
