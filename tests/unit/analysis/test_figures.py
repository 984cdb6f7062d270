"""Figures of the report: what is in the tables of runs reaches the axes."""

from __future__ import annotations

import json
import math
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import AnalysisError, series
from analysis.facets import facets, settings_by
from analysis.figures import (
    classes,
    curves,
    grid,
    losses,
    masks,
    partition,
    phases,
    privacy,
    style,
    updates,
)
from analysis.figures import clients as client_figures
from analysis.figures import scores as score_figure
from analysis.figures.grid import Absent, Drawing
from analysis.report.answer import outcome
from analysis.runs import Group, find, group, summaries
from analysis.scores import completed
from tests.unit.analysis.run_files import rows, run_of, write_run

LINES = style.lines(["fedavg", "fedld"])
ROUNDS = ["test_accuracy", "test_loss", "conflict_ratio", "gradient_diversity", "top_axis_share"]


def groups_of(root: Path, *by: str) -> list[Group]:
    return group(summaries(find([root])[0]), by or ("algorithm",))


def table(run: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(run / f"{name}.csv")


def drawn(found: Drawing | Absent) -> Drawing:
    assert isinstance(found, Drawing), found
    return found


def lines_of(axes: Axes) -> dict[str, np.ndarray]:
    """The y data of the labelled lines."""
    return {
        str(line.get_label()): np.asarray(line.get_ydata(), dtype=float)
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Two seeds of FedLD and one run of FedAvg."""
    return [write_run(tmp_path, *of) for of in (("fedld", 0), ("fedld", 1), ("fedavg", 0))]


# ---- settings as panels


def test_settings_become_panels_and_methods_share_them(tmp_path: Path) -> None:
    for alpha in (0.1, 10.0):
        write_run(tmp_path, "fedavg", alpha=alpha)
        write_run(tmp_path, "fedld", alpha=alpha, margin="none")
    by = ("algorithm", "alpha")
    groups = groups_of(tmp_path, *by)
    assert settings_by(by, groups) == ["alpha"]
    found = facets(groups, ["alpha"])
    assert {title: [g.label for g in inside] for title, inside in found.items()} == {
        "α = 0.1": ["fedavg", "fedld, margin=none"],  # noqa: RUF001
        "α = 10": ["fedavg", "fedld, margin=none"],  # noqa: RUF001
    }


# ---- curves


def test_accuracy_curve_is_the_mean_with_its_interval(two: list[Path]) -> None:
    groups = groups_of(two[0].parent)
    rounds = {"": series.values(groups, "rounds", ROUNDS)}
    figure = drawn(curves.draw(rounds, "accuracy", "seed", LINES)).figure
    first, second = (100 * table(run, "rounds")["test_accuracy"].to_numpy() for run in two[:2])
    accuracy, loss = figure.axes
    assert lines_of(accuracy)["FedLD"] == pytest.approx((first + second) / 2)
    # t(0.975, 1) = 12.7062047362; s = |a - b| / sqrt(2); half = t s / sqrt(2) = t |a - b| / 2
    half = 12.7062047362 * np.abs(first - second) / 2
    (band,) = accuracy.collections
    ends = band.get_paths()[0].vertices[:, 1]
    middle = (first + second) / 2
    assert ends.min() == pytest.approx((middle - half).min().clip(0))
    assert ends.max() == pytest.approx((middle + half).max().clip(max=100))
    assert lines_of(loss)["FedAvg"] == pytest.approx(table(two[2], "rounds")["test_loss"])
    (legend,) = figure.legends
    assert legend.get_title().get_text().startswith("Mean over 1 to 2 seeds")
    assert {text.get_text() for text in legend.get_texts()} == {"FedAvg", "FedLD"}


def test_a_curve_ends_where_seeds_end() -> None:
    index = pd.MultiIndex.from_tuples([(0, 1), (1, 1), (0, 2)], names=["seed", "round"])
    values = pd.DataFrame({"a": [1.0, 3.0, 9.0]}, index=index)
    aggregate = {"x": series.over_units(values, ["round"])}
    assert grid.curves(aggregate, "a")["x"]["mean"].to_dict() == {1: 2.0}
    assert grid.curves(aggregate, "b") == {}


def test_one_method_has_one_colour_everywhere(two: list[Path]) -> None:
    together = {"": groups_of(two[0].parent)}
    colour = style.lines(["fedavg", "fedld"])["fedld"].colour
    assert drawn(losses.by_round(together)).figure.axes[0].lines[1].get_color() == colour
    figure = drawn(client_figures.by_client(together)).figure
    dots = [c for c in figure.axes[0].collections if isinstance(c, PathCollection)]
    assert to_hex(dots[1].get_facecolor()[0]) == colour.lower()


# ---- loss terms


def test_terms_are_signed_and_zero_is_marked(two: list[Path]) -> None:
    figure = drawn(losses.by_round({"": groups_of(two[0].parent)})).figure
    shift, aggregation = figure.axes[1:3]
    assert aggregation.get_ylabel() == "Aggregation loss (nats)"
    wanted = table(two[2], "decomposition")["aggregation_loss"]
    assert lines_of(aggregation)["FedAvg"] == pytest.approx(wanted)
    assert lines_of(aggregation)["FedAvg"].max() < 0
    for axes, marked in zip(figure.axes, (False, True, True, False), strict=True):
        assert any(list(line.get_ydata()) == [0, 0] for line in axes.lines) is marked
    assert shift.get_ylim()[0] <= 0


def test_every_split_and_scope_has_its_row_of_panels(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    frame = table(run, "decomposition")
    more = frame.assign(split="test", scope="cohort", local_loss=9.0)
    pd.concat([frame, more]).to_csv(run / "decomposition.csv", index=False)
    found = drawn(losses.by_round({"": groups_of(tmp_path)}))
    titles = [axes.get_title(loc="left") for axes in found.figure.axes]
    assert titles == ["test, cohort", "train, population"] + [""] * 6
    assert [axes.get_ylabel() for axes in found.figure.axes[::2]] == list(losses.TERMS.values())
    assert set(lines_of(found.figure.axes[0])["FedAvg"]) == {9.0}
    assert "training data (all clients)" in found.caption


# ---- Fig. 2


def write_losses(run: Path, shift: list[float], aggregation: list[float]) -> None:
    frame = table(run, "decomposition").iloc[: len(shift)]
    frame.assign(shift_loss=shift, aggregation_loss=aggregation).to_csv(
        run / "decomposition.csv", index=False
    )


@pytest.mark.slow
def test_fig2_by_hand(tmp_path: Path) -> None:
    for alpha, scale in ((100.0, 1.0), (0.01, 2.0)):
        for seed in (0, 1):
            plain = write_run(tmp_path, "fedavg", seed, alpha=alpha)
            write_losses(plain, [scale, 3 * scale], [-scale - seed, -4 * scale])
            margin = write_run(tmp_path, "fedld", seed, alpha=alpha, server="fedavg")
            write_losses(margin, [-scale, scale], [7, 7])
            principal = write_run(tmp_path, "fedld", seed, alpha=alpha, margin="none")
            write_losses(principal, [8, 8], [scale, -scale])
            write_run(tmp_path, "fedld", seed, alpha=alpha)
    groups = groups_of(tmp_path, "algorithm", "alpha")
    found = drawn(losses.by_alpha({"": groups}))
    last_shift, last_aggregation, mean_shift, mean_aggregation = found.figure.axes
    # of each the values at alpha 0.01 and 100; the last round, then the mean of |.| over rounds
    assert {k: v.tolist() for k, v in lines_of(last_shift).items()} == {
        "Shift: cross-entropy": [6, 3], "Shift: margin control": [2, 1],
    }  # fmt: skip
    assert lines_of(last_aggregation)["Aggregation: weighted mean"].tolist() == [8, 4]
    assert lines_of(mean_shift)["Shift: cross-entropy"].tolist() == [4, 2]
    assert lines_of(mean_shift)["Shift: margin control"].tolist() == [2, 1]
    # seed 0: (2 + 8) / 2 = 5, seed 1: (3 + 8) / 2 = 5.5; and 2.5, 3
    assert lines_of(mean_aggregation)["Aggregation: weighted mean"].tolist() == [5.25, 2.75]
    assert lines_of(mean_aggregation)["Aggregation: principal"].tolist() == [2, 1]
    low, high = last_shift.get_xlim()
    assert low > high
    assert last_shift.get_xscale() == "log"
    assert {line.get_color() for line in last_shift.lines} == {style.RED}
    assert {line.get_color() for line in last_aggregation.lines} == {style.BLUE}


# ---- agreement of updates


def test_cosines_of_the_last_round_are_sorted_within_each_run(two: list[Path]) -> None:
    found = drawn(updates.cosines({"": groups_of(two[0].parent)}))
    sorted_ones = [
        np.sort(frame["cosine"][frame["round"] == 6])
        for frame in (table(run, "cosines") for run in two[:2])
    ]
    left, right = found.figure.axes
    assert lines_of(left)["FedLD"] == pytest.approx(np.mean(sorted_ones, axis=0))
    assert left.lines[0].get_xdata()[[0, -1]] == pytest.approx([0, 100])
    spectrum = table(two[2], "spectrum")
    last = 100 * spectrum["share"][spectrum["round"] == 6]
    assert lines_of(right)["FedAvg"] == pytest.approx(last)


def test_agreement_by_round(two: list[Path]) -> None:
    groups = groups_of(two[0].parent)
    values = {"": series.values(groups, "rounds", ROUNDS)}
    conflicts, diversity, share = drawn(updates.agreement(values, "seed", LINES)).figure.axes
    own = table(two[2], "rounds")
    assert lines_of(conflicts)["FedAvg"] == pytest.approx(100 * own["conflict_ratio"])
    assert lines_of(diversity)["FedAvg"] == pytest.approx(own["gradient_diversity"])
    assert lines_of(share)["FedAvg"] == pytest.approx(100 * own["top_axis_share"])
    old = {"": series.values(groups, "rounds", ROUNDS[:3])}
    assert len(drawn(updates.agreement(old, "seed", LINES)).figure.axes) == 1


# ---- clients, groups, classes


def test_a_dot_is_a_client_on_its_own_test_part(two: list[Path]) -> None:
    found = drawn(client_figures.by_client({"": groups_of(two[0].parent)}))
    (axes,) = found.figure.axes
    dots = [c for c in axes.collections if isinstance(c, PathCollection)]
    frames = [table(run, "evaluations") for run in two[:2]]
    means = pd.concat(
        frame[(frame["round"] == 6) & (frame["split"] == "own_test")] for frame in frames
    )
    expected = 100 * means.dropna(subset="client_id").groupby("client_id")["accuracy"].mean()
    assert np.asarray(dots[1].get_offsets())[:, 0] == pytest.approx(expected.to_numpy())
    assert "its own test part" in found.caption
    assert [t.get_text() for t in axes.get_yticklabels()] == ["FedAvg", "FedLD"]


def test_groups_of_test_samples(two: list[Path]) -> None:
    found = drawn(client_figures.by_group({"": groups_of(two[0].parent)}))
    (axes,) = found.figure.axes
    frame = table(two[2], "evaluations")
    last = frame[(frame["round"] == 6) & frame["group"].notna()].set_index("group")["accuracy"]
    # FedAvg is in row 0, one run: a grey line between the groups, then a marker each
    own = [line for line in axes.lines if list(line.get_ydata())[:1] == [0]]
    places = [np.asarray(line.get_xdata(), dtype=float) for line in own]
    assert places[0] == pytest.approx(100 * np.sort(last))
    wanted = [100 * last["aligned"], 100 * last["conflicting"]]
    assert [float(p[0]) for p in places[1:3]] == pytest.approx(wanted)
    assert [t.get_text() for t in found.figure.legends[0].get_texts()] == ["aligned", "conflicting"]


def test_recall_by_class(two: list[Path]) -> None:
    recall, auc = classes.by_class({"": groups_of(two[0].parent)})
    assert isinstance(auc, Absent)
    figure = drawn(recall).figure
    (mesh,) = (c for c in figure.axes[0].collections if isinstance(c, QuadMesh))
    recalls = [
        frame["recall"][frame["round"] == 6].to_numpy()
        for frame in (table(run, "classes") for run in two)
    ]
    cells = np.asarray(mesh.get_array()).reshape(2, -1)
    assert cells[0] == pytest.approx(100 * recalls[2])
    assert cells[1] == pytest.approx(50 * (recalls[0] + recalls[1]))
    assert [t.get_text() for t in figure.axes[0].texts[:4]] == [f"{v:.0f}" for v in cells[0]]


def test_confusion_is_the_share_of_each_class_over_seeds(tmp_path: Path) -> None:
    header = "round,label,prediction,count"
    for seed, lines in enumerate((("2,0,0,8", "2,1,0,1", "2,1,1,3"), ("2,0,1,5", "2,1,1,9"))):
        folder = run_of(tmp_path, "fedld", seed, [0.5, 0.5])
        rows(folder, "confusion", header, "1,1,0,100", *lines)
        (folder / "env.json").write_text(json.dumps({"classes": ["no", "yes"]}))
    shown = drawn(classes.confusion({"": groups_of(tmp_path)}))
    axes = shown.figure.axes[0]
    (mesh,) = (c for c in axes.collections if isinstance(c, QuadMesh))
    # class 0: (100 + 0) / 2 right; class 1: 1 of 4 and 0 of 9 taken for 0
    assert np.asarray(mesh.get_array()).ravel().tolist() == [50, 50, 12.5, 87.5]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["no", "yes"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["no", "yes"]


def test_the_first_figure_shows_means_seeds_and_the_guess(tmp_path: Path) -> None:
    for name, values in (("fedavg", (0.5, 0.7)), ("fedld", (0.9, 0.98))):
        for seed, value in enumerate(values):
            folder = run_of(tmp_path, name, seed, [value])
            header = "round,label,support,recall,precision"
            rows(folder, "classes", header, "1,0,30,0.9,1", "1,1,10,0.4,1")
    groups = group(completed(summaries(find([tmp_path])[0]), ()))
    shown = score_figure.draw(outcome({"": groups}, "accuracy", {}), [])
    (axes,) = shown.figure.axes
    seeds = [line for line in axes.lines if line.get_marker() == "|" and len(line.get_xdata()) == 2]
    assert [sorted(line.get_xdata()) for line in seeds[:2]] == [
        pytest.approx([50, 70]), pytest.approx([90, 98]),
    ]  # fmt: skip
    assert [text.get_text() for text in axes.texts] == ["60.00", "94.00"]
    # 30 of 40 samples are of class 0
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"] == [75]
    # 94 +- 12.7 * 4 ends at 100 per cent, 60 +- 127 at 0
    ends = [path.vertices[:, 0] for c in axes.collections for path in c.get_paths()]
    assert [list(end) for end in ends] == [[0, 100], [pytest.approx(43.175, abs=1e-3), 100]]


# ---- partition and time


def test_clients_that_never_train_are_marked_in_the_partition(tmp_path: Path) -> None:
    run = write_run(tmp_path, clients=3)
    (run / "env.json").write_text('{"heldout_clients": [1]}', encoding="utf-8")
    attacked = write_run(tmp_path, "krum", clients=3)
    shutil.copy(run / "env.json", attacked)
    table(attacked, "partition").assign(malicious=0).to_csv(attacked / "partition.csv", index=False)
    (drawing,) = partition.drawings(groups_of(tmp_path))
    cells = drawn(drawing).figure.subfigs[0].axes[1]
    names = [label.get_text() for label in cells.get_xticklabels()]
    assert names == ["0", "1 (held out)", "2"]


def test_phases_add_up_to_the_round(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    rows = [(t, p, s * t, 0) for t in (1, 3) for p, s in (("train", 2), ("odd", 1), ("total", 4))]
    frame = pd.DataFrame(rows, columns=["round", "phase", "seconds", "bytes"])
    frame.to_csv(run / "timings.csv", index=False)
    (axes,) = drawn(phases.draw({"": groups_of(tmp_path)})).figure.axes
    # rounds 1 and 3: train (2 + 6) / 2 = 4, total (4 + 12) / 2 = 8, so 4 seconds of other
    widths = {c.get_label(): c.patches[0].get_width() for c in axes.containers}
    assert widths == {"train": 4, "other": 4}
    assert [t.get_text() for t in axes.texts] == ["8"]


@pytest.mark.parametrize(
    ("draw", "flag"),
    [
        (updates.cosines, "--cosines"),
        (client_figures.by_client, "--evaluate-clients-every"),
        (lambda facets: next(classes.by_class(facets)), "classes.csv"),
    ],
)
def test_absent_tables_name_what_makes_them(tmp_path: Path, draw, flag: str) -> None:
    write_run(tmp_path, tables=())
    found = draw({"": groups_of(tmp_path)})
    assert isinstance(found, Absent)
    assert flag in found.reason


@pytest.mark.parametrize("lengths", [(73, 50, 43, 59, 11), (40, 40, 40, 40), (9,) * 7])
def test_a_legend_of_long_names_is_no_wider_than_the_figure(lengths: tuple[int, ...]) -> None:
    names = [chr(ord("a") + i) + "x" * (length - 1) for i, length in enumerate(lengths)]
    with style.look():
        figure = Figure(figsize=(grid.WIDTH, 4))
        grid.legend(figure, [Line2D([], []) for _ in names], names, "note")
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_the_last_rounds_accuracy_against_epsilon(tmp_path: Path) -> None:
    """By hand: means over two seeds; what is without noise goes from the least to the largest."""
    noise = {"eps 8": 1.0, "open": 0.0, "eps 2": 3.0}
    spent = {"eps 8": 8.0, "open": math.nan, "eps 2": 1.9999}
    finals = {"eps 8": (0.8, 0.9), "open": (0.9, 0.94), "eps 2": (0.5, 0.7)}
    grid_rows = {}
    for method, (name, values) in product("AB", finals.items()):
        for seed, final in enumerate(values):
            given = {"label": f"{method}, {name}", "dp.noise_multiplier": noise[name]}
            run = run_of(tmp_path, method, seed, [0.1, final], **given)
            columns = {"round": [1, 2], "test_accuracy": [0.1, final]}
            columns["epsilon"] = [spent[name] / 2, spent[name]]
            pd.DataFrame(columns).to_csv(run / "rounds.csv", index=False)
            grid_rows[run.name] = {"privacy": name}
    written = {"runs": [*grid_rows], "rows": [*grid_rows.values()]}
    (tmp_path / "sweep.json").write_text(json.dumps(written))
    groups = groups_of(tmp_path, "label")
    (axes,) = privacy.figure(groups, ["test_accuracy"]).axes
    points = {line.get_label(): np.asarray(line.get_xydata()) for line in axes.lines}
    assert list(points) == ["A", "A, no noise", "B", "B, no noise"]
    np.testing.assert_allclose(points["A"], [[2, 60], [8, 85]])
    np.testing.assert_allclose(points["B, no noise"], [[2, 92], [8, 92]])
    assert axes.get_xlim()[0] < axes.get_xlim()[1]
    (tmp_path / "sweep.json").unlink()
    unlisted = [one for one in groups_of(tmp_path, "label") if one.label.startswith("A")]
    assert {*privacy.lines_of(unlisted).values()} == {"A"}
    with pytest.raises(AnalysisError, match="no run has noise"):
        privacy.figure([one for one in groups if "open" in one.label], ["test_accuracy"])


# ---- images with masks


def test_true_and_predicted_masks_are_outlined_on_their_images(two: list[Path]) -> None:
    """A row for the only method with examples, two images of each of two sites; the square of the
    first image is outlined where it is, and its prediction, a row lower, there."""
    rng = np.random.default_rng(0)
    true = np.zeros((6, 8, 8), np.uint8)
    true[:, 2:5, 3:6] = 1
    true[:, 0, 0] = 255  # counts nowhere
    arrays = {
        "images": rng.integers(0, 256, (6, 1, 8, 8), np.uint8),
        "masks": true,
        "predictions": np.roll(np.where(true == 1, true, 0), 1, axis=1).astype(np.uint8),
        "clients": np.repeat(["north", "south"], 3),
    }
    np.savez(two[0] / "examples.npz", **arrays)
    groups = groups_of(two[0].parent)
    (drawing,) = masks.drawings(facets(groups, []))
    assert "Not shown: FedAvg" in drawing.caption
    axes = [one for one in drawing.figure.axes if one.images]
    assert [one.get_title() for one in axes] == ["north", "north", "south", "south"]
    np.testing.assert_array_equal(axes[2].images[0].get_array(), arrays["images"][3, 0])
    solid, dashed = (one.get_paths()[0].vertices for one in axes[0].collections)
    assert (solid.min(0).tolist(), solid.max(0).tolist()) == ([2.5, 1.5], [5.5, 4.5])
    assert (dashed - solid).mean(0).tolist() == pytest.approx([0, 1])


def test_runs_without_masks_have_no_such_figure(two: list[Path]) -> None:
    (two[0] / "examples.npz").write_bytes(b"PK damaged")
    assert not list(masks.drawings(facets(groups_of(two[0].parent), [])))
