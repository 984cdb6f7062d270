"""The protocol of the study: its numbers are those of its files; check.py on planted tables."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from fedsim.config import experiments

STUDY = Path(__file__).resolve().parents[3] / "docs" / "study"
PAGE = (STUDY / "PROTOCOL.md").read_text()
WORDS = " ".join(PAGE.split())
FAMILIES = pd.read_csv(STUDY / "families.csv")
FILES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(STUDY.glob("*.yaml"))}
HEADS = [name for name in FILES if name.startswith("head_")]


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"study_{name}", STUDY / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


check = module("check")


def rows(*first: str) -> list[list[str]]:
    """The rows of the table whose head begins so."""
    lines = PAGE.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| " + " | ".join(first)))
    body = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        body.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return body


def counts(file: dict[str, Any]) -> tuple[int, int]:
    """Runs of the search and of the comparison of a file."""
    if "methods" in file:
        cells = len(file["methods"]) * len(file["partitions"])
        return cells * file["trials"] * len(file["grid"]["seed"]), cells * len(file["seeds"])
    return 0, math.prod(map(len, file["grid"].values()))


def names(file: dict[str, Any]) -> set[str]:
    """The methods of a file."""
    given = file.get("methods") or {name for row in file["grid"]["run"] for name in row}
    return set(given)


class TestBudget:
    def test_runs_of_each_block_are_those_of_its_file(self) -> None:
        seen, sums = set(), np.zeros(2, dtype=int)
        for _, block, link, *numbers, _ in rows("Order", "Block"):
            said = tuple(map(int, numbers))
            sums += said
            if block == "T":
                main = [counts(FILES[name])[1] for name in FAMILIES["block"].unique()[:4]]
                assert said == (0, sum(main))
                continue
            name = re.fullmatch(r"\[(\w+)\.yaml\]\(\1\.yaml\)", link)[1]
            assert said == counts(FILES[name]), name
            assert f"block {block}." in (STUDY / f"{name}.yaml").read_text()
            seen.add(name)
        assert seen == set(FILES)
        assert f"In all {sums[0]:,} runs of searches and {sums[1]:,} of comparisons" in WORDS


class TestFiles:
    @pytest.mark.parametrize("name", FILES)
    def test_is_read(self, name: str) -> None:
        path = STUDY / f"{name}.yaml"
        text = path.read_text()
        experiments.parse(text, str(path))
        assert f"--out studies/{name}\n" in text
        assert f"docs/study/{name}.yaml" in text

    def test_heads_differ_in_data_and_rounds_alone(self) -> None:
        same = ("methods", "partitions", "search", "trials", "grid", "seeds", "by", "sampler")
        first = FILES[HEADS[0]]
        for name in HEADS:
            assert [FILES[name][key] for key in same] == [first[key] for key in same], name
        assert set(first["methods"]) == {
            each.strip() for row in rows("Method", "What it is") for each in row[0].split(",")
        }

    def test_candidates_and_seeds_are_those_of_the_page(self) -> None:
        for name, file in FILES.items():
            if "methods" not in file:
                continue
            head = name.startswith("head_")
            assert (file["trials"], len(file["partitions"])) == ((20, 10) if head else (6, 5))
            assert not set(file["seeds"]) & set(file["grid"]["seed"])
            assert (file["sampler"], file["pruner"]) == ("random", "none")
        assert "**20** for heads, **6** for whole networks" in WORDS


class TestFamilies:
    def test_sizes_are_those_of_the_page(self) -> None:
        said = {row[0]: int(row[1]) for row in rows("Family", "Members")}
        assert said == FAMILIES["family"].value_counts().to_dict()

    def test_members_are_in_the_files_once(self) -> None:
        for _, row in FAMILIES.iterrows():
            file = FILES[row["block"]]
            assert {row["first"], row["second"]} <= names(file)
            grid = file["grid"]
            seeds = file.get("seeds", grid["seed"])
            partitions = file.get("partitions", grid.get("data.seed"))
            assert (row["partitions"], row["seeds"]) == (len(partitions), len(seeds))
            if not math.isnan(row["alpha"]):
                assert row["alpha"] in grid["data.alpha"]
                assert check.FIG2_RATE in grid["train.lr"]
        assert not FAMILIES.duplicated().any()

    def test_claims_are_those_of_the_page(self) -> None:
        assert {row[0] for row in rows("Claim")} == set(FAMILIES["claim_id"])


def planted(d: Sequence[float], metric: str = "accuracy", **more: object) -> pd.DataFrame:
    """Runs of A and B with two seeds, in which A is above B by d on each partition."""
    runs = [
        {"method": method, "data_seed": i, "seed": seed, metric: 0.5 + gain + 0.01 * seed}
        for i, each in enumerate(d)
        for method, gain in (("A", each), ("B", 0.0))
        for seed in (1, 2)
    ]
    rest = {"status": "finished", "classes": 4, "train_samples": 700, "test_samples": 200}
    return pd.DataFrame(runs).assign(**(rest | {"test_drawn": 1} | more))


def member(metric: str = "accuracy", claim: str = "higher", n: int = 5) -> pd.DataFrame:
    """A family of one."""
    row = {
        "family": "one", "block": "b", "metric": metric, "alpha": math.nan, "first": "A",
        "second": "B", "claim": claim, "claim_id": "C", "partitions": n, "seeds": 2,
    }  # fmt: skip
    return pd.DataFrame([row])


D = [0.05, 0.06, 0.04, 0.05, 0.055]


class TestCheck:
    @pytest.mark.parametrize(
        ("d", "claim", "word"),
        [
            (D, "higher", "confirmed"),
            (D, "lower", "refuted"),
            ([0.001, -0.001, 0.002, 0.0, -0.002], "higher", "practically equal"),
            ([0.004, 0.005, 0.004, 0.005, 0.0045], "higher", "practically equal"),
            ([0.1, -0.1, 0.05, -0.05, 0.02], "higher", "not decidable by design"),
            ([0.004, -0.005, 0.004, -0.005, 0.02], "higher", "not decidable by design"),
            ([0.01, 0.017, 0.007, 0.013, 0.009], "higher", "confirmed"),
            ([0.012, -0.004, 0.010, -0.002, 0.004], "higher", "not decidable"),
        ],
    )
    def test_planted_words(self, d: list[float], claim: str, word: str) -> None:
        table = check.compared(member(claim=claim), {"b": planted(d)})
        assert table["verdict"].to_list() == [word]

    def test_p_is_that_of_scipy(self) -> None:
        made = check.paired(D)
        expected = stats.ttest_1samp(D, 0)
        assert made["p"] == pytest.approx(expected.pvalue, rel=1e-12)
        high = expected.confidence_interval().high
        assert made["mean"] + made["half"] == pytest.approx(high, rel=1e-12)

    def test_corrected_by_hand(self) -> None:
        made = check.paired([1.0, 2.0, 3.0], ratio=2 / 3)  # s = 1, scale = sqrt(1/3 + 2/3) = 1
        assert made["scale"] == pytest.approx(1.0, rel=1e-12)
        assert made["p"] == pytest.approx(2 * stats.t.sf(2.0, 2), rel=1e-12)

    def test_equivalence_is_two_one_sided_tests(self) -> None:
        d = [0.003, -0.002, 0.004, 0.0]
        made = check.paired(d)
        low = stats.ttest_1samp(d, -0.01, alternative="greater").pvalue
        high = stats.ttest_1samp(d, 0.01, alternative="less").pvalue
        p = check.equivalence(made["mean"], made["scale"], 4, 0.01)
        assert p == pytest.approx(max(low, high), rel=1e-12)

    def test_holm_by_hand(self) -> None:
        adjusted = check.holm([0.01, math.nan, 0.04, 0.03])
        assert adjusted == pytest.approx([0.04, 1.0, 0.09, 0.09], rel=1e-12)

    @pytest.mark.parametrize("metric", ["accuracy", "shift_loss"])
    def test_missing_run_decides_nothing(self, metric: str) -> None:
        runs = planted(D, metric)
        for broken in (runs.iloc[1:], runs.assign(status=["failed"] + ["finished"] * 19)):
            table = check.compared(member(metric), {"b": broken})
            assert table["verdict"].to_list() == ["not decidable"]
            assert table["p_holm"].to_list() == [1.0]
        assert check.compared(member(), {})["verdict"].to_list() == ["not decidable"]

    def test_diverged_run_has_the_score_of_a_guess(self) -> None:
        runs = planted([0.0] * 5).assign(status=["diverged"] + ["finished"] * 19)
        score = check.values(runs, "accuracy", "A", 5, 2)
        assert score[0] == pytest.approx((0.25 + 0.52) / 2, rel=1e-12)
        assert check.values(runs.assign(loss=1.0), "loss", "A", 5, 2).empty

    def test_fig2_takes_one_alpha_and_the_primary_rate(self) -> None:
        row = member().assign(alpha=0.1)
        other = planted([-0.05] * 5).assign(alpha=0.1, lr=0.001)
        runs = planted(D).assign(alpha=0.1, lr=0.01)
        both = pd.concat([other, runs, runs.assign(alpha=1.0)])
        table = check.compared(row, {"b": both})
        assert table["mean"][0] == pytest.approx(np.mean(D), rel=1e-12)
        assert check.claims(table)["verdict"].to_list() == ["confirmed in 1 of 1"]

    def test_new_images_need_test_parts_that_are_drawn(self) -> None:
        runs = planted(D)
        wide = check.compared(member(), {"b": runs}, ratio=True)
        assert wide["half"][0] > check.compared(member(), {"b": runs})["half"][0]
        fixed = check.compared(member(), {"b": runs.assign(test_drawn=0)}, ratio=True)
        assert fixed["verdict"].to_list() == ["not decidable by design"]

    @pytest.mark.parametrize(
        ("words", "word"),
        [
            (["confirmed", "confirmed"], "confirmed"),
            (["confirmed", "practically equal"], "practically equal"),
            (["confirmed", "not decidable", "practically equal"], "not decidable"),
            (["confirmed", "not decidable", "refuted"], "refuted"),
            (["confirmed", "not decidable by design"], "not decidable by design"),
            (["not decidable", "not decidable by design"], "not decidable"),
            ([], "not decidable"),
        ],
    )
    def test_claims_hold_only_where_all_comparisons_do(self, words: list[str], word: str) -> None:
        assert check.together(words) == word
