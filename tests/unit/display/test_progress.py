"""The display of a running experiment, line by line and as a bar."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedsim.config.run import RunConfig
from fedsim.core.errors import StoreError
from fedsim.core.rows import RoundRow, Row, TimingRow
from fedsim.display import progress, tables
from fedsim.training.callbacks import RunInfo

INFO = RunInfo(
    out=Path("out"), algorithm="fedld", dataset="digits", model="cnn", num_parameters=1234,
    num_clients=50, cohort_size=5, rounds=100, engine="serial", seed=3, config=RunConfig(),
)  # fmt: skip
SUMMARY = {
    "final_test_accuracy": 0.5, "best_test_accuracy": 0.75, "best_round": 7, "best_by": "test",
    "last10_test_accuracy": 0.625, "rounds": 100, "total_seconds": 12.34,
}  # fmt: skip


def rows(
    number: int, seconds: float, dropped: int = 0, accuracy: float | None = None
) -> dict[str, list[Row]]:
    row = RoundRow(
        round=number, lr=0.1, cohort_size=5, dropped=dropped, train_loss=1.0 / number,
        test_accuracy=accuracy,
    )  # fmt: skip
    timing = TimingRow(round=number, phase="total", seconds=seconds, bytes=0)
    return {"rounds": [row], "timings": [timing]}


def watch(watcher: progress.Lines, last: int) -> None:
    watcher.on_run_start(INFO)
    for number in range(1, last + 1):
        accuracy = 0.5 if number % 2 else None
        watcher.on_round_end(number, rows(number, 0.25, int(number == 4), accuracy))


def test_lines_are_at_most_about_twenty(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = progress.Lines()
    watch(watcher, 100)
    watcher.on_run_end(SUMMARY)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[:3] == [
        "fedld on digits, cnn (1,234 parameters), seed 3",
        "50 clients, 5 per round, 100 rounds; serial",
        "writing to out",
    ]
    # every 100 / 20 = 5 rounds; round 10 has no accuracy of its own: that of round 9 is named so
    rounds = [line for line in lines if line.startswith("round ")]
    assert len(rounds) == 20
    seconds = "0.25 s/round  clients failed 1"
    assert [rounds[0], rounds[1]] == [
        f"round   5/100  test accuracy 0.5000  train loss 0.2000  {seconds}",
        f"round  10/100  test accuracy 0.5000 (round 9)  train loss 0.1000  {seconds}",
    ]
    assert lines[-6].split() == ["final", "test", "accuracy", "0.5000"]
    assert lines[-5].endswith("0.7500 (round 7, chosen by test accuracy)")
    assert lines[-1].split() == ["files", "out"]
    assert "balanced" not in out, "what summary.csv does not have is left out"
    assert err == ""


def test_the_result_shows_the_other_metrics_and_a_collapse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {"balanced_accuracy": 0.5, "macro_f1": 0.25, "auc": 0.875}
    summary = SUMMARY | {f"final_test_{name}": value for name, value in metrics.items()}
    progress.show_result(tmp_path, summary | {"epsilon": 7.5})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[4:8]] == [
        ["final", "balanced", "accuracy", "0.5000"],
        ["final", "macro-F1", "0.2500"],
        ["final", "AUC", "0.8750"],
        ["epsilon", "7.5000"],
    ]
    assert lines[-1].startswith("files"), "nothing is said of a collapse"
    classes = "round,label,support,recall,precision\n1,0,30,1.0,0.75\n1,1,10,0.0,0.0\n"
    (tmp_path / "classes.csv").write_text(classes)
    (tmp_path / "env.json").write_text('{"classes": ["no DR", "DR"]}')
    progress.show_result(tmp_path, summary)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "class 0 (no DR) is predicted for all 40 test samples in the last evaluation; balanced "
        "accuracy is that of chance, 0.5000 (2 classes)"
    )


def test_the_bar_stays_on_stderr_and_gives_the_terminal_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    watcher = progress.Bar()
    try:
        watch(watcher, 12)
    finally:
        watcher.close()
    out, err = capsys.readouterr()
    assert "round" not in out.replace("per round", "").replace("100 rounds", "")
    assert "12/100" in err
    assert "test accuracy 0.5000 (round 11)  train loss 0.0833" in err
    assert "clients failed 1  22 s left" in err
    assert watcher.interrupted() == (
        "interrupted after 12 of 100 rounds; resume with: fedsim resume out"
    )


def test_a_run_that_goes_on_says_from_where(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = progress.Lines()
    watcher.on_run_start(replace(INFO, out=Path("my runs/a"), done=40))
    assert capsys.readouterr().out.endswith("\nresuming my runs/a after round 40\n")
    line = "interrupted after 40 of 100 rounds; resume with: fedsim resume 'my runs/a'"
    assert watcher.interrupted() == line


def test_aligned_columns() -> None:
    rows = [{"name": "a", "n": "10"}, {"name": "long", "n": "-"}, {"name": "b", "n": "5 +- 2"}]
    assert tables.aligned(rows) == [
        "name       n",
        "a         10",
        "long       -",
        "b     5 +- 2",
    ]


def test_a_narrow_terminal_loses_no_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    numbers = {f"metric {i}": "11.70 +- 4.99" for i in range(5)}
    tables.show([{"configuration": "algorithm=fedavg", **numbers}])
    assert "algorithm=fedavg" in capsys.readouterr().out
    name = "algorithm=fedavg,data.alpha=0.3,train.lr=0.001"
    tables.show([{"configuration": name, **numbers}])
    shown = capsys.readouterr().out
    first = [line.split("  ")[1].strip() for line in shown.splitlines() if line.startswith("  ")]
    assert name in "".join(first)
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


class Cell:
    """Stands for ``IPython.display``: what was shown, and what it was replaced by."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    HTML = staticmethod(str)

    def display(self, html: str, display_id: bool) -> Cell:
        assert display_id
        self.shown.append(html)
        return self

    def update(self, html: str) -> None:
        self.shown.append(html)


