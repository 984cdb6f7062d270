"""What a reader is asked for and returns, and the checked data set that is made of it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim import tasks
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.imports import users_code
from fedsim.core.task import TargetError, Task
from fedsim.core.types import Array, Dataset, LabelledSamples, Pipeline
from fedsim.data.holdout import held_out, held_out_by_user, strata
from fedsim.data.images import nearest, resize
from fedsim.data.patients import numbered

TRAIN, VAL, TEST, OWN_TEST = 0, 1, 2, 3
Parts = NDArray[np.int8]
"""(N,): TRAIN, VAL or TEST for every sample; OWN_TEST: only its site is tested on it."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What every reader is asked for, as :func:`fedsim.data.load` is.

    ``image_size`` None is the data set's default; ``source`` says how to get the data set. What a
    run keeps for new samples, where these are new: ``known_words``, and ``preprocessing`` as
    :meth:`fedsim.core.types.Preparation.record` gave it.
    """

    name: str
    folder: Path | None
    image_size: int | None = None
    split: str | None = None
    source: str = ""
    seed: int = 0
    num_clients: int = 50
    columns: Mapping[str, str] = field(default_factory=dict)
    known_words: tuple[str, ...] | None = None
    preprocessing: Mapping[str, Any] | None = None
    task: Task | None = None  # that is asked for; None: the data set's own

    @property
    def target(self) -> str:
        """What of the data is learnt, see :class:`~fedsim.core.task.Task`."""
        return "class" if self.task is None else self.task.target

    @property
    def own_folder(self) -> Path:
        """``folder``; a ConfigError where none was given."""
        if self.folder is None:
            raise ConfigError(f"data set {self.name!r} needs data.dir: {self.source}")
        return self.folder


@dataclass(frozen=True, kw_only=True)
class Raw(LabelledSamples):
    """What a reader returns; images are square, mean and std are by channel, of values in 0..1."""

    source: Path | str  # that was read, for messages
    mean: tuple[float, ...] = ()  # by default 0.5
    std: tuple[float, ...] = ()  # by default 0.5
    parts: Parts | None = None  # where the files say so; else they are drawn
    size: int | None = None  # the model's, where ``x`` is fitted on the device; None: resized once
    augment: str = "none"  # the training augmentation of the published pipeline


Reader = Callable[..., Raw]
"""A function of a :class:`Request`; its keyword-only parameters are options of the data set."""


@dataclass(frozen=True)
class DatasetInfo:
    """An entry of the catalogue, listed in ``DATASETS`` of a module of :mod:`fedsim.data.readers`.

    ``name`` is the value of ``data.name`` and the section of the options: the typed keyword-only
    parameters of ``read``.
    """

    name: str
    title: str
    read: Reader
    num_classes: int = 0  # 0: the files say it
    image_size: int = 0  # height and width that the model sees by default; 0: as stored
    channels: int = 0
    _: KW_ONLY
    default_model: str = "cnn"
    default_partition: str = "dirichlet"  # or files, by_site, natural
    source: str = "downloaded on first use"
    needs_folder: bool = False
    generated: bool = False  # for ``data.num_clients``, where no ``data.dir`` is given
    client_folders: bool = False  # ``data.partition_file`` may name a folder of client lists
    columns: tuple[str, ...] = ()  # what ``data.columns`` may name
    prepared: bool = False  # samples depend on which of them are for training (scaling)


def parts_of(train: int, val: int, test: int) -> Parts:
    """The parts of images that lie in the order training, validation, test."""
    return np.repeat(np.array([TRAIN, VAL, TEST], dtype=np.int8), [train, val, test])


def assemble(
    raw: Raw,
    name: str,
    *,
    image_size: int | None,
    enlarge: bool = True,
    augment: str | None,
    val_fraction: float,
    test_fraction: float,
    seed: int,
    group: str = "none",
    whole: bool = False,
    task: Task | None = None,
) -> Dataset:
    """Draws the parts that the files do not give, settles the image size and checks everything.

    Arguments as in :func:`fedsim.data.load`.
    """
    if not len(raw.y):
        raise DataError(f"{raw.source}: data set {name}: there are no samples")
    try:
        raw = replace(raw, **for_task(raw, task))
    except TargetError as error:
        raise DataError(f"{raw.source}: data set {name}: {error}") from error
    if whole:
        parts = np.full(len(raw.y), TEST, dtype=np.int8)
    else:
        parts = _parts(raw, group, val_fraction, test_fraction, seed)
    x = raw.x
    if raw.prepare is not None:
        fixed = parts if raw.parts is None or not whole else raw.parts
        x = raw.prepare(np.flatnonzero(fixed == TRAIN))
    pipeline = None
    if x.ndim == 4:
        if not raw.size and image_size is not None and (enlarge or image_size < x.shape[-1]):
            x = resize(x, image_size)
            if raw.y.ndim == 3:
                raw = replace(raw, y=nearest(raw.y, image_size))
        half = (0.5,) * x.shape[1]
        pipeline = Pipeline(
            size=raw.size or x.shape[-1],
            mean=raw.mean or half,
            std=raw.std or half,
            augment=raw.augment if augment is None else augment,
        )
    elif image_size is not None or augment not in (None, "none"):
        key = "image_size" if image_size is not None else "augment"
        kind = "texts" if raw.vocabulary else "features"
        raise ConfigError(f"data.{key} {image_size or augment!r}: {name} has {kind}, no images")
    clients = raw.clients
    if clients is not None:
        clients = {client: i[parts[i] == TRAIN] for client, i in clients.items()}
    samples = {field.name: getattr(raw, field.name) for field in fields(LabelledSamples)}
    names = {TRAIN: "train", VAL: "val", TEST: "test", OWN_TEST: "own_test"}
    of_parts = {of: np.flatnonzero(parts == part) for part, of in names.items()}
    dataset = Dataset(
        **samples | {"x": x, "clients": clients} | of_parts, name=name, pipeline=pipeline
    )
    check(dataset, str(raw.source), whole)
    return dataset


def for_task(data: LabelledSamples, task: Task | None) -> dict[str, Any]:
    """What changes for a task that is asked for: where it needs more outputs than have names, they
    are called by number. A TargetError where the targets are not of its shape."""
    if task is None:
        return {}
    try:
        with users_code(f"task {task.name!r}, check", DataError):
            task.check(data.y)
    except TargetError as error:
        if error.row is None:
            raise TargetError(f"task {task.name}: {error}") from error
        return {"task": task}  # `check` names the file too
    with users_code(f"task {task.name!r}", DataError):
        outputs = range(task.width(data.y))
    if task.cross_entropy or len(outputs) <= len(data.class_names):
        return {"task": task}
    return {"task": task, "class_names": tuple(f"output_{k}" for k in outputs)}


def in_one_part(dataset: Dataset) -> Dataset:
    """The data set with all of its samples as the test part."""
    none = dataset.test[:0]
    return replace(dataset, train=none, val=none, test=np.arange(len(dataset.y)), own_test=none)


def _parts(raw: Raw, group: str, val_fraction: float, test_fraction: float, seed: int) -> Parts:
    """TRAIN, VAL or TEST for every sample: as the files say, and drawn where they do not.

    Drawn within users, else by class, site and patient.
    """
    patient, source, label = raw.patient, str(raw.source), strata(raw)
    many = max(len(raw.class_names), 1 + int(label.max(initial=0)))
    if patient is not None and (group == "patient" or (group == "auto" and raw.clients is None)):
        patient = numbered(patient, raw.site)
    parts = np.full(len(raw.y), TRAIN, dtype=np.int8) if raw.parts is None else raw.parts.copy()
    for part, fraction in ((TEST, test_fraction), (VAL, val_fraction)):
        if fraction <= 0 or (parts == part).any():
            continue
        train = np.flatnonzero(parts == TRAIN)
        draw = fraction, seed, "split.test" if part == TEST else "split.val", source
        if raw.sites_are_users and raw.site is not None:
            chosen = held_out_by_user(label[train], raw.site[train], *draw)
        else:
            stratum = label if raw.site is None else label + many * raw.site
            members = None if patient is None else patient[train]
            chosen = held_out(stratum[train], members, *draw)
        parts[train[chosen]] = part
    return parts


def check(dataset: Dataset, source: str, whole: bool = False) -> None:
    """Refuses a data set that breaks the contract; one that is ``whole`` needs no training part."""
    for kept, message in chain(_of_samples(dataset), _of_parts(dataset, whole)):
        if not kept:
            raise DataError(f"{source}: data set {dataset.name}: {message}")


Rules = Iterator[tuple[bool, str]]
"""Whether a rule is kept, and what to say if not; a rule may count on those before it."""


def _of_samples(d: Dataset) -> Rules:
    """The rules for x, y and how they are read."""
    x, y = d.x, d.y
    arrays = {"x": x, "y": y, "train": d.train, "val": d.val, "test": d.test}
    odd = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    yield not odd, f"{', '.join(odd)} has to be a NumPy array"
    if d.pipeline is not None:
        from fedsim.data.transforms import check_augment  # imports torch, which takes seconds

        check_augment(d.pipeline.augment)
        masks, size = tasks.of(d).output == "pixel", d.pipeline.size
        still = (
            f"data.augment {d.pipeline.augment!r}: moves pixels, and masks would stay; give none"
        )
        yield not masks or d.pipeline.augment == "none", still
        fitted = f"images of {x.shape[-1]} pixels a side are fitted to {size}, and masks are not"
        yield not masks or x.shape[-1] == size, fitted
        shaped = x.dtype == np.uint8 and x.ndim == 4 and x.shape[2] == x.shape[3]
        yield shaped, f"x is {x.dtype} {x.shape}, needed is uint8 (N, channels, H, H)"
        normal = len(d.pipeline.mean) == len(d.pipeline.std) == x.shape[1]
        yield normal, f"mean and std need {x.shape[1]} values"
        yield min(d.pipeline.std) > 0 and d.pipeline.size > 0, "std and size have to be > 0"
        yield d.vocabulary == 0, f"images with a vocabulary of {d.vocabulary}"
    elif d.vocabulary:
        kind = f"x is {x.dtype} {x.shape}, needed is int32 (N, T) as tokens"
        yield x.dtype == np.int32 and x.ndim == 2, kind
        yield _within(x, 0, d.vocabulary), f"tokens outside the vocabulary 0..{d.vocabulary - 1}"
        sized = not d.words or 0 <= d.vocabulary - len(d.words) <= 1
        yield sized, f"{len(d.words)} words for a vocabulary of {d.vocabulary}"
    else:
        kind = f"x is {x.dtype} {x.shape}, needed is float32 (N, d) without a pipeline"
        yield x.dtype == np.float32 and x.ndim == 2, kind
        yield bool(np.isfinite(x).all()), "features that are not finite"
    task = tasks.of(d)
    by_token = d.vocabulary > 0 and y.shape == x.shape
    shaped = len(y) == len(x) and (task.output != "token" or by_token)
    yield shaped, f"y is {y.dtype} {y.shape} for x {x.shape}"
    masked = task.output != "pixel" or y.shape[1:] == x.shape[2:]
    yield masked, f"masks {y.shape} are not of the size of the images {x.shape}"
    yield _targets(task, d)
    yield from _all_differ("class", d.class_names)
    least, last = task.width(y), d.num_classes - 1
    yield (
        least <= d.num_classes,
        (f"labels outside the classes 0..{last}: needed are {least}, there are {d.class_names}"),
    )
    yield _within(np.array(d.never_right), 0, last + 1), f"never_right outside 0..{last}"


def _targets(task: Task, d: Dataset) -> tuple[bool, str]:
    """Whether the targets are those of the task."""
    try:
        task.check(d.y)
    except TargetError as error:
        file = f" ({d.files[error.row]})" if error.row is not None and d.files else ""
        row = "" if error.row is None else f"sample {error.row}{file}: "
        return False, f"{row}{error}"
    return True, ""


def _of_parts(d: Dataset, whole: bool) -> Rules:
    """The rules for parts, sites and groups."""
    n, parts = len(d.y), (d.train, d.val, d.test)
    yield whole or len(d.train) > 0, "the training part is empty"
    yield len(d.test) > 0, "the test part is empty"
    indices = all(p.dtype == np.int64 and p.ndim == 1 for p in parts)
    yield indices, "train, val and test have to be int64 index arrays"
    every = np.concatenate(parts)
    disjoint = _within(every, 0, n) and not (np.bincount(every) > 1).any()
    yield disjoint, f"train, val and test have to be disjoint indices in 0..{n - 1}"
    apart = _within(d.own_test, 0, n) and not np.isin(d.own_test, every).any()
    yield apart, "own_test has to be indices of samples in no other part"
    yield d.site is not None or not len(d.own_test), "own_test needs a site for each sample"
    yield d.site is not None or not d.sites_are_users, "users need a site for each sample"
    yield from _all_differ("site", d.site_names)
    people = ("site", d.site, d.site_names), ("patient", d.patient, d.patient_names)
    for kind, codes, names in people:
        shaped = codes is None or (codes.shape == (n,) and codes.dtype == np.int64)
        yield shaped, f"{kind} needs one int64 value per sample"
        in_range = codes is None or not names or _within(codes, 0, len(names))
        yield in_range, f"{kind} is outside the {len(names)} names of {kind}s"
    yield len(d.files) in (0, n), f"{len(d.files)} files, needed is one per sample or none"
    inside = all(len(g) and np.isin(g, d.test).all() for g in d.groups.values())
    yield inside, "groups are empty or name samples outside the test part"


def _all_differ(kind: str, names: Sequence[str]) -> Rules:
    for name, times in Counter(names).most_common(1):
        yield times == 1, f"the {kind} name {name!r} is given twice"


def _within(values: Array, low: int, end: int) -> bool:
    return values.size == 0 or bool(values.min() >= low and values.max() < end)
