"""Leave one site out: the rows that stand for this name of a partition, a site held out in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedsim.config.experiments import AxisValue, Experiment, Setting, Settings
from fedsim.config.resolve import resolve
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.settings import in_line
from fedsim.data.partitions import LEAVE_ONE_OUT
from fedsim.studies import sweep

KEY, HELD_OUT = "data.partition", "data.heldout_clients"


def expanded(experiment: Experiment, overrides: Settings) -> Experiment:
    """The experiment with a row for each site in the place of :data:`LEAVE_ONE_OUT`, in the axes of
    its grid and the partitions of a study; flags replace axes as ever."""
    rows = (value for axis in experiment.grid for value in axis.values)
    if not any(map(_stands, [*experiment.partitions, *rows])):
        return experiment
    grid = sweep.varied_axes(experiment, overrides)
    return replace(
        experiment,
        grid=tuple(replace(a, values=_rows(a.values, experiment, overrides)) for a in grid),
        partitions=_rows(experiment.partitions, experiment, overrides),
    )


def _stands(row: AxisValue) -> bool:
    return KEY in row.settings and row.settings[KEY].value == LEAVE_ONE_OUT


def _rows(
    rows: Sequence[AxisValue], experiment: Experiment, overrides: Settings
) -> tuple[AxisValue, ...]:
    """The rows, each that stands for the sites replaced by ``without SITE`` of every site."""
    made: list[AxisValue] = []
    for row in rows:
        if not _stands(row):
            made.append(row)
            continue
        origin = row.settings[KEY].origin
        by_site = {**row.settings, KEY: Setting("by_site", origin)}
        others = {**experiment.settings, **by_site, **overrides}
        if HELD_OUT in others:
            raise ConfigError(f"{others[HELD_OUT].origin}: {LEAVE_ONE_OUT} holds each site out")
        for site in _sites((experiment.settings, by_site, overrides), origin):
            label = f"{row.label} without {site}" if row.named else f"without {site}"
            held_out = {HELD_OUT: Setting(f"[{in_line([site])}]", origin)}
            made.append(replace(row, label=label, settings={**by_site, **held_out}))
    return tuple(made)


def _sites(layers: Sequence[Settings], origin: str) -> tuple[str, ...]:
    """The names of the sites, which are read from the data."""
    from fedsim.training import loading  # imports torch

    try:
        return loading.deal(resolve(*layers, build=False))[1].names
    except (ConfigError, DataError) as error:
        raise ConfigError(f"{origin}: the sites to leave out cannot be read: {error}") from error
