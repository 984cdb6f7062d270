"""Users' code and the data of a run, as digests: with the settings they decide its results.

env.json records them when a run begins. What goes on with a run, skips it because it is finished,
or uses its model compares them with those of now, and refuses a change; ``--accept-changed-code``
accepts other code. What env.json does not say is not compared.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path

from fedsim import data
from fedsim.algorithms.catalogue import chain
from fedsim.config.experiments import Settings
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.files import sha256, sha256_of
from fedsim.core.imports import module_of
from fedsim.core.types import Dataset
from fedsim.data.files import listed_files
from fedsim.identity.sources import sha256_of_files
from fedsim.models.catalogue import LIBRARIES
from fedsim.storage.run_dir import RunStore, RunWriter, to_json

ACCEPT = "--accept-changed-code"
ACCEPTED = "accepted_code"
"""Key of env.json: the code that was accepted instead of that under ``code``."""
SHOWN = 12
"""Hex digits of a digest in messages and tables."""
PARTS = {"samples": "the samples", "labels": "the labels", "classes": "the class names"}
"""What the digests of the data are of, in words."""

logger = logging.getLogger("fedsim")


@dataclass(frozen=True)
class Code:
    """A user's function, ``module:function`` (of the server chain all of them, after commas)."""

    name: str
    files: Mapping[str, str]  # the SHA-256 of each source file

    @property
    def short(self) -> str:
        """One digest of all files, for tables."""
        return shortened(sorted(self.files.items()))


@dataclass(frozen=True)
class Data:
    """The data as their reader gives them: SHA-256 digests, before any feature shift."""

    samples: str  # decoded, with their shape and type; of texts also the vocabulary
    labels: str
    classes: str  # their names in their order
    dir: str | None  # ``data.dir`` as it was given; not compared
    file: str | None = None  # where the samples depend on the partition, as a table's scaling does

    @property
    def short(self) -> str:
        """One digest of all three, for tables; the same on all partitions of the data."""
        return shortened([self.file or self.samples, self.labels, self.classes])


def shortened(content: object) -> str:
    """``sha256:`` and the first digits of the digest of a value of JSON; never a number."""
    return f"sha256:{sha256_of(json.dumps(content))[:SHOWN]}"


FUNCTIONS: Mapping[str, str] = {
    "method": "algorithm",
    "server": "server",
    "model": "model.name",
    "dataset": "data.name",
    "task": "task",
    "partition": "data.partition",
    "executor": "engine.kind",
    "schedule": "train.schedule",
    "attack": "attack.name",
    "compressor": "compress.name",
}
"""By role the key that may name a function of the user's; of the server several, after commas."""


def functions_in(settings: Settings) -> list[str]:
    """``KEY NAME`` of each function that is not of fedsim and that settings name, but for the
    executor, which no verification uses; runs nothing."""
    named = []
    for key in FUNCTIONS.values():
        value = settings[key].value if key in settings and key != "engine.kind" else None
        for name in value if isinstance(value, list) else str(value).split(","):
            library, colon, _ = str(name).strip().partition(":")
            if colon and not (key == "model.name" and library in LIBRARIES):
                named.append(f"{key} {str(name).strip()}")
    sections = {key.rpartition(".")[0] for key in settings}
    return named + [f"section {name}" for name in sorted(sections) if ":" in name]


def code_of(config: RunConfig) -> dict[str, Code]:
    """By role the sources of the user's functions that a configuration names."""
    sources = {}
    for role, key in FUNCTIONS.items():
        names = chain(attrgetter(key)(config) or "")
        functions = [name for name in names if ":" in name]
        files = [sha256_of_files(module_of(name, f"{role} {name!r}")) for name in functions]
        merged = {path: digest for each in files for path, digest in each.items()}
        if merged:
            sources[role] = Code(",".join(functions), merged)
    return sources


