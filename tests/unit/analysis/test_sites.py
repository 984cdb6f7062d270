"""``fedsim table --metric sites``: every site by name, and whom a method helps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.facets import Facets
from analysis.figures import scores as score_figure
from analysis.report import answer
from analysis.report.outcome import outcome
from analysis.runs import find, group, summaries, unit_among
from analysis.scores import completed
from analysis.tables import scores as tables
from analysis.tables import sites as site_tables
from analysis.tables.sites import BY_SITE, by_setting
from tests.unit.analysis.run_files import rows, run_of

NAMES = ("Zürich & Söhne", "clinic_b", "St. Mary's, ward 2")
Accuracies = Mapping[str, Sequence[Sequence[float]]]


def sites(
    root: Path, accuracies: Accuracies, tuned: Accuracies | None = None,
    names: Sequence[str] = NAMES, unit: str = "partition",
) -> None:  # fmt: skip
    """Runs with a final_clients.csv: by method and partition the accuracy of each site."""
    header = "client_id,held_out,split,num_samples,loss,accuracy,finetuned_loss,finetuned_accuracy"
    for method, by_seed in accuracies.items():
        for seed, values in enumerate(by_seed):
            drawn = {"data.seed": seed} if unit == "partition" else {"data.seed": 0}
            run = run_of(root, method, 0 if unit == "partition" else seed, [0.3], **drawn)
            fine = (tuned or {}).get(method)
            lines = [
                f"{client},0,own_test,20,1.0,{value},,{'' if fine is None else fine[seed][client]}"
                for client, value in enumerate(values)
            ]
            rows(run, "final_clients", header, *lines)
            of = pd.DataFrame({"client_id": range(len(values)), "label": 0, "name": names})
            trained = 100 + of["client_id"] + (seed == 0) * (len(by_seed) > 3)
            of = of.assign(train_samples=trained, test_samples=20)
            of.to_csv(run / "partition.csv", index=False)


def make(root: Path, **options: object) -> list[tables.Table]:
    return tables.make("sites", summaries(find([root])[0]), **options)  # type: ignore[arg-type]


CLEAR: Accuracies = {
    "local": [[0.60, 0.80, 0.5], [0.62, 0.81, 0.7], [0.61, 0.82, 0.6]],
    "fedavg": [[0.80, 0.60, 0.6], [0.81, 0.61, 0.6], [0.82, 0.60, 0.6]],
}


def test_each_site_by_name_with_its_samples_and_whom_federation_helps(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR)
    levels, differences = make(tmp_path)
    assert levels.head == [
        "Site", "Training samples", "Test samples", "Local ± 95 % CI", "FedAvg ± 95 % CI",
    ]  # fmt: skip
    assert [row[:3] for row in levels.rows] == [
        [NAMES[0], "100", "20"], [NAMES[1], "101", "20"], [NAMES[2], "102", "20"],
    ]  # fmt: skip
    assert levels.rows[0][4].startswith("81.00 ± 2.48"), "0.80 0.81 0.82, t(0.975, 2) = 4.3027"
    told = {row[0]: row[1] for row in differences.rows}
    # differences 0.20 0.19 0.21: mean 0.20, std 0.01, half-width 0.0248
    assert told[NAMES[0]] == "+20.00 [+17.52, +22.48] **helps**"
    assert told[NAMES[1]].endswith("**harms**")
    assert told[NAMES[2]].endswith(" cannot be told")
    assert "Approach minus Local at the same site" in differences.caption


def test_p_values_are_paired_over_partitions_and_corrected_over_the_sites(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR)
    _, differences = make(tmp_path)
    shown = differences.data.set_index("site")
    for index, name in enumerate(NAMES):
        ours, theirs = ([of[index] for of in CLEAR[m]] for m in ("fedavg", "local"))
        assert shown["p"][name] == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    smallest = shown["p"].min()
    assert shown["p_holm"][shown["p"].idxmin()] == pytest.approx(3 * smallest)
    assert shown["verdict"].tolist() == ["helps", "harms", "cannot be told"]
    assert shown["num_samples"].tolist() == [100, 101, 102]


@pytest.mark.parametrize(("unit", "count"), [("partition", 2), ("seed", 2), ("seed", 3)])
def test_seeds_and_two_partitions_are_too_few_to_tell(
    unit: str, count: int, tmp_path: Path
) -> None:
    sites(tmp_path, {method: of[:count] for method, of in CLEAR.items()}, unit=unit)
    _, differences = make(tmp_path)
    assert all(row[1].endswith("cannot be told") for row in differences.rows)
    assert differences.rows[0][1].startswith("+20.00 [" if count == 3 else "+19.50 [")
    assert "Too few partitions to tell: at least 3 are needed" in differences.caption
    assert set(differences.data["verdict"]) == {"cannot be told"}


def test_on_samples_that_are_the_same_for_all_nothing_helps(tmp_path: Path) -> None:
    """Personalised methods have rows of each client on the common test part."""
    header = "round,client_id,group,split,num_samples,loss,accuracy"
    for method, accuracy in (("local", 0.5), ("fedbn", 0.8)):
        for draw in range(4):
            run = run_of(tmp_path, method, 0, [0.3], **{"data.seed": draw})
            lines = (f"1,{client},,test,400,1,{accuracy + draw / 1e3}" for client in range(3))
            rows(run, "evaluations", header, *lines)
            of = pd.DataFrame({"client_id": range(3), "label": 0, "name": NAMES})
            of.assign(train_samples=9, test_samples=20).to_csv(run / "partition.csv", index=False)
    levels, differences = make(tmp_path)
    for table in (levels, differences):
        assert "the common test part, the same samples for all sites," in table.caption
        assert "own test samples by" not in table.caption
        assert set(table.data["split"]) == {"test"}
    assert set(differences.data["verdict"]) == {"cannot be told"}
    assert screen(tmp_path)[-1].startswith("Whom it helps is not known: that needs results on test")


def test_a_site_that_never_trained_is_marked_and_not_compared(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR)
    for file in tmp_path.glob("*/final_clients.csv"):
        file.write_text(file.read_text().replace("\n1,0,", "\n1,1,"))
    levels, differences = make(tmp_path)
    assert levels.rows[1][0] == f"{NAMES[1]} (held out)"
    assert levels.rows[1][4].startswith("60.33")
    assert differences.rows[1] == [f"{NAMES[1]} (held out)", "\N{EN DASH}"]
    # the means are over the other two: 0.7, 0.705, 0.71
    assert "(70.50 %, mean over the participants)" in screen(tmp_path)[1]
    assert NAMES[1] not in screen(tmp_path)[2]


def screen(root: Path, score: str = "accuracy") -> list[str]:
    """The sentences of a report's first screen."""
    groups = of_runs(root, score)
    sites_by = by_setting(groups, score=score if score in BY_SITE else "accuracy")
    return answer.summary(outcome(groups, score, sites_by))


