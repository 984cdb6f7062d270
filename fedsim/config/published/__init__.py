"""Published tables as data: their numbers and claims, with sources, and the jobs that test them.

``NAME.yaml`` here is one table:

- ``title``; ``source``, with ``paper``, ``place`` (the table or figure) and ``page``, null where it
  is not known; ``provenance``, where the numbers in the file were read; ``about``, what a reader
  should know;
- ``metric``: a column of summary.csv, or TABLE.COLUMN, which takes the last round of this table of
  a run; ``[KEY=VALUE, ...]`` behind it chooses rows, bars around it mean the absolute value, as in
  ``|decomposition.shift_loss|`` and ``evaluations.accuracy[client_id=2, split=own_test]``. It may
  also be a mapping from settings to such texts;
- ``unit``: one of ``UNITS`` of :mod:`fedsim.config.published.tables`; ``margin``: of equivalence,
  in this unit, fixed before the first run; ``widest``: the widest 95 % interval that is a test;
- ``runs``: how many runs are behind each number, left out where that is not known;
- ``numbers``: by method and setting a number, or ``{value, sd, n, values, margin, missing}``, where
  ``values`` are by seed and ``missing`` says why nothing here can test the number;
- ``claims``: a list of ``{above: METHOD, below: METHODS, settings: [...]}``;
- ``jobs``: ``full`` has the protocol of the paper and tests numbers and claims, ``scaled`` has
  other data or a smaller network and tests claims alone. A job has ``preset``, the ``data`` it
  needs in words, ``find`` (files by which they are known to be there), ``methods`` and
  ``settings`` (by name the labels on axes of the preset's grid), and may have ``seeds`` (training
  seeds, for a preset without them), ``set`` (further settings), ``samples`` (training samples of
  the published runs, without which there is no verdict), ``seconds`` (measured on two busy cores)
  and ``about``. Of an axis of the grid the job has the labels that a method or a setting names;
- ``missing``: why no job can test anything of the table.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources

from fedsim.config import experiments
from fedsim.config.published.reading import TableReader
from fedsim.config.published.tables import Table
from fedsim.core.errors import ConfigError, nearest


def names() -> tuple[str, ...]:
    """The names of all tables, sorted."""
    return tuple(sorted(_texts()))


def load(name: str, origin: str = "fedsim reproduce") -> Table:
    """The table of that name; ``origin`` says where the name was given, for messages.

    Raises:
        ConfigError: there is none; names the nearest. Or its file is wrong; names line and key.
    """
    if name not in names():
        raise ConfigError(
            f"{origin}: unknown table {name!r}{nearest(name, names())}; "
            "'fedsim reproduce --list' shows them"
        )
    return parse(_texts()[name], name, f"{name}.yaml")


def parse(text: str, name: str, source: str) -> Table:
    """The table in a YAML text; ``source`` is the name of its file in messages.

    Raises:
        ConfigError: not valid YAML, or not a table; names file, line and key.
    """
    with experiments.one_error(source):
        return TableReader(text, source, with_lines=True).table(name)


@functools.cache
def _texts() -> Mapping[str, str]:
    """The YAML of each table."""
    return {
        file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8")
        for file in resources.files(__name__).iterdir()
        if file.name.endswith(".yaml")
    }
