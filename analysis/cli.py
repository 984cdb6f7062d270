"""The commands: ``fedsim report``, ``fedsim table`` and others."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click
import pandas as pd

from fedsim.core.files import write
from fedsim.core.terminal import echo

from . import AnalysisError, budget, ranks, scores, trials, units
from .facets import settings_by
from .figures import curves, matrix, privacy, style
from .figures import ranks as rank_figure
from .labels import AXIS, LABEL
from .paired import TESTS, Kind, Test
from .report import page as report
from .report.page import Descriptions
from .runs import default_by, find, group, summaries, unit_among, without_repeats
from .scores import ALL, METRICS, SCORES, TAKES, Score
from .tables import captions, layout
from .tables import scores as tables
from .tables.captions import REPEATED, UNFINISHED
from .units import ExperimentalUnit

FILE = click.Path(path_type=Path, dir_okay=False)
runs_argument = click.argument(
    "dirs", metavar="[DIR]...", nargs=-1, type=click.Path(path_type=Path)
)
by_option = click.option(
    "--by", multiple=True, metavar="COLUMN",
    help="Column of summary.csv that distinguishes the groups, such as label, algorithm or alpha. "
    "Repeatable; unset: label, and the settings in which runs of one label differ.",
)  # fmt: skip
baseline_option = click.option(
    "--baseline", metavar="METHOD",
    help="Compare with this method, over common units.",
)  # fmt: skip
unit_option = click.option(
    "--unit", type=click.Choice(list(units.COLUMNS)), metavar="|".join(units.COLUMNS),
    help="What intervals and tests are over: training seeds, or partitions (data.seed), each with "
    "the mean over its seeds; unset: partitions where there are several.",
)  # fmt: skip


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Tables and figures from the CSV files of run directories.

    A DIR is a run directory (it has a rounds.csv) or any folder above run directories; where none
    is named, 'fedsim' takes the newest run, sweep or search below runs/.
    """


@main.command("curves")
@runs_argument
@click.option(
    "--out", type=FILE, default="curves.png", show_default=True,
    help="Figure to write: .png, .pdf or .svg.",
)  # fmt: skip
@by_option
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME",
    help=f"A score of the test part ({', '.join(SCORES)}, or another measure of the task, as rmse) "
    f"or a column of rounds.csv ({', '.join(METRICS)}, val_rmse). Repeatable.  [default: accuracy, "
    "or the primary measure of the task, and loss]",
)  # fmt: skip
@unit_option
@click.option(
    "--smooth", type=click.IntRange(1, 10**6), default=1, show_default=True, metavar="N",
    help="Moving mean over the last N evaluated rounds.",
)  # fmt: skip
@click.option(
    "--x", type=click.Choice(["round", "seconds", "epsilon"]), default="round", show_default=True,
    metavar="round|seconds|epsilon",
    help="Horizontal axis: communication rounds; simulated seconds since the start, by which "
    "synchronous and asynchronous runs compare; or epsilon, against the metric in the last round.",
)  # fmt: skip
def curves_command(
    dirs: Sequence[Path], out: Path, by: Sequence[str], metrics: Sequence[str],
    unit: ExperimentalUnit | None, smooth: int, x: curves.X,
) -> None:  # fmt: skip
    """Learning curves per method, with 95 % intervals.

    With a setting beside the method ('--by algorithm --by alpha') there is a panel for each of its
    values, with a line per method.

    \b
      fedsim curves runs/sweep-table3_small --out curves.png
      fedsim curves runs/ --by algorithm --by alpha --metric loss --out loss.pdf
    """
    runs, _ = _summaries(dirs)
    by = _grouping(runs, by, unit)
    groups = group(runs, by, unit_among(runs, by, unit))
    known, primary = scores.curves_of(scores.scores_of(runs)), scores.measures_of(runs).primary
    shown = [name if name in known else f"test_{name}" for name in metrics]
    for name, column in zip(metrics, shown, strict=True):
        if column not in known:
            scores.measure_of(runs, name)  # which says what there is
    columns = shown or [f"test_{name}" for name in dict.fromkeys((primary, "loss"))]
    if x == "epsilon":
        style.save(privacy.figure(groups, columns, smooth), out)
        echo(f"wrote {out}")
        return
    style.save(curves.figure(groups, columns, smooth, settings_by(by, groups), x), out)
    echo(f"wrote {out}")


