"""FLamby's Fed-TCGA-BRCA from a checkout of its repository (github.com/owkin/FLamby).

Survival of 1088 patients with breast cancer in six regions, by 39 clinical features. FLamby keeps
the table in its repository; the data come from the GDC, whose policy forbids attempts to identify
participants. Split and order of the rows are FLamby's (du Terrail et al., NeurIPS 2022).
"""

from pathlib import Path

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.tables import read_table
from fedsim.data.dataset import TEST, TRAIN, DatasetInfo, Raw, Request
from fedsim.data.files import find_folder
from fedsim.data.table_features import number
from fedsim.tasks import find

FOLDER = Path("flamby", "datasets", "fed_tcga_brca")
TABLE, SPLIT = "brca.csv", Path("dataset_creation_scripts", "train_test_split.csv")
NOT_FEATURES = ("pid", "e", "t")
CENTERS = tuple(f"region_{k}" for k in range(6))


def tcga_brca(request: Request) -> Raw:
    """The patients of both parts, unscaled, as FLamby has them; a region's test patients are its
    own, and all of them together the pooled test part."""
    wanted = f"a checkout of FLamby, with {FOLDER / TABLE}"
    folder = find_folder(request.own_folder, [str(FOLDER)], [TABLE], wanted)
    split = read_table(folder / SPLIT, ("pid", "fold", "fold2"))
    place = {pid: row for row, pid in enumerate(split.columns["pid"])}
    folds = [f"{part}_{k}" for part in ("train", "test") for k in range(len(CENTERS))]
    fold = split.cells("fold2", folds.__contains__, f"{{}} is none of {', '.join(folds)}")
    table = read_table(folder / TABLE, NOT_FEATURES)
    table = table.rows([i for i, pid in enumerate(table.columns["pid"]) if pid in place])
    if len(table) != len(place):
        raise DataError(f"{folder / SPLIT}: {len(place)} patients, {len(table)} are in {TABLE}")
    cells = {
        name: table.cells(name, lambda cell: number(cell) is not None, "{} is no finite number")
        for name in table.columns
        if name != "pid"
    }
    numbers = {name: np.array(column, np.float32) for name, column in cells.items()}
    where = [fold[place[pid]].split("_") for pid in table.columns["pid"]]
    return Raw(
        source=folder / TABLE,
        x=np.column_stack([numbers[name] for name in numbers if name not in NOT_FEATURES]),
        y=np.column_stack([numbers["t"], numbers["e"]]),
        class_names=("risk",),
        parts=np.array([TRAIN if part == "train" else TEST for part, _ in where], np.int8),
        site=np.array([int(center) for _, center in where]),
        site_names=CENTERS,
        task=find("survival"),
    )


DATASETS = (
    DatasetInfo(
        "fed_tcga_brca", "FLamby's survival with breast cancer in six regions", tcga_brca,
        default_model="logistic", default_partition="by_site", needs_folder=True,
        source="a checkout of github.com/owkin/FLamby",
    ),
)  # fmt: skip
