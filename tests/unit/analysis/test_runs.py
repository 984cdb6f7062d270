"""Runs are found, read, named and grouped; curves and commands made of them."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from fedsim_analysis.labels import with_labels

from analysis import AnalysisError
from analysis.cli import main
from analysis.figures import curves, style
from analysis.files import read_partition, read_table
from analysis.labels import title_of
from analysis.runs import conditions, default_by, differing, find, group, settings, summaries
from analysis.words import listed, say, sentences
from tests.commands import clean_environment
from tests.unit.analysis.run_files import Floats, groups_of, run_of


def make_run(
    root: Path, algorithm: str, seed: int, accuracies: list[float], **settings: object
) -> Path:
    """A run with a loss, an empty AUC and a setting of the method."""
    folder = run_of(root, algorithm, seed, accuracies, **{f"{algorithm}.weight": 0.1, **settings})
    frame = pd.read_csv(folder / "rounds.csv")
    frame.assign(test_loss=1 / frame["round"], test_auc=None).to_csv(
        folder / "rounds.csv", index=False
    )
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two methods, three and two seeds, three rounds."""
    root = tmp_path / "runs"
    for seed, last in enumerate((0.80, 0.84, 0.88)):
        make_run(root, "fedld", seed, [0.1, 0.5, last])
    for seed, last in enumerate((0.70, 0.90)):
        make_run(root / "deep" / "er", "fedavg", seed, [0.1, last, 0.6])
    return root


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_runs_are_found_at_any_depth_and_once(runs: Path) -> None:
    finished, unfinished = find([runs, runs / "deep", next(runs.glob("fedld*"))])
    assert len(finished) == 5
    assert unfinished == []


def test_groups_come_in_the_papers_order(runs: Path) -> None:
    assert [(g.label, list(g.runs["seed"])) for g in groups_of(runs)] == [
        ("fedavg", [0, 1]), ("fedld", [0, 1, 2]),
    ]  # fmt: skip


def test_grouping_by_a_setting(runs: Path) -> None:
    for alpha in (10.0, 0.1):
        make_run(runs, "fedld", 0, [0.3], alpha=alpha, rounds=3)
    with pytest.raises(AnalysisError, match=r"differ in alpha \(0.1, 0.5, 10\).*--by alpha"):
        groups_of(runs)
    labels = [g.label for g in groups_of(runs, "algorithm", "alpha")]
    assert labels == [
        "fedavg, alpha=0.5", "fedld, alpha=0.1", "fedld, alpha=0.5", "fedld, alpha=10",
    ]  # fmt: skip


def test_margin_and_server_make_methods_of_their_own(runs: Path) -> None:
    make_run(runs, "fedld", 0, [0.1, 0.2, 0.3], margin="none")
    make_run(runs, "fedld", 0, [0.1, 0.2, 0.3], server="fedavg", alpha=0.5)
    found = groups_of(runs)
    assert [(g.label, len(g.runs)) for g in found] == [
        ("fedavg", 2), ("fedld", 3), ("fedld, margin=none", 1), ("fedld, server=fedavg", 1),
    ]  # fmt: skip
    assert [title_of(g.label) for g in found[2:]] == [
        "Principal aggregation only", "Margin control only",
    ]  # fmt: skip
    make_run(runs, "fedavg", 0, [0.1, 0.2, 0.3], margin="none", alpha=10.0)
    assert [g.label for g in groups_of(runs, "alpha", "algorithm")] == [
        "fedavg, alpha=0.5", "fedavg, margin=none, alpha=10", "fedld, alpha=0.5",
        "fedld, margin=none, alpha=0.5", "fedld, server=fedavg, alpha=0.5",
    ]  # fmt: skip


def test_what_no_result_depends_on_may_differ(runs: Path) -> None:
    harmless = {
        "engine.kind": "serial", "evaluation.decompose_every": 5, "evaluation.cosines": True,
        "evaluation.clients_every": 2, "evaluation.loss_matrix": True, "train.threads": 4,
        "evaluation.batch_size": 8, "final_val_accuracy": 0.3, "best_val_accuracy": 0.4,
    }  # fmt: skip
    make_run(runs, "fedld", 7, [0.1, 0.2, 0.3], **harmless)
    found = groups_of(runs)
    assert list(found[1].runs["seed"]) == [0, 1, 2, 7]
    assert not set(harmless) & set(settings(found[1].runs))
    make_run(runs, "fedld", 8, [0.1, 0.2, 0.3], **{"evaluation.every": 2})
    with pytest.raises(AnalysisError, match=r"differ in evaluation\.every \(2, unset\)"):
        groups_of(runs)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    with pytest.raises(AnalysisError, match=r"a\.csv: there is no such file"):
        read_table(file, ("round",))
    file.write_text("")
    with pytest.raises(AnalysisError, match=r"a\.csv: cannot be read as CSV"):
        read_table(file, ("round",))
    file.write_text("round,loss\n1,2\n2,3,4\n")
    with pytest.raises(AnalysisError, match=r"cannot be read as CSV \(.*line 3"):
        read_table(file, ("round",))
    file.write_text("round,loss\n1,2\n2,oops\n")
    with pytest.raises(AnalysisError, match=r"a\.csv: no column acc; it has round, loss"):
        read_table(file, ("round", "acc"))
    with pytest.raises(AnalysisError, match=r"a\.csv, line 3: loss is 'oops', not a number"):
        read_table(file, ("round", "loss"))


