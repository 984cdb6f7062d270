"""What it takes to go on with a run: its configuration, and whether it can go on at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedsim import experiments, restore
from fedsim.config import RunConfig, resolve
from fedsim.errors import ConfigError, nearest
from fedsim.experiments import Given, Settings
from fedsim.finished import FREE, difference

PATHS = (
    *("data.dir", "data.partition_file", "model.weights"),
    *("engine.working_dir", "engine.client_resources", "clock.trace"),
)
"""Keys whose values may be paths, which are relative to where the run was started."""


def configuration(run: Path, overrides: Mapping[str, object] | None = None) -> RunConfig:
    """The configuration of a run that was begun.

    Args:
        run: the run directory.
        overrides: dotted keys that say where the work is done; values may be :class:`Given`.

    Raises:
        ConfigError: the directory holds no run, a key may not change, a path is not there.
    """
    file = run / "config.yaml"
    if not file.is_file():
        hint = "; a sweep goes on with the 'fedsim sweep' command that began it"
        sweep = (run / "aggregate.csv").exists() or any(run.glob("*/config.yaml"))
        raise ConfigError(f"{run}: holds no run (no config.yaml){hint if sweep else ''}")
    written = experiments.read(file).settings
    given = {key: _given(key, value) for key, value in (overrides or {}).items()}
    for key in given:
        if key not in FREE:
            raise ConfigError(
                f"{given[key].origin}: {key} cannot change when a run goes on"
                f"{nearest(key, FREE)}; allowed: {', '.join(sorted(FREE))}"
            )
    _check_paths({**written, **given})
    return resolve(written, given)


def can_go_on(wanted: RunConfig, run: Path) -> bool:
    """Whether the directory holds an unfinished run of this configuration with checkpoints.

    Raises:
        StoreError: the folder of the checkpoints cannot be read.
    """
    if (run / "summary.csv").exists() or not restore.records(run):
        return False
    try:
        found = experiments.read(run / "config.yaml").settings
    except ConfigError:
        return False
    return difference(wanted, {key: given.value for key, given in found.items()}) is None


def placement(config: RunConfig) -> dict[str, object]:
    """The settings of a configuration that may change when a run goes on."""
    engine = dict(config.engine)
    return {f"engine.{leaf}": value for leaf, value in engine.items() if f"engine.{leaf}" in FREE}


def _given(key: str, value: object) -> Given:
    return value if isinstance(value, Given) else Given(value, key)


def _check_paths(written: Settings) -> None:
    for key in PATHS:
        given = written.get(key)
        path = Path(given.value) if given is not None and isinstance(given.value, str) else None
        if path is None or path.is_absolute() or path.exists():
            continue
        # a partition_file may also be the name of a split in the data's folder
        if key == "data.partition_file" and path.suffix.lower() != ".csv":
            continue
        raise ConfigError(
            f"{given.origin if given else key}: {str(path)!r} is not here; relative paths start "
            "where the command is given: resume the run from the directory of its first start"
        )