def of_runs(root: Path, *scores: str) -> Facets:
    table = completed(summaries(find([root])[0]), scores)
    return {"": group(table, ("algorithm",), unit_among(table, ("algorithm",), None))}


def test_the_report_says_whom_federation_helps_and_harms(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR)
    compared, result, whom = screen(tmp_path)
    assert compared == (
        "Compared: Local and FedAvg on digits, each trained 3 times with other random numbers, on "
        "3 divisions of the data into training and test samples (6 runs)."
    )
    # means over the sites 0.6667 0.6733 0.6733, against 0.6333 0.71 0.6767
    assert result == (
        "Local has the best accuracy on the participants' own test samples (67.33 %, mean over the "
        "participants); compared with others that **may be chance**."
    )
    assert whom == (
        f"Compared with training alone, FedAvg **helps** {NAMES[0]}; **harms** {NAMES[1]}; "
        f"for {NAMES[2]} it cannot be told."
    )
    assert "simulations" in answer.unknown(outcome(of_runs(tmp_path), "accuracy", {}), [])[0]


def test_training_seeds_alone_are_too_few_partitions(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR, {"fedavg": [[0.9, 0.9, 0.9]] * 3}, unit="seed")
    compared, result, whom = screen(tmp_path)
    groups = of_runs(tmp_path, "accuracy")
    (means,) = outcome(groups, "accuracy", by_setting(groups)).tables(None).values()
    assert "Too few partitions to tell" in means.caption
    assert not [cell for row in means.rows for cell in row if "*" in cell]
    assert "Local; FedAvg; FedAvg, fine-tuned; on digits" in compared
    assert result == (
        "FedAvg, fine-tuned has the best accuracy on the participants' own test samples (90.00 %, "
        "mean over the participants), but all runs share one division of the data: too few "
        "partitions to tell whether that is more than its chance."
    )
    assert whom == (
        f"Whether any approach that trains together helps {NAMES[0]}, {NAMES[1]} and {NAMES[2]}, "
        "compared with training alone, cannot be told: too few partitions to tell."
    )