class Kernel:
    """Stands for the module IPython in the kernel of a notebook, or in a terminal."""

    def __init__(self, kernel: object) -> None:
        self.kernel = kernel

    def get_ipython(self) -> Kernel:
        return self


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell = Cell()
    monkeypatch.setitem(sys.modules, "IPython", Kernel(object()))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", cell)  # type: ignore[arg-type]
    return cell


def test_a_notebook_has_one_bar_that_is_replaced(
    notebook: Cell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (watcher,) = progress.displays(None)
    assert isinstance(watcher, progress.Notebook)
    monkeypatch.setattr(progress, "PAUSE", -1)
    watch(watcher, 3)
    assert "<progress value='0' max='100'></progress> round 0/100" in notebook.shown[0]
    assert "fedld on digits, cnn, seed 3: out" in notebook.shown[0]
    wanted = "test accuracy 0.5000  train loss 0.3333  0.25 s/round</div>"
    assert f"<progress value='3' max='100'></progress> round 3/100 {wanted}" in notebook.shown[3]
    assert len(notebook.shown) == 4
    assert capsys.readouterr() == ("", "")


def test_python_shows_progress_where_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert progress.displays(None) == []
    assert progress.displays(False) == []
    (lines,) = progress.displays(True)
    assert type(lines) is progress.Lines
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    (bar,) = progress.displays(None)
    assert isinstance(bar, progress.Bar)
    assert not bar.final_table
    monkeypatch.setitem(sys.modules, "IPython", Kernel(None))  # type: ignore[arg-type]
    assert not progress.in_notebook(), "IPython in a terminal"
    monkeypatch.setattr(sys, "stdout", None)
    assert progress.displays(None) == []


def test_the_result_of_a_damaged_summary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"summary\.csv: damaged: rounds is 0\.24"):
        progress.show_result(tmp_path, SUMMARY | {"rounds": 0.24})
