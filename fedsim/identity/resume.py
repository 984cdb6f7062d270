"""Whether a run in a directory is finished, can be resumed, or belongs to other settings."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsim import data
from fedsim.config import experiments
from fedsim.config.experiments import Setting, Settings
from fedsim.config.keys import FREE, PLACEMENT
from fedsim.config.resolve import resolve, to_dict, with_normalization
from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.errors import ConfigError, nearest
from fedsim.data import partitions
from fedsim.identity import provenance
from fedsim.identity.provenance import Provenance
from fedsim.storage import status
from fedsim.storage.run_dir import is_leftover


def decisive(config: RunConfig) -> dict[str, Any]:
    """The settings that must stay the same for a run to be resumed, by dotted key."""
    return {key: v for key, v in _flat(to_dict(config)).items() if key not in FREE}


def is_complete(wanted: RunConfig, folder: Path) -> bool:
    """Whether the run is there and finished; code and data are not compared."""
    if not (folder / "summary.csv").exists():
        return False
    settings = experiments.read(folder / "config.yaml").settings
    key = difference(
        wanted, {k: setting.value for k, setting in settings.items()}, has_patients(folder)
    )
    if key is not None:
        raise ConfigError(
            f"{folder}: finished with another {key}; give another --out or move this run away"
        )
    return True


def has_patients(run: Path) -> bool:
    """Whether split.csv, if it is there, says whose the samples are."""
    path = run / "split.csv"
    if not path.exists():
        return False
    with files.reading(path), path.open("rb") as file:
        return b"patient" in file.readline().strip().split(b",")


def difference(
    wanted: RunConfig, settings: Mapping[str, Any], patients: bool = False
) -> str | None:
    """The first dotted key in which a finished run of such settings, nested or dotted, differs from
    the wanted configuration, but for placement and label, which cannot change a result."""
    have = _flat(settings)
    left_open = {key for key, value in _flat(to_dict(wanted)).items() if value is None}
    resolved = _flat(to_dict(_as_the_data_decide(wanted, have, patients)))
    for key, value in resolved.items():
        same = have.get(key) == value or (have.get(key) is None and key in left_open)
        if key not in PLACEMENT and not same:
            return f"{key} ({have.get(key)!r}, wanted {value!r})"
    return None


def _as_the_data_decide(wanted: RunConfig, have: Mapping[str, Any], patients: bool) -> RunConfig:
    """The configuration as :meth:`RunConfig.resolved`; what only the data's files say is taken from
    the finished run ``have``, whose data may say whose the samples are (``patients``)."""
    info, section, done = data.find(wanted.data.name), wanted.data, have.get("data.partition")
    partition = wanted.named_partition or (info.default_partition if info else "dirichlet")
    may_have_lists = info is None or info.num_classes == 0  # or sites; the files say it
    if section.partition is None and may_have_lists and done in partitions.FIXED:
        partition = done
    by_the_data = not wanted.decides_num_clients and done in partitions.FIXED
    return with_normalization(wanted).resolved(
        num_clients=have["data.num_clients"] if by_the_data else section.num_clients,
        partition=partition,
        model=wanted.model_name,
        group=section.group or ("patient" if patients and done != "files" else "none"),
        client_batch=have["engine.client_batch"] if wanted.engine.client_batch == "auto" else None,
        noise=have["dp.noise_multiplier"] if wanted.dp.noise_multiplier is None else None,
    )


BEFORE_ROUNDS = frozenset(
    {
        *("config.yaml", "env.json", "partition.csv", "split.csv", "errors.csv"),
        *(files.VOCABULARY, files.PREPROCESSING, status.FAILURE),
    }
)
"""The files of a run of which no round has finished; none of them holds results."""


def archive(folder: Path) -> None:
    """Makes room for a run in the directory of an incomplete one, which is renamed, or emptied
    where no round has finished."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    count = itertools.count(1)
    free = (folder.with_name(f"{folder.name}.interrupted-{n}") for n in count)
    begun = status.is_run({path.name for path in folder.iterdir()})
    with files.lock(folder), files.writing(folder):
        written = {path for path in folder.iterdir() if not is_leftover(path)}
        if begun and {path.name for path in written} <= BEFORE_ROUNDS:
            for path in written:
                path.unlink()
        else:
            folder.rename(next(path for path in free if not path.exists()))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def data_at(data_dir: Path | str | None) -> Settings:
    """The setting of a run's data that are elsewhere now; none where they are where they were."""
    return {} if data_dir is None else {"data.dir": Setting(str(data_dir), "--data-dir")}


def configuration(
    run: Path,
    overrides: Mapping[str, object] | None = None,
    *,
    data_dir: str | None = None,
    build: bool = True,
) -> RunConfig:
    """The configuration of a run that was begun, with other settings of where the work is done."""
    file = run / "config.yaml"
    if not file.is_file():
        hint = "; a sweep is resumed by the 'fedsim sweep' command that began it"
        sweep = (run / "aggregate.csv").exists() or any(run.glob("*/config.yaml"))
        raise ConfigError(f"{run}: holds no run (no config.yaml){hint if sweep else ''}")
    written = experiments.read(file).settings
    changes = {
        key: value if isinstance(value, Setting) else Setting(value, key)
        for key, value in (overrides or {}).items()
    }
    for key in changes:
        if key not in FREE:
            raise ConfigError(
                f"{changes[key].origin}: {key} cannot change in a run that has begun"
                f"{nearest(key, FREE)}; allowed: {', '.join(sorted(FREE))}"
            )
    changes.update(data_at(data_dir))
    return resolve(written, changes, build=build)


def can_resume(wanted: RunConfig, run: Path, *, accept_changed_code: bool = False) -> bool:
    """Whether the directory holds an unfinished run of this configuration, and of this code unless
    another one is accepted, with checkpoints."""
    from fedsim.storage import checkpoint  # imports torch, which a sweep's controller need not

    if (run / "summary.csv").exists() or not checkpoint.records(run):
        return False
    try:
        settings = experiments.read(run / "config.yaml").settings
    except ConfigError:
        return False
    have = {key: setting.value for key, setting in settings.items()}
    if difference(wanted, have, has_patients(run)) is not None:
        return False
    code = provenance.code_of(wanted)
    if accept_changed_code or not code:
        return True
    return provenance.changed_code(Provenance.read(run), code) is None


def placement(config: RunConfig) -> dict[str, object]:
    """The settings of a configuration that may change when a run is resumed."""
    return {f"engine.{leaf}": v for leaf, v in config.engine if f"engine.{leaf}" in FREE}
