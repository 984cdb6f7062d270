"""Digests of code and data: what counts, how they are recorded, and what a difference says."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from PIL import Image

from fedsim import data
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.identity import provenance
from fedsim.identity.provenance import Code, Data, Provenance
from fedsim.identity.sources import sha256_of_files
from tests.fuzz.harness import fedsim, workplace

pytestmark = pytest.mark.integration

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
    outcome = provenance.code_of(
        RunConfig(
            algorithm="for_way:build",
            server="fedgh,for_first:build,for_second:build",
            data={"name": "for_samples:build"},
            model={"name": "for_network:build"},
            engine={"kind": "for_worker:build"},
        )
    )
    assert {role: (code.name, list(code.files)) for role, code in outcome.items()} == {
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

    def outcome(rows: int, seed: int) -> Data:
        lines = (f"{x * x % 7},{'' if x % 5 == 1 else x % 3},{x % 2},{x % 3}" for x in range(rows))
        file.write_text("\n".join(("a,b,target,site", *lines)))
        dataset = data.load("csv", file, missing="median", seed=seed)
        return provenance.data_of(dataset, str(file))

    first, second, more = outcome(60, 0), outcome(60, 1), outcome(61, 0)
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
    expected = provenance.data_of(dataset, "given")
    assert expected.dir == "given"
    same = (
        data.load("digits", seed=3, test_fraction=0.5, val_fraction=0.1),  # other parts
        replace(dataset, x=np.asfortranarray(dataset.x)),
        replace(dataset, y=dataset.y.copy()),
    )
    assert {provenance.data_of(other, None).short for other in same} == {expected.short}
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
            outcome = provenance.data_of(case, None)
            differ = {p for p in provenance.PARTS if getattr(outcome, p) != getattr(expected, p)}
            assert differ == {part}
            assert outcome.short != expected.short


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
    outcome = provenance.changed_code(Provenance(before), now)
    assert outcome is None if says is None else says in (outcome or "")
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
    outcome = Provenance.read(tmp_path)
    assert (outcome.code, outcome.data) == (made_of.code, Data(A, B, A, None))
    provenance.accept_code(tmp_path, state(mine=B))
    outcome = Provenance.read(tmp_path)
    assert (outcome.code, outcome.accepted) == (state(mine=A), state(mine=B))
    assert [provenance.changed_code(outcome, state(mine=each)) for each in (A, B)] == [None, None]
    assert provenance.changed_code(outcome, state(mine=C)) is not None
    assert json.loads(file.read_bytes()).items() >= made_of.record().items()
    file.unlink()
    assert Provenance.read(tmp_path) == Provenance()


@pytest.mark.parametrize(
    "said", [{"code": None}, {"code": {"method": {"name": "mine:build"}}}, {"data": {}}]
)
def test_what_fedsim_does_not_write_is_damaged(tmp_path: Path, said: dict[str, object]) -> None:
    (tmp_path / "env.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=r"env\.json: damaged: not what"):
        Provenance.read(tmp_path)


# which source files count


def written(folder: Path, **files: str) -> None:
    """Python files by module name; ``__`` in a name is a dot."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_module_and_what_it_imports_beside_it(folder: Path) -> None:
    written(
        folder,
        rule="import numpy\nfrom steps import size\ndef f():\n    import late.here as there\n",
        steps="import json, more_steps\n",
        more_steps="import rule\n",  # a circle
        late__here="from . import beside\nfrom .below.deep import name\n",
        late__beside="",
        late__below__deep="",
        not_imported="",
    )
    (folder / "late" / "__init__.py").write_text("import of_package\n")
    written(folder, of_package="")
    assert list(sha256_of_files("rule")) == [
        *("late/__init__.py", "late/below/deep.py", "late/beside.py", "late/here.py"),
        *("more_steps.py", "of_package.py", "rule.py", "steps.py"),
    ]
    assert sha256_of_files("steps") == sha256_of_files("rule")
    assert list(sha256_of_files("late.beside")) == [
        *("late/__init__.py", "late/beside.py", "of_package.py"),
    ]


def test_a_digest_is_that_of_the_text_whatever_the_line_ends(folder: Path) -> None:
    written(folder, lines="a = 1\nb = 2\n")
    digest = hashlib.sha256(b"a = 1\nb = 2\n").hexdigest()
    assert sha256_of_files("lines") == {"lines.py": digest}
    (folder / "lines.py").write_bytes(b"a = 1\r\nb = 2\r\n")
    assert sha256_of_files("lines") == {"lines.py": digest}
    (folder / "lines.py").write_bytes(b"a = 1\nb = 3\n")
    assert sha256_of_files("lines")["lines.py"] != digest


def test_names_are_relative_so_that_they_are_the_same_everywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = []
    for place in ("here", "there"):
        written(folder / place, moved="import also_moved\n", also_moved="")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder / place)
            outcome.append(sha256_of_files("moved"))
    assert outcome[0] == outcome[1]
    assert list(outcome[0]) == ["also_moved.py", "moved.py"]


