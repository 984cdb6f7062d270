"""Tables that come with scikit-learn, so that nothing is downloaded: diabetes (Efron et al., 2004),
442 patients, 10 features and the progression of the disease after a year."""

import numpy as np

from fedsim.data.dataset import DatasetInfo, Raw, Request
from fedsim.tasks import find


def diabetes(_request: Request) -> Raw:
    """Features as scikit-learn standardises them; the target in units of its standard deviation."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    x = x / x.std(axis=0)
    y = (y - y.mean()) / y.std()
    return Raw(
        source="scikit-learn's diabetes",
        x=x.astype(np.float32),
        y=y.astype(np.float32),
        class_names=("progression",),
        task=find("regression"),
    )


DATASETS = (
    DatasetInfo(
        "diabetes", "disease progression of 442 patients, regression", diabetes,
        default_model="logistic", source="embedded",
    ),
)  # fmt: skip