@main.command("table")
@runs_argument
@click.option(
    "--out", "outs", multiple=True, type=FILE,
    help="File to write: .md, .csv or .tex, with --ranks, --budget and --columns also the figure "
    "(.png, .pdf, .svg); else Markdown is shown. Repeatable.",
)  # fmt: skip
@by_option
@click.option(
    "--ranks", "ranked", is_flag=True,
    help="Mean ranks of the methods over the settings in --by, or over the partitions under these, "
    "with Friedman's test and Nemenyi's critical difference (Demšar, 2006).",
)  # fmt: skip
@click.option(
    "--budget", "tuned", is_flag=True,
    help="Expected test score of the best of k candidates, by the trials of searches: each DIR is, "
    "or is above, a directory of 'fedsim tune', or is NAME=DIR.",
)  # fmt: skip
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME",
    help=f"What the table shows. Repeatable. A score of the test part: {', '.join(SCORES)}, or "
    "another measure of the task, as rmse; scores: all of them; attack_success_rate, "
    "benign_test_accuracy, epsilon, deployment_epsilon; "
    "pairs: methods with and without another server rule; target: rounds and time to the target "
    "accuracy; groups: by group of test images; clients: spread over the clients; sites: every "
    "site by name, and whether a method helps it; decomposition: terms of the loss; "
    "participation: how often clients took part.  [default: accuracy, or the primary measure of "
    "the task]",
)  # fmt: skip
@click.option(
    "--at", "takes", multiple=True, type=click.Choice(list(TAKES)), metavar="|".join(TAKES),
    help="Rounds of a score: the last, the best, or the mean of the last ten; one table each. "
    "Repeatable; unset: all, with --ranks final.",
)  # fmt: skip
@click.option(
    "--measure", metavar="NAME",
    help="What --metric sites shows of every site: accuracy, loss, or another measure that the "
    "runs record by client, such as auc, dice, c_index or sensitivity@0.9; unset: accuracy, or the "
    "first measure of their task.",
)  # fmt: skip
@click.option("--columns", metavar="COLUMN", help="Column of summary.csv: one column per value.")
@baseline_option
@click.option("--caption", metavar="TEXT", help="Caption of the LaTeX table, instead of its own.")
@click.option("--label", metavar="NAME", help="Label of the LaTeX table.")
@unit_option
@click.option(
    "--test", type=click.Choice(list(TESTS)), default="t", show_default=True,
    metavar="|".join(TESTS),
    help="Paired test: Student's t; corrected for resampled partitions (Nadeau and Bengio); "
    "Wilcoxon's signed ranks; or the Bayesian signed-rank test (Benavoli et al.), with --rope.",
)  # fmt: skip
@click.option(
    "--rope", type=float, metavar="R",
    help="Differences within ±R (0.01 is one point of accuracy) are practically none: verdicts.",
)  # fmt: skip
def table_command(
    dirs: Sequence[Path], outs: Sequence[Path], by: Sequence[str], ranked: bool, tuned: bool,
    metrics: Sequence[str], takes: Sequence[str], measure: str | None, columns: str | None,
    baseline: str | None, unit: ExperimentalUnit | None, test: Kind, rope: float | None,
    caption: str | None, label: str | None,
) -> None:  # fmt: skip
    """Scores or loss terms per method, with intervals and paired tests.

    A number after ± is the half-width of the 95 % confidence interval of the mean over seeds, or
    over partitions of the data where the runs have several. Bold is the best mean, where it differs
    significantly from each of the others. A dagger marks methods with a collapsed run, whose final
    model predicts one class only or has at most the balanced accuracy of chance, or in another task
    is no better than the same prediction for every sample. They are never bold, nor are methods
    that lack runs which others have; a note below the table names these.

    \b
      fedsim table runs/sweep-table3_small
      fedsim table runs/ --by label --columns alpha --out table.tex
      fedsim table sweeps/robust --columns attack --at final --out heatmap.png
      fedsim table runs/ --metric auc --at final --baseline fedavg
      fedsim table runs/ --baseline fedavg --test corrected --rope 0.01
      fedsim table runs/ --ranks --by label --by alpha --out ranks.png --out ranks.csv
      fedsim table runs/study --budget --out budget.png --out budget.csv
    """
    paired = Test(test, rope)
    figures = style.FORMATS if ranked or tuned or columns is not None else ()
    suffixes = [*figures, *layout.FORMATS]
    for out in outs:
        if out.suffix not in suffixes:
            raise AnalysisError(f"{out}: a table is a file named {', '.join(suffixes)}")
        style.check_output(out)
    if (caption or label) and not any(out.suffix == ".tex" for out in outs):
        raise AnalysisError("--caption, --label: only LaTeX tables have one, with --out FILE.tex")
    draw = None
    crossed = any(out.suffix in style.FORMATS for out in outs)
    drawn = "--budget" if tuned else "--ranks" if ranked else "--columns with a figure" * crossed
    alone = (ranked or tuned) and (columns or baseline or measure or rope is not None)
    if alone or (tuned and (ranked or by)):
        more = ", and without --ranks and --by" * tuned
        raise AnalysisError(
            f"{drawn}: goes without --columns, --baseline, --measure and --rope{more}"
        )
    if drawn and (len(metrics) > 1 or len(takes) > 1 or {*metrics} & {*tables.TABLES}):
        names = ", ".join(SCORES if tuned else ALL)
        raise AnalysisError(f"{drawn}: takes one --at, and one --metric of {names}")
    if tuned:
        candidates = budget.gather([*map(str, dirs)], *metrics)
        made = [budget.table(candidates, unit or "seed")]
        draw = partial(budget.figure, candidates, unit or "seed")
    elif ranked:
        runs, unfinished = _summaries(dirs)
        metric, take = [*metrics, None][0], [*takes, "final"][0]
        blocks = ranks.gather(runs, _grouping(runs, by, unit), metric, take, unit)
        made = captions.left_out(ranks.tables(blocks), unfinished)
        draw = partial(rank_figure.figure, blocks)
    else:
        takes = takes or (["final"] if drawn else ())
        made, score = _scores(dirs, by, metrics, columns, baseline, paired, takes, unit, measure)
        if drawn and score is not None:
            draw = partial(matrix.figure, made[0], score.unit, score.lowest)
    if draw or not outs:
        echo(layout.markdown(made), nl=False)
    for out in outs:
        if draw and out.suffix in style.FORMATS:
            style.save(draw(), out)
        else:
            latex = out.suffix == ".tex"
            text = layout.latex(made, caption, label) if latex else layout.FORMATS[out.suffix](made)
            write(out, text.encode())
        echo(f"wrote {out}")