def test_series_takes_the_rounds_that_all_seeds_have(tmp_path: Path) -> None:
    nan = math.nan
    make_run(tmp_path, "fedld", 0, [0.1, nan, 0.3, 0.4])
    make_run(tmp_path, "fedld", 1, [0.2, 0.9, nan, 0.6])
    (only,) = groups_of(tmp_path)
    assert curves.by_round(only, "test_accuracy").to_dict("index") == {
        1: {0: 0.1, 1: 0.2}, 4: {0: 0.4, 1: 0.6},
    }  # fmt: skip


def test_smoothing_is_the_mean_of_the_last_values(tmp_path: Path) -> None:
    make_run(tmp_path, "fedld", 0, [0.1, 0.3, 0.8])
    (only,) = groups_of(tmp_path)
    # 0.1; (0.1 + 0.3) / 2; (0.3 + 0.8) / 2
    got = curves.by_round(only, "test_accuracy", smooth=2)[0].tolist()
    assert got == pytest.approx([0.1, 0.2, 0.55])


def test_empty_metric_is_named(runs: Path) -> None:
    with pytest.raises(AnalysisError, match=r"rounds\.csv: the column test_auc is empty"):
        curves.by_round(groups_of(runs)[0], "test_auc")
    with pytest.raises(AnalysisError, match=r"rounds\.csv: no column val_loss; it has round"):
        curves.by_round(groups_of(runs)[0], "val_loss")


def test_figure_shows_means_and_bands(runs: Path) -> None:
    make_run(runs, "fedprox", 0, [0.2, 0.3, 0.4])
    figure = curves.figure(groups_of(runs))
    accuracy, loss = figure.axes
    assert (accuracy.get_ylabel(), loss.get_ylabel()) == ("Test accuracy (%)", "Test loss (nats)")
    drawn = {str(line.get_label()): line for line in accuracy.lines}
    assert list(drawn) == ["FedAvg", "FedProx", "FedLD"]
    assert drawn["FedLD"].get_ydata() == pytest.approx([10, 50, 84])
    assert drawn["FedLD"].get_color() == style.PALETTE[2]
    assert len(accuracy.collections) == 2
    assert "1 to 3 seeds" in figure.legends[0].get_title().get_text()
    assert 0 >= accuracy.get_ylim()[0] >= -1


def test_partition_is_read_from_file_or_run(tmp_path: Path) -> None:
    file = tmp_path / "partition.csv"
    file.write_text("client_id,label,train_samples\n0,0,5\n1,1,7\n")
    assert read_partition(file).equals(read_partition(tmp_path))
    file.write_text("client_id,label,train_samples\n")
    with pytest.raises(AnalysisError, match="no rows"):
        read_partition(file)


# ---- style


def test_forty_methods_have_lines_of_their_own() -> None:
    assert len(set(style.lines([f"m{index}" for index in range(40)]).values())) == 40


SEEN = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
     [-0.011820, 0.042940, 0.968881]]
)  # fmt: skip
"""Deuteranopia on linear RGB (Machado, Oliveira and Fernandes, 2009, table 1, severity 1)."""


def lab(colour: str, *, deuteranopia: bool) -> Floats:
    """CIE Lab (D65) of a colour such as ``#E69F00``."""
    srgb = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    rgb = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    if deuteranopia:
        rgb = np.clip(SEEN @ rgb, 0, 1)
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
         [0.0193339, 0.1191920, 0.9503041]]
    )  # fmt: skip
    xyz = to_xyz @ rgb / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("deuteranopia", [False, True])
def test_ten_methods_have_colours_that_can_be_told_apart(deuteranopia: bool) -> None:
    seen = [lab(colour, deuteranopia=deuteranopia) for colour in style.PALETTE]
    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
    assert len(seen) == 10
    assert min(distances) > 15


