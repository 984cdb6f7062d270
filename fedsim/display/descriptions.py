"""Lines that explain methods and settings in a report."""

import inspect


def descriptions() -> dict[str, str]:
    """A line on each method and setting, by its name in summary.csv: the report shows them."""
    from fedsim import algorithms, data
    from fedsim.algorithms.catalogue import METHODS
    from fedsim.config.keys import COLUMNS
    from fedsim.config.sections import fields
    from fedsim.core.settings import argument_texts
    from fedsim.data.registry import reader

    lines = {name: algorithms.describe(name) for name in algorithms.names()}
    texts = {name: line.partition(": ")[2] or line for name, line in lines.items()}
    texts |= {key: field.description or "" for key, field in fields().items()}
    sections = {name: METHODS.docstrings(name)[1] for name in algorithms.names()}
    sections |= {info.name: inspect.getdoc(reader(info.name)) or "" for info in data.catalogue()}
    for section, docstring in sections.items():
        said = argument_texts(docstring)
        texts |= {f"{section}.{name}": text for name, text in said.items()}
    return texts | {column: texts[key] for key, column in COLUMNS.items()}
