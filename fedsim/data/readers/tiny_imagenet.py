"""Reader of Tiny-ImageNet in its original layout; classes in the order of the sorted ids."""

from pathlib import Path

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.tables import read_lines
from fedsim.data.cache import fetch, packed, unpacked
from fedsim.data.dataset import DatasetInfo, Raw, Request, parts_of
from fedsim.data.files import find_folder, inside
from fedsim.data.images import decode, sides

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
_ROOT = "tiny-imagenet-200"


def tiny_imagenet(request: Request) -> Raw:
    """Tiny-ImageNet: ``data.dir`` with tiny-imagenet-200/ or with its files, or downloaded.

    Classes are numbered by the sorted ids of wnids.txt. The labelled val/ is the common test part;
    test/ has no labels. Images keep their size without ``image_size``; grey ones become RGB.
    """
    if request.folder is None:
        archive = fetch((URL,), MD5, "tiny_imagenet", f"{_ROOT}.zip")
        root = unpacked(archive, "tiny_imagenet/files") / _ROOT
    else:
        below = (_ROOT, f"{request.name}/{_ROOT}")
        root = find_folder(request.folder, below, ("wnids.txt",), f"{_ROOT}/")
    ids = sorted({line for _, line in read_lines(root / "wnids.txt")})
    train = [
        (file, label) for label, wnid in enumerate(ids) for file in _images(root / "train" / wnid)
    ]
    test = _annotated(root, {wnid: label for label, wnid in enumerate(ids)})
    files, y = zip(*(train + test), strict=True)
    size = request.image_size or min(sides(files[0]))
    words = root / "words.txt"
    lines = read_lines(words) if words.is_file() else []
    names = {wnid: name for wnid, _, name in (line.partition("\t") for _, line in lines)}
    return Raw(
        source=root,
        x=packed("tiny_imagenet", files, size, decode),
        y=np.array(y, dtype=np.int64),
        class_names=tuple(names.get(wnid) or wnid for wnid in ids),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        parts=parts_of(len(train), 0, len(test)),
        size=size,
        files=tuple(file.relative_to(root).as_posix() for file in files),
    )


def _images(folder: Path) -> list[Path]:
    """The images of a class, in images/ (or in the folder itself), by name."""
    place = folder / "images" if (folder / "images").is_dir() else folder
    files = sorted(place.glob("*.JPEG"))
    if not files:
        raise DataError(f"{place}: there are no files *.JPEG")
    return files


def _annotated(root: Path, label: dict[str, int]) -> list[tuple[Path, int]]:
    """The images of val/ and their labels, by name."""
    table, place = root / "val" / "val_annotations.txt", root / "val" / "images"
    labels: dict[Path, int] = {}
    for number, line in read_lines(table):
        where = f"{table}, row {number}"
        name, wnid, *_ = (*line.split("\t"), "")
        if wnid not in label:
            raise DataError(f"{where}: {wnid!r} is no id of {root / 'wnids.txt'}")
        labels[inside(place, name, where)] = label[wnid]
    missing = [file.name for file in _images(place) if file not in labels]
    if missing:
        raise DataError(f"{table}: no row for {missing[0]!r} of {place}")
    return sorted(labels.items())


DATASETS = (
    DatasetInfo(
        name="tiny_imagenet",
        title="small photographs, 200 classes of ImageNet",
        read=tiny_imagenet,
        num_classes=200,
        image_size=64,
        channels=3,
        default_model="mobilenetv2_cifar",
    ),
)
