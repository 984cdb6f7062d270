"""Writes docs/TABLES.md from the rows of fedsim/core/rows.py: ``python docs/tables.py``."""

from __future__ import annotations

import inspect
from pathlib import Path

from fedsim.core.rows import TABLES, Row

PAGE = Path(__file__).resolve().parent / "TABLES.md"
INTRO = """# Tables

The CSV tables of a run directory and their columns, made from `fedsim/core/rows.py` by
`python docs/tables.py`. An empty cell means "not available". Accuracies lie in 0..1; losses are
mean cross-entropies without regularisers; where every token has a label, losses and accuracies are
means over the tokens that count. In other tasks than of classes losses are the task's, accuracies
are empty, and the task's measures have columns at the end. All tables but `timings.csv` and
`errors.csv` are the same, byte for byte, whenever one configuration runs on one kind of device.

Texts stand as they are, a carriage return as a blank. A spreadsheet runs a name that begins with
`=` as a formula: open tables with names from data of others as text.

`summary.csv` has one row: settings, final, best and last-10 accuracy, totals, and then

- `final_test_M`, `best_test_M`, `last10_test_M` for M in `balanced_accuracy`, `macro_f1` and `auc`:
  after the last evaluation, in `best_round`, and the mean over evaluated rounds among the last ten
- `client_accuracy_std`, `client_accuracy_p10`, `client_accuracy_worst`: standard deviation (divided
  by n), 10th percentile (linear between clients) and minimum of the clients' accuracies in the last
  evaluation of `evaluations.csv` on the test part, else on the clients' own test parts
- `collapsed`: True where the final balanced accuracy is at most that of chance, 1 / (classes with
  test samples), as with a model that predicts one class for everything; else False; empty where
  every token has a label or fewer than two classes have test samples
- where there is a `final_clients.csv`: `own_test_accuracy_S` and `finetuned_accuracy_S` over the
  clients that trained, before and after fine-tuning, `heldout_accuracy_S` and
  `heldout_finetuned_accuracy_S` over those held out, for S in `mean`, `std`, `p10` and `worst`
- `final_test_ece`, `best_test_ece`, `last10_test_ece`: the expected calibration error
- `final_test_M`, `best_test_M`, `last10_test_M` for the measures M of another task, such as `rmse`,
  and those of `evaluation.measures`; `best_round` is then that of the task's primary measure, and
  `collapsed` what the task says
- `client_accuracy_gini`: Gini coefficient of the same accuracies as of `client_accuracy_std`
- with an attack: `final_M` and `last10_M` for M in `benign_test_accuracy`, and
  `attack_success_rate` where it has a target class
- `data_digest`: `sha256:` and the first 12 digits of a digest of samples, labels and class names as
  they were read, before any feature shift; of `-d csv`, whose scaling and gaps follow the training
  rows, the file stands for the samples, so that all partitions of a table have the same; empty for
  generated data, which follow from the settings
- `label`: the name of the run, from `label` in its settings or its row in a grid; empty without
  one, but in the `summary.csv` and `aggregate.csv` of a sweep, which then have the method

A column with a dot in its name is a setting, and so are `algorithm`, `dataset`, `model`,
`num_clients`, `sample_rate`, `alpha`, `rounds`, `best_by`, `server` and those of the margin; every
other column is an outcome (`fedsim/config/keys.py`).

`aggregate.csv` of a sweep has a row per configuration: `n` seeds, or partitions where `data.seed`
is in the grid, each with the mean over its seeds; `_mean`, `_std` (divided by n - 1) and `_ci95`
(half-width of the 95 % interval, t distribution) of each of these numbers; `collapsed` is the
number of runs that did, `unit` what `n` counts (`seed` or `partition`), `runs` the number of runs.
"""


def section(table: type[Row]) -> str:
    """A table with its columns."""
    lines = [f"- `{name}`: {text}" for name, text in table.describe().items()]
    return "\n".join([f"## {table.table}.csv", "", str(inspect.getdoc(table)), "", *lines])


def page() -> str:
    """The text of docs/TABLES.md."""
    return "\n\n".join([INTRO.strip(), *map(section, TABLES.values())]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
