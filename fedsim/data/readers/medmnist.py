"""MedMNIST's 2-D data sets with one label per image.

Source of names, classes and md5 sums: ``medmnist/info.py`` of MedMNIST 3 (https://medmnist.com),
which serves the files from Zenodo record 10519652. Licence of the data: CC BY 4.0, but for
dermamnist CC BY-NC 4.0.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.files import check_images, check_labels, find_folder
from fedsim.data.dataset import DatasetInfo, Raw, Request, parts_of
from fedsim.data.download import fetch
from fedsim.data.readers.npz import load_npz

URL = "https://zenodo.org/records/10519652/files/{file}?download=1"
SIZES = (28, 64, 128, 224)
REFUSED = {"chestmnist": "has 14 labels per image, and fedsim's losses take one label per image"}
_ORGANS = ("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver",
 "lung-left", "lung-right", "pancreas", "spleen")  # fmt: skip


class MedInfo(NamedTuple):
    """A row of the table; the md5 sums are those of the files in the order of SIZES."""

    title: str
    channels: int
    class_names: tuple[str, ...]
    md5: tuple[str, str, str, str]


MEDMNIST = {
    "pathmnist": MedInfo(
        "colorectal cancer histology", 3,
        ("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle",
         "normal colon mucosa", "cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
        ("a8b06965200029087d5bd730944a56c1", "55aa9c1e0525abe5a6b9d8343a507616",
         "ac42d08fb904d92c244187169d1fd1d9", "2c51a510bcdc9cf8ddb2af93af1eadec"),
    ),
    "dermamnist": MedInfo(
        "pigmented skin lesions (HAM10000)", 3,
        ("actinic keratoses and intraepithelial carcinoma", "basal cell carcinoma",
         "benign keratosis-like lesions", "dermatofibroma", "melanoma", "melanocytic nevi",
         "vascular lesions"),
        ("0744692d530f8e62ec473284d019b0c7", "b70a2f5635c6199aeaa28c31d7202e1f",
         "2defd784463fa5243564e855ed717de1", "8974907d8e169bef5f5b96bc506ae45d"),
    ),
    "octmnist": MedInfo(
        "retinal optical coherence tomography", 1,
        ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
        ("c68d92d5b585d8d81f7112f81e2d0842", "e229e9440236b774d9f0dfef9d07bdaf",
         "0a97e76651ace45c5d943ee3f65b63ae", "abc493b6d529d5de7569faaef2773ba3"),
    ),
    "pneumoniamnist": MedInfo(
        "paediatric chest X-rays", 1,
        ("normal", "pneumonia"),
        ("28209eda62fecd6e6a2d98b1501bb15f", "8f4eceb4ccffa70c672198ea285246c6",
         "05b46931834c231683c68f40c47b2971", "d6a3c71de1b945ea11211b03746c1fe1"),
    ),
    "retinamnist": MedInfo(
        "grades of diabetic retinopathy (DeepDRiD)", 3,
        ("0", "1", "2", "3", "4"),
        ("bd4c0672f1bba3e3a89f0e4e876791e4", "afda852cc34dcda56f86ad2b2457dbcc",
         "e48e916a24454daf90583d4e6efb1a18", "eae7e3b6f3fcbda4ae613ebdcbe35348"),
    ),
    "breastmnist": MedInfo(
        "breast ultrasound", 1,
        ("malignant", "normal, benign"),
        ("750601b1f35ba3300ea97c75c52ff8f6", "742edef2a1fd1524b2efff4bd7ba9364",
         "363e4b3f8d712e9b5de15470a2aaadf1", "b56378a6eefa9fed602bb16d192d4c8b"),
    ),
    "bloodmnist": MedInfo(
        "blood cells under the microscope", 3,
        ("basophil", "eosinophil", "erythroblast",
         "immature granulocytes (myelocytes, metamyelocytes and promyelocytes)", "lymphocyte",
         "monocyte", "neutrophil", "platelet"),
        ("7053d0359d879ad8a5505303e11de1dc", "2b94928a2ae4916078ca51e05b6b800b",
         "adace1e0ed228fccda1f39692059dd4c", "b718ff6835fcbdb22ba9eacccd7b2601"),
    ),
    "tissuemnist": MedInfo(
        "kidney cortex cells", 1,
        ("collecting duct, connecting tubule", "distal convoluted tubule",
         "glomerular endothelial cells", "interstitial endothelial cells", "leukocytes",
         "podocytes", "proximal tubule segments", "thick ascending limb"),
        ("ebe78ee8b05294063de985d821c1c34b", "123ece2eba09d0aa5d698fda57103344",
         "61b955355d7425a89687b06cca3ce0c2", "b077128c4a949f0a4eb01517f9037b9c"),
    ),
    "organamnist": MedInfo(
        "abdominal CT, axial slices", 1,
        _ORGANS,
        ("68e3f8846a6bd62f0c9bf841c0d9eacc", "2dcccc29b88e6da5a01161ef20cda288",
         "eeae80d0a227a8d099027e1b3cfd3b60", "50747347e05c87dd3aaf92c49f9f3170"),
    ),
    "organcmnist": MedInfo(
        "abdominal CT, coronal slices", 1,
        _ORGANS,
        ("b9ceb9546e10131b32923c5bbeaea2b1", "3ce34a8724ea6f548e6db4744d03b6a9",
         "773c1f009daa3fe5d9a2a201b2a7ed94", "050f5e875dc056f6768abf94ec9995d1"),
    ),
    "organsmnist": MedInfo(
        "abdominal CT, sagittal slices", 1,
        _ORGANS,
        ("9ab87b696fb54e2a387ebe992d6ed5f1", "53a6d115339d874c25e309a994ff46d3",
         "ded0c5fa01a95dc4978b956f613e9b8e", "b354719e553fbbb2513d5533f52a4cb1"),
    ),
}  # fmt: skip


def medmnist(request: Request) -> Raw:
    """A MedMNIST set, from ``data.dir`` or downloaded.

    ``data.image_size`` 28, 64, 128 and 224 take the file of that size; other sizes are made from
    the next larger file that is there (the download takes it), else from the largest.
    A local file may be a re-saved copy: its md5 is not asked for, its structure is.
    """
    info = MEDMNIST[request.name]
    if request.folder is None:
        size = next((s for s in SIZES if s >= (request.image_size or 28)), SIZES[-1])
        file, md5 = _file(request.name, size), info.md5[SIZES.index(size)]
        path = fetch((URL.format(file=file),), md5, "medmnist", file)
    else:
        path, size = _local(request.folder, request.name, request.image_size or 28)
    parts = ("train", "val", "test")
    arrays = load_npz(path, tuple(f"{p}_{what}" for p in parts for what in ("images", "labels")))
    images, labels = [], []
    for part in parts:
        where = f"{path}, {part}_labels"
        labels.append(check_labels(arrays[f"{part}_labels"], len(info.class_names), where))
        x = check_images(arrays[f"{part}_images"], len(labels[-1]), f"{path}, {part}_images")
        if x.shape[1:] != (info.channels, size, size):
            raise DataError(
                f"{path}: {part}_images are {x.shape[1:]} (channels, height, width), "
                f"{request.name} at {size} has {(info.channels, size, size)}"
            )
        images.append(x)
    return Raw(
        source=path,
        x=np.concatenate(images),
        y=np.concatenate(labels),
        class_names=info.class_names,
        mean=(0.5,) * info.channels,
        std=(0.5,) * info.channels,
        parts=parts_of(*map(len, labels)),
    )


def _file(name: str, size: int) -> str:
    return f"{name}.npz" if size == SIZES[0] else f"{name}_{size}.npz"


def _local(folder: Path, name: str, image_size: int) -> tuple[Path, int]:
    """The file to take for ``image_size`` and the size it stores."""
    sizes = SIZES if image_size not in SIZES else (image_size,)
    names = [_file(name, size) for size in sizes]
    url = URL.format(file=_file(name, next((s for s in sizes if s >= image_size), SIZES[-1])))
    place = find_folder(folder, (name,), names, f"the file of {url}")
    present = [size for size in sizes if (place / _file(name, size)).exists()]
    size = next((s for s in present if s >= image_size), present[-1])
    return place / _file(name, size), size


DATASETS = tuple(
    DatasetInfo(
        name=name,
        title=f"MedMNIST: {info.title}",
        read=medmnist,
        num_classes=len(info.class_names),
        image_size=SIZES[0],
        channels=info.channels,
    )
    for name, info in MEDMNIST.items()
)
