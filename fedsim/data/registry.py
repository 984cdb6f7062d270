"""The data sets by name, and how one is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedsim.core.errors import ConfigError, DataError, nearest
from fedsim.core.imports import call, resolve, signature
from fedsim.core.types import Dataset
from fedsim.data.dataset import Reader, Request, assemble, check
from fedsim.data.readers.cifar import cifar10, cifar100
from fedsim.data.readers.digits import digits
from fedsim.data.readers.folder import folder as image_folder
from fedsim.data.readers.idx import fashion_mnist, mnist
from fedsim.data.readers.leaf import celeba, femnist
from fedsim.data.readers.leaf_text import reddit, sent140, shakespeare
from fedsim.data.readers.medical import covid_fl, retina
from fedsim.data.readers.medmnist import MEDMNIST, REFUSED
from fedsim.data.readers.npz import medmnist, with_sites
from fedsim.data.readers.shortcut import shortcut
from fedsim.data.readers.synthetic import synthetic
from fedsim.data.readers.tiny_imagenet import tiny_imagenet
from fedsim.data.transforms import check_augment

__all__ = ["DatasetInfo", "catalogue", "load"]

_READERS: Mapping[str, Reader] = {
    "digits": digits,
    "shortcut": shortcut,
    "retina": retina,
    "covid_fl": covid_fl,
    "covid_cxr": with_sites,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tiny_imagenet": tiny_imagenet,
    "femnist": femnist,
    "celeba": celeba,
    "shakespeare": shakespeare,
    "sent140": sent140,
    "reddit": reddit,
    "synthetic": synthetic,
    "npz": with_sites,
    "folder": image_folder,
    **dict.fromkeys(MEDMNIST, medmnist),
}
_WITH_SPLITS = ("retina", "covid_fl")


def load(
    name: str,
    folder: Path | None = None,
    *,
    image_size: int | None = None,
    augment: str | None = None,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    seed: int = 0,
    split: str | None = None,
    num_clients: int = 50,
    samples_per_client: int = 60,
    correlation: float = 0.9,
    synthetic_alpha: float = 0.0,
    synthetic_beta: float = 0.0,
    synthetic_iid: bool = False,
) -> Dataset:
    """Loads a data set by name, or by ``module:function``.

    A function of the user's is called with ``folder`` and those of the keyword arguments below,
    down to ``split``, that it accepts, and returns a :class:`fedsim.core.types.Dataset`.

    Args:
        name: of the catalogue, or ``module:function``.
        folder: ``data.dir``, the folder with the data set's own files, or that folder's parent.
            None: the embedded data set, or one that is downloaded into the cache.
        image_size: height and width in pixels that the model sees; None: the data set's default.
        augment: training augmentation, a key of :data:`fedsim.data.transforms.AUGMENTS`; None:
            the data set's default.
        val_fraction: of the training part, held out by ``seed`` as validation part where the data
            set has none of its own; stratified, and by patient where known.
        test_fraction: the same for a test part.
        seed: ``data.seed``, which draws these parts.
        split: the folder of client lists, for data sets that have such folders (retina:
            ``split_1``, ``split_2``, ...).
        num_clients: sites or users of generated data (shortcut, synthetic), of which each becomes
            a client.
        samples_per_client: training images of such a site.
        correlation: of the site's mark with the class there, in 0..1.
        synthetic_alpha: alpha of synthetic, see :mod:`fedsim.data.readers.synthetic`, >= 0.
        synthetic_beta: beta of it, >= 0.
        synthetic_iid: they do not differ.

    Raises:
        ConfigError: an unknown name or option.
        DataError: files that are missing, damaged or mislabelled; names file and row.
    """
    _check_options(image_size, augment, val_fraction, test_fraction)
    _check_generated(num_clients, samples_per_client, correlation)
    for key, value in (("alpha", synthetic_alpha), ("beta", synthetic_beta)):
        if not (value >= 0 and math.isfinite(value)):
            raise ConfigError(f"data.synthetic_{key} {value} must be a finite number >= 0")
    options = {
        "image_size": image_size,
        "augment": augment,
        "val_fraction": val_fraction,
        "test_fraction": test_fraction,
        "seed": seed,
    }
    if ":" in name:
        return _own(name, folder, {**options, "split": split})
    if name in REFUSED:
        raise ConfigError(f"data set {name!r} {REFUSED[name]}")
    if name not in _READERS:
        known = ", ".join(_READERS)
        raise ConfigError(
            f"data set {name!r} is unknown{nearest(name, _READERS)}; known: {known}, or "
            "module:function"
        )
    if split is not None and name not in _WITH_SPLITS:
        raise ConfigError(f"data.partition_file {split!r}: {name} has no folders of client lists")
    source = next(info.source for info in catalogue() if info.name == name)
    request = Request(
        name,
        folder,
        image_size,
        split,
        source,
        seed,
        num_clients,
        samples_per_client,
        correlation,
        val_fraction,
        synthetic_alpha,
        synthetic_beta,
        synthetic_iid,
    )
    raw = _READERS[name](request)
    return assemble(
        raw,
        name,
        image_size=image_size,
        augment=augment,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        seed=seed,
    )


def _check_options(
    image_size: int | None, augment: str | None, val_fraction: float, test_fraction: float
) -> None:
    if image_size is not None and image_size < 1:
        raise ConfigError(f"data.image_size {image_size} must be at least 1")
    if augment is not None:
        check_augment(augment)
    if not 0 <= val_fraction < 1:
        raise ConfigError(f"data.val_fraction {val_fraction} must be at least 0 and below 1")
    if not 0 < test_fraction < 1:
        raise ConfigError(f"data.test_fraction {test_fraction} must be above 0 and below 1")


def _check_generated(num_clients: int, samples_per_client: int, correlation: float) -> None:
    if num_clients < 1:
        raise ConfigError(f"data.num_clients {num_clients} must be at least 1")
    if samples_per_client < 2:
        raise ConfigError(
            f"data.samples_per_client {samples_per_client} must be at least 2, one of each class"
        )
    if not 0 <= correlation <= 1:
        raise ConfigError(f"data.correlation {correlation} must be in 0..1")


def _own(name: str, folder: Path | None, options: Mapping[str, object]) -> Dataset:
    """Calls a user's loader, ``module:function``, and checks what it returns."""
    where = f"data set {name!r}"
    function = resolve(name, where)
    parameters = signature(function, where).parameters
    every = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    accepted = {key: value for key, value in options.items() if every or key in parameters}
    dataset = call(function, where, folder, **accepted)
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"{where}: the function returned {type(dataset).__name__}, needed is "
            "fedsim.core.types.Dataset"
        )
    check(dataset, name)
    return dataset