def _scores(
    dirs: Sequence[Path], by: Sequence[str], metrics: Sequence[str], columns: str | None,
    baseline: str | None, paired: Test, takes: Sequence[str], unit: ExperimentalUnit | None,
    measure: str | None,
) -> tuple[list[layout.Table], Score | None]:  # fmt: skip
    """The tables of metrics, and the score that the first is of, if any; runs that are left out are
    named on standard error."""
    runs, unfinished = _summaries(dirs)
    by, made = _grouping(runs, by, unit, *([columns] if columns else ())), []
    metrics = metrics or (scores.measures_of(runs).primary,)
    for metric in metrics:
        shown = tables.make(
            metric, runs, by, columns, baseline, paired, takes or [*TAKES], unit, measure
        )
        without: dict[str, list[Path]] = {}
        if metric in tables.FILES:
            without = tables.without_rows(metric, group(runs, by, unit_among(runs, by, unit)))
        _tell(without)
        made += captions.left_out(shown, unfinished | without)
    return made, scores.scores_of(runs).get(metrics[0])


@main.command("report")
@runs_argument
@click.option(
    "--out", default="report", show_default=True, type=click.Path(path_type=Path), metavar="DIR",
    help="Folder for report.html, figures/ and tables/: new, empty, or of an earlier report.",
)  # fmt: skip
@by_option
@baseline_option
@unit_option
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME",
    help=f"Score that the page is about: {', '.join(ALL)}, or another measure of the task. "
    "Repeatable: the first one leads, the others have tables too. One table has all but the loss "
    "in any case.  [default: accuracy, or the primary measure of the task]",
)  # fmt: skip
@click.option("--title", metavar="TEXT", help="Heading of the page.")
@click.pass_obj
def report_command(
    descriptions: Descriptions | None, dirs: Sequence[Path], out: Path, by: Sequence[str],
    baseline: str | None, unit: ExperimentalUnit | None, metrics: Sequence[str], title: str | None,
) -> None:  # fmt: skip
    """All tables and figures of runs, on one HTML page.

    The page begins with what is significant and what has collapsed. It needs no other file. For the
    directory of a search by 'fedsim tune' the page shows its trials.

    \b
      fedsim report runs/sweep-table3_small --out report
      fedsim report runs/tune-lr --out trials
    """
    if len(dirs) == 1 and trials.is_search(dirs[0]):
        options = (baseline, unit, tuple(by), tuple(metrics))
        if options != (None, None, (), ()):
            raise AnalysisError(
                f"{dirs[0]}: a search by fedsim tune; --by, --baseline, --unit and --metric are "
                "for runs"
            )
        echo(f"wrote {report.write_search(dirs[0], out, title).page}")
        return
    written = report.write(dirs, out, by, baseline, title, descriptions or {}, metrics, unit)
    _tell({UNFINISHED: written.unfinished})
    for absent in written.absent:
        echo(f"left out {absent.title}: {absent.reason}", err=True)
    echo(f"wrote {written.page}")


def _summaries(dirs: Sequence[Path]) -> tuple[pd.DataFrame, dict[str, list[Path]]]:
    """The summaries of the finished runs, once each, and the others, named on standard error."""
    finished, unfinished = find(dirs)
    _tell({UNFINISHED: unfinished})
    runs, repeated = without_repeats(summaries(finished))
    _tell({REPEATED: repeated})
    return runs, {UNFINISHED: unfinished, REPEATED: repeated}


def _grouping(
    runs: pd.DataFrame, by: Sequence[str], unit: ExperimentalUnit | None, *columns: str
) -> Sequence[str]:
    """``--by``, by default that of :func:`default_by`, which is then said on standard error."""
    if by:
        return by
    chosen = default_by(runs, unit, columns)
    chosen_names = [column.removeprefix(AXIS) for column in chosen]
    if differ := [name for name in chosen_names if name not in (LABEL, *columns)]:
        by_all = " ".join(f"--by {name}" for name in chosen_names)
        echo(f"the runs differ in {', '.join(differ)}: grouped as with {by_all}", err=True)
    return chosen


def _tell(left_out: Mapping[str, Sequence[Path]]) -> None:
    """Names runs that are left out, by the reason, on standard error."""
    for reason, runs in left_out.items():
        for run in runs:
            echo(f"left out {run}: {reason}", err=True)
