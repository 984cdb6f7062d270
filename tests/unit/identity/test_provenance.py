"""Digests of code and data: what counts, how they are recorded, and what a difference says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsim import data
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.identity import provenance
from fedsim.identity.provenance import Code, Data, Provenance

ALGORITHM = "from fedsim.algorithms import Algorithm\ndef build(): return Algorithm()\n"
A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_every_role_in_which_a_users_function_serves(folder: Path) -> None:
    for role in ("way", "first", "second", "network", "samples", "worker"):
        (folder / f"for_{role}.py").write_text(f"import for_all\n{ALGORITHM}")
    (folder / "for_all.py").write_text("")
    found = provenance.code_of(
        RunConfig(
            algorithm="for_way:build",
            server="fedgh,for_first:build,for_second:build",
            data={"name": "for_samples:build"},
            model={"name": "for_network:build"},
            engine={"kind": "for_worker:build"},
        )
    )
    assert {role: (code.name, list(code.files)) for role, code in found.items()} == {
        "method": ("for_way:build", ["for_all.py", "for_way.py"]),
        "server": (
            "for_first:build,for_second:build",
            ["for_all.py", "for_first.py", "for_second.py"],
        ),
        "model": ("for_network:build", ["for_all.py", "for_network.py"]),
        "dataset": ("for_samples:build", ["for_all.py", "for_samples.py"]),
        "executor": ("for_worker:build", ["for_all.py", "for_worker.py"]),
    }


def test_a_table_has_one_digest_on_all_partitions_though_it_is_scaled_by_each(
    tmp_path: Path,
) -> None:
    file = tmp_path / "t.csv"

    def found(rows: int, seed: int) -> Data:
        lines = (f"{x * x % 7},{'' if x % 5 == 1 else x % 3},{x % 2},{x % 3}" for x in range(rows))
        file.write_text("\n".join(("a,b,target,site", *lines)))
        dataset = data.load("csv", file, missing="median", seed=seed)
        return provenance.data_of(dataset, str(file))

    first, second, more = found(60, 0), found(60, 1), found(61, 0)
    assert first.samples != second.samples, "the partition decides about scaling and gaps"
    assert first.short == second.short != more.short
    made_of = Provenance(data=first)
    (tmp_path / "env.json").write_text(json.dumps(made_of.record()))
    read = Provenance.read(tmp_path).data
    assert read is not None
    assert read.short == first.short
    assert "file" not in str(Provenance(data=Data(A, B, C, None)).record())


def test_the_digests_of_data_are_those_of_samples_labels_and_names() -> None:
    dataset = data.load("digits")
    known = provenance.data_of(dataset, "given")
    assert known.dir == "given"
    same = (
        data.load("digits", seed=3, test_fraction=0.5, val_fraction=0.1),  # other parts
        replace(dataset, x=np.asfortranarray(dataset.x)),
        replace(dataset, y=dataset.y.copy()),
    )
    assert {provenance.data_of(other, None).short for other in same} == {known.short}
    changed = dataset.x.copy()
    changed[-1, 0, 0, 0] ^= 1
    others = {
        "samples": [replace(dataset, x=x) for x in (changed, dataset.x[:, :, ::-1])],
        "labels": [replace(dataset, y=dataset.y[::-1])],
        "classes": [replace(dataset, class_names=dataset.class_names[::-1])],
    }
    shapes = replace(dataset, x=dataset.x.reshape(-1, 1, 4, 16))
    tokens = replace(dataset, words=("<PAD>", "word"))
    others["samples"] += [shapes, tokens]
    for part, cases in others.items():
        for case in cases:
            found = provenance.data_of(case, None)
            differ = {p for p in provenance.PARTS if getattr(found, p) != getattr(known, p)}
            assert differ == {part}
            assert found.short != known.short


def state(name: str = "mine:build", **files: str) -> dict[str, Code]:
    return {"method": Code(name, {f"{file}.py": digest for file, digest in files.items()})}


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (state(mine=A), state(mine=A), None),
        (state(mine=A), state(mine=B), "mine.py (of the method mine:build) has changed: it was "
         "aaaaaaaaaaaa, is bbbbbbbbbbbb now"),
        (state(mine=A), state(mine=A, more=B), "more.py (of the method mine:build) has changed: "
         "it was not there, is bbbbbbbbbbbb now"),
        (state(mine=A, more=B), state(mine=A), "it was bbbbbbbbbbbb, is not there now"),
        (state(mine=A), state("mine:other", mine=B), None),
        ({}, state(mine=A), None),
        (state(mine=A), {}, None),
    ],
)  # fmt: skip
def test_a_change_of_code_names_file_and_digests(
    before: dict[str, Code], now: dict[str, Code], says: str | None
) -> None:
    found = provenance.changed_code(Provenance(before), now)
    assert found is None if says is None else says in (found or "")
    run, began = Path("run"), Provenance(before)
    assert provenance.check_code(run, began, now, accept=True) is (says is not None)
    if says is not None:
        with pytest.raises(ConfigError, match=r"^run: .*; put the file back, .*--accept-changed-"):
            provenance.check_code(run, began, now, accept=False)


def test_a_change_of_data_says_what_differs() -> None:
    began, now = Provenance(data=Data(A, A, A, None)), Data(B, A, B, "folder")
    with pytest.raises(DataError, match=r"^data.dir folder: the samples and the class names are"):
        provenance.check_data(Path("run"), began, now, "do something")
    provenance.check_data(Path("run"), began, Data(A, A, A, "moved"), "")
    provenance.check_data(Path("run"), Provenance(), now, "")
    provenance.check_data(Path("run"), began, None, "")


def test_what_is_recorded_is_read_again_and_accepted_code_counts(tmp_path: Path) -> None:
    file = tmp_path / "env.json"
    made_of = Provenance(state(mine=A), Data(A, B, A, "folder"))
    file.write_text(json.dumps(made_of.record()))
    found = Provenance.read(tmp_path)
    assert (found.code, found.data) == (made_of.code, Data(A, B, A, None))
    provenance.accept_code(tmp_path, state(mine=B))
    found = Provenance.read(tmp_path)
    assert (found.code, found.accepted) == (state(mine=A), state(mine=B))
    assert [provenance.changed_code(found, state(mine=each)) for each in (A, B)] == [None, None]
    assert provenance.changed_code(found, state(mine=C)) is not None
    assert json.loads(file.read_bytes()).items() >= made_of.record().items()
    file.unlink()
    assert Provenance.read(tmp_path) == Provenance()


@pytest.mark.parametrize(
    "said", [{"code": None}, {"code": {"method": {"name": "mine:build"}}}, {"data": {}}]
)
def test_what_fedsim_does_not_write_is_damaged(tmp_path: Path, said: dict[str, object]) -> None:
    (tmp_path / "env.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=r"env\.json: damaged: 'code' or 'data' is not what"):
        Provenance.read(tmp_path)