# ---- sentences, figure and table against the runs' files, with SciPy's paired t test

TITLES = {"local": "Local", "fedavg": "FedAvg"}
VERDICTS = ("helps", "harms", "cannot be told")


@dataclass(frozen=True)
class Said:
    """What a report says: sentences, the means in its figure, and the differences by site."""

    sentences: Sequence[str]
    figure: Mapping[str, str]
    differences: pd.DataFrame


def accuracies(root: Path) -> pd.DataFrame:
    """By approach and run (rows) the accuracy of each site (columns), from the runs' files."""
    found = []
    for file in root.rglob("final_clients.csv"):
        summary = pd.read_csv(file.with_name("summary.csv")).iloc[0]
        clients = pd.read_csv(file.with_name("partition.csv")).groupby("client_id")
        names = clients["name"].first()
        frame = pd.read_csv(file)
        assert set(frame["split"]) == {"own_test"}
        for column, end in (("accuracy", ""), ("finetuned_accuracy", ", fine-tuned")):
            approach = TITLES[summary["algorithm"]] + end
            run = f"{summary['data.seed']} {summary['seed']}"
            of = zip(frame["client_id"], frame[column], strict=True)
            found += [(approach, run, names[client], value) for client, value in of]
    long = pd.DataFrame(found, columns=["approach", "run", "site", "accuracy"])
    return long.pivot(index=["approach", "run"], columns="site", values="accuracy")


def significant(p: Sequence[float]) -> list[bool]:
    """Holm's correction at level 0.05, by its steps; NaN is no test, and not significant."""
    there = sorted(value for value in p if value == value)
    limit = 0.0
    for place, value in enumerate(there):
        if value * (len(there) - place) >= 0.05:
            break
        limit = value
    return [value <= limit for value in p]


def p_value(ours: pd.Series[float], theirs: pd.Series[float]) -> float:
    differences = ours - theirs
    if len(differences) < 3 or np.ptp(differences) < 1e-9:
        return float("nan")
    return float(stats.ttest_rel(ours, theirs).pvalue)


def listed(text: str) -> set[str]:
    return set(re.split(r", | and ", text))


def verdicts_of(sentences: str, approach: str) -> dict[str, set[str]]:
    """By verdict the sites that the first screen names for an approach."""
    name = re.escape(approach)
    told = rf"Compared with training alone, {name} ((?:helps|harms|for) .*?)\."
    if found := re.search(told, sentences):
        said: dict[str, set[str]] = {}
        for part in found[1].split("; "):
            verb, _, names = part.partition(" ")
            if verb == "for":
                said["cannot be told"] = listed(names.removesuffix(" it cannot be told"))
            else:
                said[verb] = listed(names)
        return said
    whether = rf"Whether (?:{name}|any approach that trains together) helps (.*?), compared"
    found = re.search(whether, sentences)
    assert found, (approach, sentences)
    return {"cannot be told": listed(found[1])}


