"""A report on hospitals says one thing: its sentences, figure and tables against the runs' files.

What is expected is computed here from final_clients.csv alone, with SciPy's paired t test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.figures import scores as score_figure
from analysis.report import answer
from analysis.report.outcome import outcome
from analysis.runs import find, group, summaries, unit_among
from analysis.scores import completed
from analysis.tables import sites
from tests.unit.analysis.run_files import rows, run_of

TITLES = {"local": "Local", "fedavg": "FedAvg"}
VERDICTS = ("helps", "harms", "cannot be told")


@dataclass(frozen=True)
class Said:
    """What a report says: sentences, the figure in words, and the table of differences by site."""

    sentences: Sequence[str]
    figure: str
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
    shown = dict(
        re.findall(r"(Local|FedAvg|(?:Local|FedAvg), fine-tuned) (\d+\.\d\d)", said.figure)
    )
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
    main_outcome = outcome(facets, "accuracy", found := sites.by_setting(facets))
    _, differences = sites.tables(found)
    alt = score_figure.draw(main_outcome, []).alt
    return Said(answer.summary(main_outcome), alt, differences.data)


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


# ---- whole runs, from the files of a hospital to its report