@pytest.mark.parametrize("name", ["json", "numpy.linalg", "sys", "fedsim.api", "not_there", "a..b"])
def test_what_is_installed_or_nowhere_has_none(name: str) -> None:
    assert sha256_of_files(name) == {}


# what is refused after code or data have changed

METHOD = """\
from dataclasses import dataclass

from fedsim.algorithms import Algorithm
from fedsim.server import Average, Server
from scales import SCALE


@dataclass(frozen=True)
class Scaled:
    factor: float

    def __call__(self, step, state, cohort, ctx):
        return step * self.factor, state


def build() -> Algorithm:
    return Algorithm(server=Server(Average(), optimizers=(Scaled(SCALE),)))
"""
GRID = """\
algorithm: "mine:build"
train: {rounds: 1, sample_rate: 0.5}
data: {num_clients: 2, val_fraction: 0.1}
engine: {kind: serial}
"""
SETTINGS = """\
algorithm: fedavg
train: {rounds: 1, sample_rate: 1.0}
data: {name: folder, dir: A, num_clients: 2, partition: iid, val_fraction: 0.1}
engine: {kind: serial}
"""
RUN = "sweep/seed=0"
SWEEP = ("sweep", "grid.yaml", "--out", "sweep")
FILE = "scales.py (of the method mine:build) has changed: it was "
WAY_OUT = "--accept-changed-code"
OTHER = (FILE, WAY_OUT)


def images(folder: Path, count: int = 40) -> None:
    """Two classes of grey images, which differ in their left half."""
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 90, (count, 8, 8), dtype=np.uint8)
    rows = ["filename,label"]
    for i, pixels in enumerate(noise):
        pixels[:, :4] += 100 * np.uint8(i % 2)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        rows.append(f"{i}.png,{i % 2}")
    (folder / "labels.csv").write_text("\n".join([*rows, ""]))
    (folder / "classes.txt").write_text("dark\nbright\n")


@contextmanager
def prepared(folder: Path, settings: str) -> Iterator[Path]:
    """A folder with a finished sweep of one run and a finished search of one trial."""
    with workplace(folder) as work:
        (work / "grid.yaml").write_text(settings + "grid: {seed: [0]}\n")
        (work / "search.yaml").write_text(settings + "search: {train.lr: 'choice(0.1, 0.2)'}\n")
        yield work
        succeeded(fedsim(*SWEEP))
        succeeded(fedsim("tune", "search.yaml", "--trials", "1", "--out", "search"))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By what is going to change, code or data, the folder of what was done with it."""
    with prepared(tmp_path_factory.mktemp("code"), GRID) as code:
        (code / "mine.py").write_text(METHOD)
        (code / "scales.py").write_text("SCALE = 1.0\n")
    with prepared(tmp_path_factory.mktemp("data"), SETTINGS) as data:
        images(data / "A")
    return {"code": code, "data": data}


def copied(folder: Path, to: Path) -> Iterator[Path]:
    with workplace(to) as work:
        shutil.copytree(folder, work, dirs_exist_ok=True)
        yield work


@pytest.fixture
def code(done: dict[str, Path], tmp_path: Path) -> Iterator[Path]:
    """A copy of the folder whose code may change."""
    yield from copied(done["code"], tmp_path / "place")


@pytest.fixture
def scans(done: dict[str, Path], tmp_path: Path) -> Iterator[Path]:
    """A copy of the folder whose images may change."""
    yield from copied(done["data"], tmp_path / "place")


def edit(text: str = "SCALE = 0.5\n", file: str = "scales.py") -> None:
    """Changes a file; what is done next is done as in a new process."""
    Path(file).write_text(text)
    forget()


def forget() -> None:
    for name in ("mine", "scales"):
        sys.modules.pop(name, None)


def succeeded(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def refused(result: Result, *says: str) -> None:
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    for part in says:
        assert part in line


def environment(run: str = RUN) -> dict[str, object]:
    return dict(json.loads(Path(run, "env.json").read_bytes()))


@pytest.mark.slow
def test_a_sweep_does_not_keep_the_numbers_of_other_code(code: Path) -> None:
    assert "finished before" in succeeded(fedsim(*SWEEP)).output
    edit()
    refused(fedsim(*SWEEP), *OTHER, RUN, "d5d01336f87f, is dd0d29488f12 now")
    began = environment()["code"]
    accepted = succeeded(fedsim(*SWEEP, WAY_OUT))
    assert "finished before" in accepted.stdout
    assert f"{RUN}: {WAY_OUT}: its results are those of the code before" in accepted.stderr
    assert environment()["code"] == began != environment()["accepted_code"]
    assert "--accept-changed-code accepted" in succeeded(fedsim("show", RUN)).output
    assert "finished before" in succeeded(fedsim(*SWEEP)).output
    edit("SCALE = 1.0\n")
    assert "finished before" in succeeded(fedsim(*SWEEP)).output, "the code that trained it"
    edit("SCALE = 0.25\n")
    refused(fedsim(*SWEEP), *OTHER, "dd0d29488f12, is 7ac116c00fe3 now")


def test_an_unfinished_run_is_not_resumed_with_other_code(code: Path) -> None:
    Path(RUN, "summary.csv").unlink()
    edit()
    refused(fedsim("resume", RUN), *OTHER, RUN)
    succeeded(fedsim("resume", RUN, WAY_OUT))
    expected = environment()
    assert expected["accepted_code"] == expected["resumed"][0]["code"] != expected["code"]  # type: ignore[index]
    assert "finished before" in succeeded(fedsim(*SWEEP)).output


@pytest.mark.slow
def test_a_sweep_begins_an_unfinished_run_of_other_code_again(code: Path) -> None:
    Path(RUN, "summary.csv").unlink()
    edit()
    succeeded(fedsim(*SWEEP))
    assert Path(f"{RUN}.interrupted-1").is_dir()
    assert "accepted_code" not in environment()
    Path(RUN, "summary.csv").unlink()
    edit("SCALE = 0.25\n")
    succeeded(fedsim(*SWEEP, WAY_OUT))
    assert not Path(f"{RUN}.interrupted-2").exists()
    assert "accepted_code" in environment()


def test_predict_uses_the_code_that_trained_the_model(code: Path) -> None:
    edit()
    before = environment()
    refused(fedsim("predict", RUN, "--out", "p.csv"), *OTHER, RUN)
    assert not Path("p.csv").exists()
    accepted = succeeded(fedsim("predict", RUN, "--out", "p.csv", WAY_OUT))
    assert f"{RUN}: its models were trained with the code before the change" in accepted.stderr
    assert environment() == before, "predictions do not write into a run"


@pytest.mark.slow
def test_a_search_goes_on_with_the_code_of_its_trials(code: Path) -> None:
    pytest.importorskip("optuna")
    more = ("tune", "search.yaml", "--trials", "2", "--out", "search")
    edit()
    refused(fedsim(*more), *OTHER, "search/trial-0000/seed=0")
    succeeded(fedsim(*more, WAY_OUT))
    assert "accepted_code" in environment("search/trial-0000/seed=0")
    assert "accepted_code" not in environment("search/trial-0001/seed=0")


def test_a_file_that_changes_while_python_runs_is_refused(code: Path) -> None:
    """Ray's processes would import the new one, while this one goes on with the old one."""
    assert "finished before" in succeeded(fedsim(*SWEEP)).output
    Path("scales.py").write_text("SCALE = 0.5\n")
    changed = "scales.py: has changed since Python imported it; start Python again"
    refused(fedsim(*SWEEP), changed)
    forget()
    refused(fedsim(*SWEEP), *OTHER)


