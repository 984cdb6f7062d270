"""Published tables: those of the package hold together, and a bad file is refused by its line."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from statistics import fmean, stdev

import pytest

from fedsim.config import published
from fedsim.config.published.tables import FULL, SCALED, SEEDS, Metric
from fedsim.core.errors import ConfigError
from fedsim.studies.sweep import expand
from tests.published import GOOD, parse


def test_a_table() -> None:
    table = parse(GOOD)
    assert (table.title, table.source) == ("A table", "Somebody, 2024, Table 1, page 7")
    first, second = table.numbers
    assert (first.value, first.margin, first.n, math.isnan(first.sd)) == (80.5, 1.0, 1, True)
    assert (second.value, second.margin, second.n, second.sd) == (82.0, 2.0, 5, 1.5)
    assert table.metric("Digits") == Metric(table="summary", column="final_test_accuracy")
    job = table.jobs[FULL]
    assert job.runs == 6  # of the 72 runs of the preset those of two methods and one split
    assert job.labels("FedGH", "Digits") == {
        "algorithm": "fedavg", "server": "fedgh", "split": "alpha1_all",
    }  # fmt: skip
    assert job.labels("FedGH", "Letters") is None
    numbers, claims = table.tested(job)
    assert (len(numbers), len(claims), job.samples, job.seconds) == (2, 1, 1437, 30.0)


def test_a_scaled_job_tests_claims_alone() -> None:
    job = parse(GOOD.replace("  full:", "  scaled:")).jobs[SCALED]
    numbers, claims = parse(GOOD.replace("  full:", "  scaled:")).tested(job)
    assert (numbers, len(claims)) == ([], 1)


def test_metrics() -> None:
    texts = {
        "|decomposition.shift_loss|": Metric(
            table="decomposition", column="shift_loss", absolute=True
        ),
        "evaluations.accuracy[client_id=2, split=test]": Metric(
            table="evaluations", column="accuracy", where={"client_id": "2", "split": "test"}
        ),
    }
    for text, metric in texts.items():
        assert parse(GOOD.replace("final_test_accuracy", f'"{text}"')).metrics[""] == metric
    each = GOOD.replace("metric: final_test_accuracy", "metric: {Digits: rounds.test_loss}")
    assert parse(each).metric("Digits") == Metric(table="rounds", column="test_loss")


def test_values_by_seed_have_their_mean() -> None:
    number = parse(GOOD.replace("80.5}", "{values: {42: 80, 43: 81}}}")).numbers[0]
    assert (number.values, number.value) == ({42: 80.0, 43: 81.0}, 80.5)


def test_seeds_and_settings_of_a_job() -> None:
    more = "    seeds: [7, 8]\n    set: {train.rounds: 3}\n"
    text = GOOD.replace("preset: fedgh_digits_small\n", "preset: fedgh_cifar10\n" + more)
    job = parse(text).jobs[FULL]
    axis = job.experiment.grid[-1]
    assert (axis.name, [value.label for value in axis.values]) == ("seed", ["7", "8"])
    assert job.experiment.settings["train.rounds"].value == 3


BAD = {
    "unknown key": ("margin: 1.0", "margins: 1.0", "a.yaml:9 (margins): unknown key (did you mean"),
    "no margin": ("margin: 1.0\n", "", "a.yaml (margin): is missing"),
    "negative margin": ("margin: 1.0", "margin: -1", "a.yaml:9 (margin): -1 given; must be"),
    "unit": ("percent", "percents", "a.yaml:8 (unit): 'percents' given; must be one of percent"),
    "metric": (
        "metric: final_test_accuracy", "metric: a b", "a.yaml:7 (metric): 'a b' given; must be",
    ),
    "bars": ("final_test_accuracy", '"|a"', "a.yaml:7 (metric): '|a' given; must be"),
    "no source": ("  paper", "  papers", "a.yaml:3 (papers): unknown key (did you mean 'paper'"),
    "no place": ("  place: Table 1\n", "", "a.yaml:3 (source): lacks place"),
    "text as number": (
        "80.5", "high", "a.yaml:13 (numbers.FedAvg.Digits): 'high' given; must be a number",
    ),
    "no value": ("{value: 82, ", "{", "a.yaml:14 (numbers.FedGH.Digits): lacks value"),
    "sd without n": (
        "sd: 1.5, n: 5", "sd: 1.5", "a.yaml:14 (numbers.FedGH.Digits.sd): needs n, at least 2",
    ),
    "twice": ("sd: 1.5,", "n: 5,", "a.yaml:14 (n): given twice"),
    "values and value": (
        "{value: 82,", "{values: {1: 2}, value: 82,", "a.yaml:14 (numbers.FedGH.Digits): has",
    ),
    "seeds": (
        "{value: 82, sd: 1.5, n: 5,", "{values: {a: 2},",
        "a.yaml:14 (numbers.FedGH.Digits.values): 'a' given; must be a whole number from 0",
    ),
    "claim's method": (
        "below: FedAvg", "below: FedAvgg", "a.yaml:16 (claims.below): unknown 'FedAvgg' (did you",
    ),
    "claim against numbers": (
        "{above: FedGH, below: FedAvg,", "{above: FedAvg, below: FedGH,",
        "a.yaml:16 (claims): FedAvg above FedGH under Digits, but the numbers are 80.5 and 82",
    ),
    "job": ("  full:", "  big:", "a.yaml:19 (big): unknown key; jobs has scaled, full"),
    "preset": (
        "preset: fedgh_digits_small", "preset: fedgh_digit_small",
        "a.yaml:19 (jobs.full.preset): unknown preset 'fedgh_digit_small' (did you mean",
    ),
    "axis": (
        "{split: alpha1_all}", "{splits: alpha1_all}",
        "a.yaml:27 (jobs.full.settings.Digits): the preset's grid has no axis 'splits' (did you",
    ),
    "label": (
        "{split: alpha1_all}", "{split: alpha2_all}",
        "a.yaml:27 (jobs.full.settings.Digits): 'alpha2_all' is not on the axis split; it has",
    ),
    "free axis": (
        "Digits: {split: alpha1_all}", "Digits: {}",
        "a.yaml:19 (jobs.full): neither methods nor settings say which split",
    ),
    "which": (
        "FedAvg: {algorithm: fedavg, server: own}", "FedAvg: {algorithm: fedavg}",
        "a.yaml:18 (jobs.full): FedAvg under Digits does not say which server",
    ),
    "nothing tested": (
        "Digits: {split", "Letters: {split", "a.yaml:18 (jobs.full): tests no number and no claim",
    ),
    "yaml": ("title: ", "title: [", "a.yaml:2: not valid YAML"),
    "not a mapping": (GOOD, "- a\n", "a.yaml:1 (the file): must hold lines"),
    "empty": (GOOD, "", "a.yaml: is empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_file_line_and_key(case: str) -> None:
    old, new, message = BAD[case]
    assert old in GOOD
    with pytest.raises(ConfigError) as raised:
        parse(GOOD.replace(old, new, 1))
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_a_table_without_jobs_or_results_says_why() -> None:
    jobs = GOOD[GOOD.index("jobs:") :]
    with pytest.raises(ConfigError, match=r"needs 'jobs:', or 'missing:'"):
        parse(GOOD.replace(jobs, ""))
    assert parse(GOOD.replace(jobs, "missing: a GPU\n")).missing == "a GPU"
    results = GOOD[GOOD.index("numbers:") : GOOD.index("jobs:")]
    with pytest.raises(ConfigError, match=r"a\.yaml: needs 'numbers:' or 'claims:'"):
        parse(GOOD.replace(results, ""))


@pytest.mark.parametrize("name", published.names())
def test_a_table_of_the_package(name: str) -> None:
    """Every cell of every job has runs, which differ in nothing but seeds."""
    table = published.load(name)
    assert table.provenance
    assert table.jobs or table.missing
    for job in table.jobs.values():
        runs = [set(run.name.split(",")) for run in expand(job.experiment, {}, build=False)]
        assert len(runs) == job.runs
        numbers, claims = table.tested(job)
        cells = {(n.method, n.setting) for n in numbers}
        cells |= {(m, c.setting) for c in claims for m in (c.above, c.below)}
        used = set()
        for method, setting in cells:
            labels = job.labels(method, setting)
            assert labels is not None
            own = [
                i for i, run in enumerate(runs) if {f"{a}={t}" for a, t in labels.items()} <= run
            ]
            varied = [{part for part in runs[i] if part.split("=")[0] not in SEEDS} for i in own]
            assert len(own) > 1
            assert all(each == varied[0] for each in varied)
            used |= set(own)
        assert used == set(range(len(runs))), "a run that tests nothing"


def test_there_are_ten_tables_and_an_unknown_one_names_the_nearest() -> None:
    assert len(published.names()) >= 10
    with pytest.raises(ConfigError, match=r"table 'fedld_fig3' \(did you mean 'fedld_fig2'"):
        published.load("fedld_fig3")


SCOPES = {
    "Cleveland": "client_0", "Hungarian": "client_1", "Switzerland": "client_2", "VA": "client_3",
    "Pooled test": "pooled",
}  # fmt: skip


def test_the_numbers_of_flamby_are_those_of_its_files(shared_data: Path):
    """Seed by seed, and for TCGA-BRCA mean and deviation (n - 1) of the means over six clients."""
    with (shared_data / "flamby" / "published" / "flamby.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(r["dataset"], r["method"], r["scope"], r["seed"]): float(r["value"]) for r in rows}
    for number in published.load("flamby_heart").numbers:
        where = ("fed_heart_disease", number.method, SCOPES[number.setting])
        assert number.values == {seed: found[*where, str(seed)] for seed in range(42, 47)}
    table = published.load("flamby_tcga_brca")
    for number in table.numbers:
        method = number.method.replace("training", "Training")
        means = [
            fmean(found["fed_tcga_brca", method, f"client_{i}", str(seed)] for i in range(6))
            for seed in range(42, 47)
        ]
        assert number.value == pytest.approx(fmean(means), abs=5.1e-5)
        assert number.sd == pytest.approx(stdev(means), abs=5.1e-5)
    sds = {number.method: f"{number.sd:.2f}" for number in table.numbers}
    assert f"{sds['FedAvg']} of FedAvg and {sds['FedProx']} of FedProx" in table.about
