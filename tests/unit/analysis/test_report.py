"""The report: what is written, what is refused, and that the page needs nothing but itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from analysis.cli import main
from analysis.labels import HALVES
from analysis.report import page as reports
from analysis.report.page import Picture
from tests.unit.analysis.run_files import PRESENT, write_run

pytestmark = pytest.mark.integration

FIGURES = [
    "agreement", "class_auc", "classes", "clients", "confusion", "cosines", "curves",
    "decomposition", "groups", "headline", "partition_1", "phases",
]  # fmt: skip


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def values(self, key: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == key]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods of two seeds with every table."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(root, "fedavg", seed, tables=PRESENT)
        write_run(root, "fedld", seed, tables=PRESENT)
        write_run(root, "fedld", seed, margin="none", tables=PRESENT)
    return root


@pytest.fixture(scope="module")
def report(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "new" / "report"
    result = invoke(runs, "--out", out, "--baseline", "fedavg", "--title", "Eyes & <b>ears</b>")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"wrote {out / 'report.html'}\n"
    return out


@pytest.fixture(scope="module")
def page(report: Path) -> Page:
    return Page((report / "report.html").read_text(encoding="utf-8"))


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws no figure, which takes nine tenths of a report's time."""
    monkeypatch.setattr(reports, "_picture", lambda drawn, folder: Picture("", drawn))


# ---- what is written


@pytest.mark.slow
def test_every_figure_as_png_and_pdf(report: Path) -> None:
    found = sorted(file.name for file in (report / "figures").iterdir())
    assert found == sorted(f"{name}{suffix}" for name in FIGURES for suffix in (".pdf", ".png"))
    for file in (report / "figures").iterdir():
        magic = {".png": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF-"}[file.suffix]
        assert file.read_bytes().startswith(magic)


@pytest.mark.slow
def test_numbers_of_the_page_are_those_of_the_runs(page: Page, runs: Path) -> None:
    summaries = [pd.read_csv(file) for file in runs.glob("fedavg*/summary.csv")]
    final = pd.concat(summaries)["final_test_accuracy"]
    # t(0.975, 1) s / sqrt(2)
    half = 12.7062047362 * final.std() / 2**0.5
    assert f"{100 * final.mean():.2f} ± {100 * half:.2f}" in page.text
    assert "6 finished runs in 3 groups over 2 seeds (0–1)" in page.text  # noqa: RUF001
    assert "8 clients, 100 % of the clients in each round, 6 communication" in page.text


@pytest.mark.slow
def test_the_same_runs_make_the_same_bytes(runs: Path, report: Path, tmp_path: Path) -> None:
    again = ("--baseline", "fedavg", "--title", "Eyes & <b>ears</b>")
    assert invoke(runs, "--out", tmp_path / "r", *again).exit_code == 0
    for file in (f for f in report.rglob("*") if f.is_file()):
        assert (tmp_path / "r" / file.relative_to(report)).read_bytes() == file.read_bytes()


# ---- the page


@pytest.mark.slow
def test_the_page_loads_nothing(page: Page) -> None:
    references = page.values("src") + page.values("href")
    assert len(references) > 10
    assert all(value.startswith(("data:", "#")) for value in references)
    assert not {"script", "iframe", "object", "embed", "base"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith(("on", "srcset"))]
    style = page.words[page.words.index(next(w for w in page.words if ":root" in w))]
    assert not re.search(r"url\(|@import|//", style)
    assert page.open == []


@pytest.mark.slow
def test_contents_lead_to_sections_and_names_are_unique(page: Page) -> None:
    names = page.values("id")
    assert len(names) == len(set(names))
    anchors = [value[1:] for value in page.values("href") if value.startswith("#")]
    assert anchors == [
        "content", "runs", "scores", "curves", "losses", "clients", "costs", "caveats",
    ]  # fmt: skip
    assert set(anchors) <= set(names)


@pytest.mark.slow
def test_every_figure_has_words(page: Page) -> None:
    images = [value for tag, name, value in page.attributes if tag == "img" and name == "src"]
    assert len(images) == len(FIGURES)
    assert all(value.startswith("data:image/png;base64,") for value in images)
    alts = page.values("alt")
    assert len(alts) == len(images) == len(set(alts))
    assert all(
        re.match(r"(Line chart|Dot plot|Heat map|Box plots|Stacked|Confusion)", a) for a in alts
    )
    assert all(re.search(r"\d", value) for value in alts)
    assert page.text.count("How to read this.") == len(FIGURES)
    assert page.text.count("95 % t interval") > 5


@pytest.mark.slow
def test_methods_are_explained_and_titled(page: Page) -> None:
    assert HALVES["fedld, margin=none"][1] in page.text
    assert "Principal aggregation only" in page.text
    assert "margin = none" in page.text
    assert all(term in page.text for term in ("Seed", "Unit", "Detectable, power", "Collapsed"))


@pytest.mark.slow
def test_the_page_begins_with_what_was_found(page: Page, report: Path) -> None:
    text = (report / "report.html").read_text(encoding="utf-8")
    start = text[text.index("<header>") : text.index("</header>")]
    assert 'class="findings"' in start
    first = start[: start.index("<summary>Statistics")]
    plain = re.sub(r'base64,[^"]+|<details>.*?</details>', "", first, flags=re.DOTALL)
    assert not re.search(r"Holm|significant|p 0|detect|interval|±", plain)
    assert plain.count("<p>") == 3
    assert "Compared: FedAvg, FedLD and Principal aggregation only on digits, with 8" in plain
    assert "too few partitions to tell" in plain
    assert "Whom it helps is not known" in plain
    assert "Not known" in plain
    assert start.count("<img") == 1
    assert "highest final test accuracy" in start
    assert "No comparison with FedAvg can be tested: a test needs 3 common seeds" in start
    assert "No final model has collapsed" in start


# ---- refusals


def refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def test_runs_of_two_configs_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "fedavg", 0, alpha=0.5)
    write_run(tmp_path / "runs", "fedavg", 1, alpha=0.1, rounds=4)
    result = invoke(tmp_path / "runs", "--out", tmp_path / "r", "--by", "label")
    refused(result, "alpha (0.1, 0.5)", "rounds (4, 6)")
    assert not (tmp_path / "r").exists()