@pytest.mark.slow
def test_a_panel_per_setting_and_a_line_per_method_of_the_same_colour(tmp_path: Path) -> None:
    for alpha in (0.1, 1.0, 10.0):
        for method in ("fedavg", "fedprox", "scaffold", "mine"):
            run_of(tmp_path, method, 0, [0.2, 0.4], alpha=alpha)
    groups = groups_of(tmp_path, "algorithm", "alpha")
    found = curves.figure(groups, ["test_accuracy"], settings=["alpha"])
    shown = [axes for axes in found.axes if axes.get_visible()]
    assert [axes.get_title("left").partition(" = ")[2] for axes in shown] == ["0.1", "1", "10"]
    colours = [[line.get_color() for line in axes.lines] for axes in shown]
    assert len(set(colours[0])) == 4
    assert colours == [colours[0]] * 3


def test_titles() -> None:
    assert title_of("fedld_released") == "FedLD (released)"
    assert title_of("fedprox, fedprox.mu=0.1") == "FedProx, fedprox.mu=0.1"
    assert title_of("mine") == "mine"
    assert title_of("fedld, margin=none, alpha=1") == "Principal aggregation only, alpha=1"
    assert title_of("fedld, margin=nonesuch") == "FedLD, margin=nonesuch"
    assert title_of("fedld2, alpha=1") == "fedld2, alpha=1"