def check(said: Said, of: pd.DataFrame, *, partitions: bool = True) -> dict[str, set[str]]:
    """Compares all that is said with the accuracies; returns the verdicts by kind, with sites."""
    screen = re.sub(r"\*\*", "", " ".join(said.sentences))
    means = of.mean(axis=1).unstack("approach")
    shown = said.figure
    assert shown == {name: f"{100 * value:.2f}" for name, value in means.mean().items()}

    best = re.search(
        r"(Local|FedAvg)(, fine-tuned)? has the best accuracy on the participants' own test "
        r"samples \((\d+\.\d\d) %, mean over the participants\)(.*?)\.(?: |$)", screen,
    )  # fmt: skip
    assert best is not None, screen
    leader = best[1] + (best[2] or "")
    assert best[3] == f"{100 * means.mean().max():.2f}" == shown[leader]
    others = [name for name in means if name != leader]
    beaten = significant([p_value(means[leader], means[name]) for name in others])
    if not partitions:
        assert "too few partitions to tell" in best[4]
    elif all(beaten):
        assert "clearly better than every other" in best[4]
    else:
        assert "may be chance" in best[4]

    kinds: dict[str, set[str]] = {verdict: set() for verdict in VERDICTS}
    for approach in map(str, means):
        if approach == "Local":
            continue
        ours, theirs = of.loc[approach], of.loc["Local"]
        tests = significant([p_value(ours[site], theirs[site]) for site in of])
        wanted = {}
        for site, sure in zip(of, tests, strict=True):
            better = (ours[site] - theirs[site]).mean() > 0
            wanted[site] = VERDICTS[0 if better else 1] if sure and partitions else VERDICTS[2]
        table = said.differences[said.differences["method"] == approach].set_index("site")
        assert table["verdict"].to_dict() == wanted, approach
        differences = (ours - theirs).mean().to_dict()
        assert table["difference"].to_dict() == pytest.approx(differences, abs=1e-9)
        if approach.startswith("FedAvg"):
            by: dict[str, set[str]] = {}
            for site, verdict in wanted.items():
                by.setdefault(verdict, set()).add(site)
                kinds[verdict].add(site)
            assert verdicts_of(screen, approach) == by
    return kinds


# ---- tables that the test writes


def written(
    root: Path, study: int, effect: Mapping[str, float], *, unit: str = "data.seed"
) -> None:
    """Ten runs of each method over a unit; ``effect`` is what FedAvg adds at each site."""
    rng = np.random.default_rng(study)
    header = "client_id,held_out,split,num_samples,loss,accuracy,finetuned_loss,finetuned_accuracy"
    levels = rng.uniform(0.5, 0.8, len(effect))
    for repeat in range(10):
        hard = levels + rng.normal(0, 0.03, len(effect))
        for method in ("local", "fedavg"):
            gain = np.array([*effect.values()]) * (method == "fedavg")
            own = np.round((hard + gain + rng.normal(0, 0.02, len(effect))) * 70) / 70
            tuned = np.round((hard + rng.normal(0.01, 0.02, len(effect))) * 70) / 70
            seed, draw = (repeat, 0) if unit == "seed" else (0, repeat)
            drawn: dict[str, object] = {"data.seed": draw}
            run = run_of(root, method, seed, [0.3], **drawn)  # type: ignore[arg-type]
            lines = zip(own, tuned, strict=True)
            rows(run, "final_clients", header, *(
                f"{client},0,own_test,70,1,{a},1,{b}" for client, (a, b) in enumerate(lines)
            ))  # fmt: skip
            of = pd.DataFrame({"client_id": range(len(effect)), "label": 0, "name": [*effect]})
            of = of.assign(train_samples=140 + repeat % 3, test_samples=70)
            of.to_csv(run / "partition.csv", index=False)


def said_of(root: Path) -> Said:
    table = completed(summaries(find([root])[0]), ["accuracy"])
    facets = {"": group(table, ("label",), unit_among(table, ("label",), None))}
    main_outcome = outcome(facets, "accuracy", found := site_tables.by_setting(facets))
    _, differences = site_tables.tables(found)
    (axes,) = score_figure.draw(main_outcome, []).figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    drawn = dict(zip(names, (text.get_text() for text in axes.texts), strict=True))
    return Said(answer.summary(main_outcome), drawn, differences.data)


EFFECTS = {
    "clear": {"north": 0.1, "east": -0.1, "south": 0.0},
    "small": {"north": 0.02, "east": -0.02, "south": 0.01, "west": 0.0},
    "all better": {"north": 0.1, "east": 0.1, "south": 0.12},
}


@pytest.mark.parametrize("study", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("effects", EFFECTS)
def test_sentences_figure_and_tables_agree(effects: str, study: int, tmp_path: Path) -> None:
    written(tmp_path, study, EFFECTS[effects])
    kinds = check(said_of(tmp_path), accuracies(tmp_path))
    if effects == "clear":
        assert ("north" in kinds["helps"], "east" in kinds["harms"]) == (True, True)


def test_over_training_seeds_they_agree_that_nothing_can_be_told(tmp_path: Path) -> None:
    written(tmp_path, 0, EFFECTS["clear"], unit="seed")
    kinds = check(said_of(tmp_path), accuracies(tmp_path), partitions=False)
    assert kinds["cannot be told"] == {"north", "east", "south"}