def test_a_folder_with_other_files_is_refused(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused(invoke(runs, "--out", tmp_path), str(tmp_path), "no report.html")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    refused(invoke(runs, "--out", tmp_path / "notes.txt"), "a report is a folder")


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_an_earlier_report_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    out = tmp_path / "r"
    write_run(tmp_path / "runs", "fedavg", 0, tables=())
    assert invoke(tmp_path / "runs", "--out", out, "--title", "first").exit_code == 0
    (out / "tables" / "own.png").write_bytes(b"mine")
    assert invoke(tmp_path / "runs", "--out", out, "--title", "second").exit_code == 0
    text = (out / "report.html").read_text(encoding="utf-8")
    assert "<h1>second</h1>" in text
    assert "<h1>first" not in text
    assert (out / "tables" / "own.png").read_bytes() == b"mine"


# ---- in a browser

COUNT = """<script>
window.addEventListener('load', () => {
  document.querySelectorAll('details').forEach(part => { part.open = true; });
  const images = [...document.images];
  const shown = images.filter(i => i.complete && i.naturalWidth > 0 && i.alt).length;
  const wide = document.documentElement.scrollWidth > window.innerWidth;
  const stuck = [...document.querySelectorAll('.wide')].filter(region => {
    const first = region.querySelector('tbody th');
    region.scrollLeft = 60;
    return first && region.scrollLeft &&
      Math.abs(first.getBoundingClientRect().left - region.getBoundingClientRect().left) > 1;
  }).length;
  const lost = [...document.querySelectorAll('.wide')].filter(region => {
    region.focus(); return document.activeElement !== region;
  }).length;
  document.body.insertAdjacentHTML('beforeend',
    `<p>shown ${shown}/${images.length} ${wide} stuck ${stuck} lost ${lost}</p>`);
});
</script></body>"""


OF_SWEEP = [*sorted({*FIGURES, "fig2", "curves_loss"} - {"groups"}), "partition_2"]


@pytest.fixture(scope="module")
def sweep(sweep_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of runs that fedsim made."""
    out = tmp_path_factory.mktemp("report")
    by = ("--by", "algorithm", "--by", "alpha", "--baseline", "fedavg")
    done = invoke(sweep_runs, "--out", out, *by)
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.slow
def test_a_sweep_of_fedsim_gives_every_figure_and_table(sweep: Path, sweep_runs: Path) -> None:
    for suffix in (".png", ".pdf"):
        found = {file.stem for file in (sweep / "figures").glob(f"*{suffix}")}
        assert found == set(OF_SWEEP)
    tables = {file.stem for file in (sweep / "tables").glob("*.csv")}
    for metric in ("final", "best", "last10"):
        assert {f"accuracy_{metric}", f"accuracy_{metric}_by_alpha"} <= tables
    assert {"decomposition_last_train_cohort", "decomposition_mean_train_cohort"} <= tables
    final = pd.read_csv(sweep / "tables" / "accuracy_final.csv")
    runs = pd.read_csv(sweep_runs / "summary.csv")
    assert len(final) == 8
    assert final["mean"].mean() == pytest.approx(runs["final_test_accuracy"].mean())


@pytest.mark.parametrize("width", [400, 800, 1400])
@pytest.mark.parametrize(("page", "figures"), [("report", FIGURES), ("sweep", OF_SWEEP)])
@pytest.mark.slow
def test_chromium_shows_every_image_without_complaint(
    page: str,
    figures: list[str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    width: int,
) -> None:
    """A copy of the page with a script that counts; the report itself has none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip(f"needs a browser to open the page: none of {', '.join(names)} is on PATH")
    report = request.getfixturevalue(page)
    text = (report / "report.html").read_text(encoding="utf-8")
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("</body>", COUNT), encoding="utf-8")
    done = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},1200", "--virtual-time-budget=10000", "--dump-dom",
            copy.as_uri(),
        ],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert f"shown {len(figures)}/{len(figures)} false stuck 0 lost 0" in done.stdout
    assert "CONSOLE" not in done.stderr