@dataclass(frozen=True)
class DatasetInfo:
    """One data set of the catalogue.

    Args:
        name: the value of ``data.name``.
        title: what it is, in a line.
        num_classes: 0 where the files say it.
        image_size: default height and width in pixels that the model sees, 0: as stored, or no
            images.
        channels: 0 where the files say it, or no images.
        default_model: the model that ``fedsim run`` takes for it.
        default_partition: ``files``, ``by_site``, ``natural`` or ``dirichlet``.
        source: how to get it.
        needs_folder: whether ``data.dir`` has to be given.
        generated: whether its samples are drawn for ``data.num_clients`` sites or users where
            no ``data.dir`` is given.
    """

    name: str
    title: str
    num_classes: int
    image_size: int
    channels: int
    default_model: str = "cnn"
    default_partition: str = "dirichlet"
    source: str = "downloaded on first use"
    needs_folder: bool = False
    generated: bool = False


_FEDLD = (
    "as SSL-FL and FedLD lay it out: train/, test/, labels.csv, train.csv, test.csv, *_clients/"
)
_NPZ = "an npz with images, labels[, sites, site_names][, patients][, class_names]"


def _leaf(name: str, title: str, classes: int, size: int = 0, channels: int = 0) -> DatasetInfo:
    return DatasetInfo(
        name,
        title,
        classes,
        size,
        channels,
        default_model=f"leaf_{name}",
        default_partition="natural",
        source="a folder with LEAF's json files in train/ and test/",
        needs_folder=True,
    )


_OWN = (
    DatasetInfo("digits", "scikit-learn's 1,797 hand-written digits", 10, 8, 1, source="embedded"),
    DatasetInfo(
        "shortcut",
        "drawn eyes with lesions, and marks of the sites that go with the disease in training",
        2,
        32,
        3,
        default_partition="by_site",
        source="generated",
        generated=True,
    ),
    DatasetInfo(
        "retina",
        "diabetic retinopathy, normal or diseased (SSL-FL, FedLD)",
        2,
        384,
        3,
        default_partition="files",
        source=f"a folder Retina/ {_FEDLD}",
        needs_folder=True,
    ),
    DatasetInfo(
        "covid_fl",
        "chest X-rays of several hospitals: normal, pneumonia, COVID-19 (SSL-FL, FedLD)",
        3,
        384,
        3,
        default_partition="files",
        source=f"a folder COVID-FL/ {_FEDLD}",
        needs_folder=True,
    ),
    DatasetInfo(
        "covid_cxr",
        "chest X-rays with their hospitals: normal, pneumonia, COVID-19",
        3,
        0,
        1,
        default_partition="by_site",
        source=_NPZ,
        needs_folder=True,
    ),
    DatasetInfo("mnist", "hand-written digits", 10, 28, 1),
    DatasetInfo("fashion_mnist", "Zalando's pieces of clothing", 10, 28, 1),
    DatasetInfo("cifar10", "small photographs, 10 classes", 10, 32, 3),
    DatasetInfo("cifar100", "small photographs, 100 classes", 100, 32, 3),
    DatasetInfo(
        "tiny_imagenet",
        "small photographs, 200 classes of ImageNet",
        200,
        64,
        3,
        default_model="mobilenetv2_cifar",
    ),
    _leaf("femnist", "LEAF: hand-written digits and letters, by writer", 62, 28, 1),
    _leaf("celeba", "LEAF: celebrities, smiling or not", 2, 84, 3),
    _leaf("shakespeare", "LEAF: the next character of what a role says", 80),
    _leaf("sent140", "LEAF: tweets, positive or negative, by account", 2),
    _leaf("reddit", "LEAF: the next word of comments, by account", 0),
    DatasetInfo(
        "synthetic",
        "features of users with models of their own: synthetic(alpha, beta) of FedProx",
        10,
        0,
        0,
        default_model="leaf_synthetic",
        default_partition="natural",
        source="generated; or LEAF's json in data.dir",
        generated=True,
    ),
    DatasetInfo(
        "npz",
        "your own arrays, with sites and patients where known",
        0,
        0,
        0,
        source=_NPZ,
        needs_folder=True,
    ),
    DatasetInfo(
        "folder",
        "your own image files and a table",
        0,
        224,
        3,
        source="a folder with labels.csv (filename,label[,site][,patient][,split]) and the images",
        needs_folder=True,
    ),
)


def catalogue() -> tuple[DatasetInfo, ...]:
    """All data sets by name, the embedded default first, MedMNIST last."""
    medical = (
        DatasetInfo(name, f"MedMNIST: {m.title}", len(m.class_names), 28, m.channels)
        for name, m in MEDMNIST.items()
    )
    return (*_OWN, *medical)
