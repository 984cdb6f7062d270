"""The commands of ``fedsim_analysis``, which read the CSV files of finished runs."""

import inspect
from typing import Any

import click

from fedsim.core.analysis import analysis


class AnalysisCommand(click.Command):
    """A command of ``fedsim_analysis``, imported when it runs: the list of commands stays quick."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:  # fmt: skip
        """Parses the arguments of the command itself."""
        command = analysis("cli").main.commands[self.name]
        obj = descriptions() if self.name == "report" else None
        return command.make_context(info_name, args, parent, obj=obj, **extra)


def descriptions() -> dict[str, str]:
    """A line on each method and setting, by its name in summary.csv: the report shows them."""
    from fedsim import algorithms, data
    from fedsim.algorithms.catalogue import build_docstring
    from fedsim.config.sections import fields
    from fedsim.core.settings import described
    from fedsim.data.registry import reader

    said = {name: algorithms.describe(name) for name in algorithms.names()}
    found = {name: text.partition(": ")[2] or text for name, text in said.items()}
    found |= {key: field.description or "" for key, field in fields().items()}
    sections = {name: build_docstring(name) for name in algorithms.names()}
    sections |= {info.name: inspect.getdoc(reader(info.name)) or "" for info in data.catalogue()}
    for section, docstring in sections.items():
        found |= {f"{section}.{name}": text for name, text in described(docstring).items()}
    short = {
        "dataset": "data.name",
        "model": "model.name",
        "num_clients": "data.num_clients",
        "alpha": "data.alpha",
        "sample_rate": "train.sample_rate",
        "rounds": "train.rounds",
    }
    return found | {column: found[key] for column, key in short.items()}


COMMANDS = [
    AnalysisCommand(name, help=text)
    for name, text in {
        "report": "All tables and figures of the runs, and one HTML page that shows them.",
        "table": "Scores or loss terms per method, with intervals and paired tests.",
        "curves": "Learning curves per method: mean and 95 % interval over seeds or partitions.",
        "select": "Choose a hyperparameter by the best mean on the validation part.",
        "heatmap": "Training samples by client and class, from a partition.csv.",
    }.items()
]