def test_unfinished_runs_are_left_out_aloud(runs: Path) -> None:
    (gone,) = runs.glob("fedld*-2")
    (gone / "summary.csv").unlink()
    result = invoke("table", runs)
    assert "| FedLD | 2 |" in result.stdout
    assert result.stderr == f"left out {gone}: no summary.csv, the run has not finished\n"
    alone = invoke("table", gone)
    assert alone.exit_code == 2
    assert "Error: no finished run" in alone.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table", "{}/none"), "none: there is no such folder"),
        (("table", "{}"), "no run directory (a folder with rounds.csv) here"),
        (("table", "{}", "--out", "{}/t.xls"), "t.xls: a table is a file named .md, .csv, .tex"),
        (("table", "{}", "--out", "{}/none/t.md"), "none does not exist"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = invoke(*(argument.format(tmp_path) for argument in arguments))
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.integration
def test_analysis_imports_neither_torch_nor_ray_and_of_fedsim_little() -> None:
    code = (
        "import sys, analysis.cli; packages = {'.'.join(m.split('.')[:2]) for m in sys.modules}; "
        "print(*sorted(p for p in packages if p in ('torch', 'ray') or p.startswith('fedsim.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(__file__).resolve().parents[3], env=clean_environment(),
    )  # fmt: skip
    assert done.stdout.split() == [
        "fedsim.attacks", "fedsim.compressors", "fedsim.config", "fedsim.core", "fedsim.systems",
        "fedsim.version",
    ], "the declarations of keys and columns"  # fmt: skip


def test_runs_on_other_data_are_no_seeds_of_one_method(tmp_path: Path) -> None:
    for seed, data in enumerate(("sha256:a", "sha256:b", None)):
        run_of(tmp_path, "fedavg", seed, [0.5], data_digest=data)
    with pytest.raises(
        AnalysisError, match=r"data_digest \(sha256:a, sha256:b\).*--by data_digest"
    ):
        groups_of(tmp_path)
    labels = [group.label for group in groups_of(tmp_path, "algorithm", "data_digest")]
    assert labels == ["fedavg", "fedavg, data_digest=sha256:a", "fedavg, data_digest=sha256:b"]
    assert conditions(labels[1]) == "data_digest=sha256:a", "not ranked with those of other data"


def test_data_that_are_drawn_anew_for_each_partition_are_one_methods(tmp_path: Path) -> None:
    for draw, data in enumerate(("sha256:a", "sha256:b")):
        drawn = {"dataset": "discs", "data.seed": draw, "data_digest": data}
        run_of(tmp_path, "fedavg", 0, [0.5], **drawn)
    (one,) = group(summaries(find([tmp_path])[0]), ("algorithm",), "partition")
    assert len(one.runs) == 2


def test_a_label_may_be_tuned_for_each_partition(tmp_path: Path) -> None:
    for method, rates in (("fedavg", (0.1, 0.3)), ("fedprox", (0.2, 0.2))):
        for draw, rate in enumerate(rates):
            for seed in (0, 1):
                of_partition = {"data.seed": draw, "train.lr": rate}
                run_of(tmp_path / str(draw), method, seed, [0.5], label=method, **of_partition)
    table = summaries(find([tmp_path])[0])
    groups = group(table, ("label",), "partition")
    assert differing(groups)["train.lr"].to_dict() == {"fedavg": "0.1, 0.3", "fedprox": "0.2"}
    assert [len(found.runs) for found in group(table, ("algorithm",), "partition")] == [4, 4]
    table.loc[table.index[0], "train.lr"] = 0.5
    with pytest.raises(AnalysisError, match=r"the runs of fedavg differ in train\.lr \(0.1, 0.5\)"):
        group(table, ("label",), "partition")


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 9},
        {"clock.mode": "async", "async.buffer": 5, "rounds": 9},
        {"clock.samples_per_second": 100},
        {"attack.name": "alie", "attack.scale": 1.5},
        {"dataset": "retinamnist", "num_clients": 9, "data.partition": "shards"},
        {"evaluation.every": 5, "model": "mlp"},
    ],
)  # fmt: skip
def test_rows_with_a_name_are_groups_whatever_differs(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    for seed in (0, 1):
        run_of(tmp_path, "fedavg", seed, [0.5], label="one")
        run_of(tmp_path, "fedavg", seed, [0.5], label="other", **settings)
    assert [(one.label, len(one.runs)) for one in groups_of(tmp_path, "label")] == [
        ("one", 2), ("other", 2),
    ]  # fmt: skip
    with pytest.raises(AnalysisError, match=f"differ in .*{next(iter(settings))}"):
        groups_of(tmp_path, "algorithm")
    run_of(tmp_path, "fedprox", 2, [0.5], label="one", **settings)
    with pytest.raises(AnalysisError, match="the runs of one differ"):
        groups_of(tmp_path, "label")


def test_runs_without_a_name_are_told_apart_by_what_they_differ_in(runs: Path) -> None:
    make_run(runs, "fedprox", 1, [0.1, 0.2, 0.3], alpha=0.1, **{"data.seed": 3})
    table = summaries(find([runs])[0])
    assert default_by(table) == ["label", "alpha"]
    assert default_by(table[table["algorithm"] == "fedld"]) == ["label"]
    shown = invoke("table", runs, "--at", "final")
    assert "| FedProx, alpha=0.1 | 1 |" in shown.stdout
    assert shown.stderr == "the runs differ in alpha: grouped as with --by label --by alpha\n"


def test_a_run_that_is_repeated_counts_once(tmp_path: Path) -> None:
    first, last = (run_of(tmp_path / name, "fedld", 0, [0.5, 0.6]) for name in "ab")
    shown = invoke("table", tmp_path, "--at", "final")
    assert "| FedLD | 1 | 60.00 |" in shown.stdout
    assert shown.stderr == f"left out {first}: a later run is the same\n"
    (last / "summary.csv").write_text((last / "summary.csv").read_text().replace("0.6", "0.7"))
    assert "two runs with seed 0" in invoke("table", tmp_path).stderr


NAN = float("nan")


def labels_of(**columns: list[object]) -> list[str]:
    return with_labels(pd.DataFrame(columns, dtype=object))["label"].tolist()


@pytest.mark.parametrize(
    ("algorithm", "server", "label"),
    [
        ("fedld", NAN, "fedld"),
        ("fedprox", "fedgh,fedadam", "fedprox, server=fedgh,fedadam"),
        ("my_method:build", "fedgh", "my_method, server=fedgh"),
        ("pack.rules:build", NAN, "rules"),
        ("rules:Toy", NAN, "Toy"),
        ("fedavg", "lib/my.py:fedexp,fedadam", "fedavg, server=fedexp,fedadam"),
        ("C:\\own\\my.py:build", NAN, "my"),
    ],
)
def test_methods_of_the_user_have_the_name_of_their_function(algorithm, server, label) -> None:
    assert labels_of(algorithm=[algorithm], server=[server]) == [label]


def test_functions_of_the_same_name_keep_their_module() -> None:
    own = ["a:fedexp", "b:fedexp", "c:other", "d:fedavg", "fedavg"]
    assert labels_of(algorithm=own) == ["a:fedexp", "b:fedexp", "other", "d:fedavg", "fedavg"]


def test_a_given_name_wins() -> None:
    table = pd.DataFrame({"label": ["Mine", NAN], "algorithm": ["fedavg", "fedavg"], "n": [1, 2]})
    named = with_labels(table)
    assert list(named) == ["algorithm", "n", "label"]
    assert named["label"].tolist() == ["Mine", "fedavg"]


@pytest.mark.parametrize(("count", "runs"), [(1, "1 run"), (3, "3 runs"), (0, "0 runs")])
def test_a_count_has_the_plural_of_its_noun(count: int, runs: str) -> None:
    text = say("caption.left_out", runs={"why": ["{a}"] * count}, most=1)
    assert text.startswith(f"Left out: {runs} (why): {{a}}" if count else "")


def test_lists_and_sentences() -> None:
    assert sentences("A.", "", "B.") == "A. B."
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"