def invert() -> None:
    """Every pixel becomes 255 - x."""
    for path in Path("A").glob("*.png"):
        pixels = np.array(Image.open(path))
        Image.fromarray(255 - pixels).save(path)


def test_an_unfinished_run_does_not_go_on_with_other_pixels(scans: Path) -> None:
    Path(RUN, "summary.csv").unlink()
    invert()
    refused(
        fedsim("resume", RUN),
        f"data.dir A: the samples are not those that the run in {RUN} began with (data sha256:",
        "put the data back",
    )


@pytest.mark.slow
def test_a_sweep_does_not_keep_the_numbers_of_other_data(scans: Path) -> None:
    assert "finished before" in succeeded(fedsim(*SWEEP)).output
    invert()
    refused(fedsim(*SWEEP), "the samples are not those", RUN, "give another --out")


@pytest.mark.slow
def test_predictions_of_the_test_part_need_the_runs_own_images(scans: Path) -> None:
    succeeded(fedsim("predict", RUN, "--out", "own.csv"))
    shutil.copytree("A", "copy")
    succeeded(fedsim("predict", RUN, "--data-dir", "copy", "--split", "test", "--out", "copy.csv"))
    assert Path("own.csv").read_bytes() == Path("copy.csv").read_bytes()
    invert()
    refused(
        fedsim("predict", RUN, "--out", "p.csv"),
        "data.dir A: the samples are not those that the run in",
        "for new data: --data-dir NEW",
    )
    succeeded(fedsim("predict", RUN, "--data-dir", "A", "--out", "new.csv"))


def test_a_search_goes_on_with_the_data_of_its_trials(scans: Path) -> None:
    pytest.importorskip("optuna")
    more = ("tune", "search.yaml", "--trials", "2", "--out", "search")
    invert()
    refused(fedsim(*more), "the samples are not those", "search/trial-0000/seed=0")


@pytest.mark.slow
def test_two_versions_of_a_data_set_are_told_apart(scans: Path) -> None:
    invert()
    run = ("run", "-c", "sweep/seed=0/config.yaml", "--out", "again")
    succeeded(fedsim(*run))
    compared = succeeded(fedsim("show", RUN, "again")).output
    assert "all are equal" not in compared
    (line,) = [line for line in compared.splitlines() if line.startswith("data_digest")]
    first, second = line.split()[1:]
    assert first != second
    refused(fedsim("table", RUN, "again"), "differ in data_digest", first, second)
