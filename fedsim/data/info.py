"""Which data sets there are: what ``fedsim list datasets`` shows."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.data.medmnist_info import MEDMNIST


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