def data_of(dataset: Dataset, folder: str | None) -> Data:
    """The digests of a data set as its reader gives it; ``folder`` is ``data.dir``."""
    info = data.find(dataset.name)
    fitted = folder if info is not None and info.prepared else None
    vocabulary = [json.dumps(dataset.words)] if dataset.words else []
    x, y = (
        sha256_of(f"{array.dtype.str} {array.shape} ", array, *words)
        for array, words in ((dataset.x, vocabulary), (dataset.y, []))
    )
    return Data(
        samples=x, labels=y, classes=sha256_of(json.dumps(dataset.class_names)),
        dir=folder, file=None if fitted is None else _of_files(Path(fitted)),
    )  # fmt: skip


def _of_files(place: Path) -> str:
    """The digest of a file, or of the names and digests of several."""
    files = listed_files(place)
    if files == [place]:
        return sha256(place)
    return sha256_of(json.dumps([[file.name, sha256(file)] for file in files]))


@dataclass(frozen=True)
class Provenance:
    """What a run is made of besides its settings: by role users' code, and that which was accepted
    instead; the data, None where env.json does not say it.
    """

    code: Mapping[str, Code] = field(default_factory=dict)
    data: Data | None = None
    accepted: Mapping[str, Code] = field(default_factory=dict)

    def record(self) -> dict[str, object]:
        """As env.json has it."""
        code = {role: asdict(code) for role, code in self.code.items()}
        if self.data is None:
            return {"code": code}
        values = asdict(self.data).items()
        return {"code": code, "data": {k: v for k, v in values if v is not None or k != "file"}}

    @classmethod
    def read(cls, run: Path) -> Provenance:
        """What env.json says that a run is made of."""
        recorded = RunStore(run).read_environment()
        try:
            _ = [*recorded.get("resumed", ())]
            code, instead = (
                {role: Code(**each) for role, each in recorded.get(key, {}).items()}
                for key in ("code", ACCEPTED)
            )
            digests = Data(**recorded["data"] | {"dir": None}) if "data" in recorded else None
        except (AttributeError, TypeError) as error:
            damaged = "damaged: not what fedsim writes there; restore it, or remove it"
            raise ConfigError(f"{run / 'env.json'}: {damaged}") from error
        return cls(code, digests, instead)


def changed_code(before: Provenance, now: Mapping[str, Code]) -> str | None:
    """The first source file that differs from those that trained the run, or that were accepted."""
    for role, code in now.items():
        trained = before.accepted.get(role, before.code.get(role))
        if trained is None or trained.name != code.name or code in (trained, before.code.get(role)):
            continue  # another name is another setting, which is compared elsewhere
        paths = sorted({*trained.files, *code.files})
        file = next(path for path in paths if trained.files.get(path) != code.files.get(path))
        was, now_is = (each.files.get(file, "not there")[:SHOWN] for each in (trained, code))
        return f"{file} (of the {role} {code.name}) has changed: it was {was}, is {now_is} now"
    return None


def check_code(run: Path, before: Provenance, now: Mapping[str, Code], *, accept: bool) -> bool:
    """Whether a run is of other code, which is refused unless that is accepted."""
    change = changed_code(before, now)
    if change is not None and not accept:
        raise ConfigError(
            f"{run}: {change}; put the file back, or take the run as one of the code of now with "
            f"{ACCEPT}"
        )
    return change is not None


def check_data(run: Path, before: Provenance, now: Data | None, advice: str) -> None:
    """Refuses data that are not those of a run, as far as both are known."""
    if before.data is None or now is None:
        return
    differ = [PARTS[part] for part in PARTS if getattr(before.data, part) != getattr(now, part)]
    if differ:
        folder = f"data.dir {now.dir}: " if now.dir else ""
        raise DataError(
            f"{folder}{' and '.join(differ)} are not those that the run in {run} began with "
            f"(data {before.data.short}, now {now.short}); {advice}"
        )


def accept_code(run: Path, now: Mapping[str, Code]) -> None:
    """Records in env.json that a finished run counts as one of the code of now."""
    store = RunWriter(run)
    store.write("env.json", to_json(store.read_environment() | accepted(now)))
    logger.warning("%s: %s: its results are those of the code before the change", run, ACCEPT)


def accepted(now: Mapping[str, Code]) -> dict[str, object]:
    """The entry of env.json for code that is accepted."""
    return {ACCEPTED: Provenance(now).record()["code"]}
