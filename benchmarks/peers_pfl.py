"""The same work in pfl-research's simulation, for a Python that has ``pfl`` and torch.

Runs in pfl's own environment, as many processes as torchrun starts: of this project only
:mod:`benchmarks.models` is imported. Users' data are tensors on each process's device; nothing is
evaluated.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks import models


class Net(nn.Module):
    """A network with the loss and the metrics that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        """Mean cross-entropy of a batch."""
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
        """Summed cross-entropy of a batch."""
        with torch.no_grad():
            return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Moments(TrainingProcessCallback):  # type: ignore[misc]
    """Notes when rounds end."""

    def __init__(self) -> None:
        self.ends = [time.perf_counter()]

    def after_central_iteration(self, *given: Any, **named: Any) -> tuple[bool, Metrics]:
        """Never stops the run."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        return False, Metrics()


def main(folder: Path) -> None:
    """Runs the job of the folder; the first process writes the seconds of each round."""
    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002, TID251 - pfl draws from it
    job = json.loads((folder / "job.json").read_text())
    with np.load(folder / "data.npz") as arrays:
        x, y, clients = (torch.from_numpy(arrays[name]) for name in ("x", "y", "clients"))
    x, y = x.to(job["device"]), y.to(job["device"])
    users = {
        str(user): PyTorchTensorDataset(
            (x[index], y[index]),
            user_id=str(user),
            train_kwargs={"eval": False},
            eval_kwargs={"eval": True},
        )
        for user, index in enumerate(clients)
    }
    data = FederatedDataset(users.__getitem__, MinimizeReuseUserSampler(list(users)))
    name, *sizes = job["model"]
    net = Net(getattr(models, name)(*sizes)).to(job["device"])
    sgd = partial(torch.optim.SGD, momentum=job["momentum"], weight_decay=job["weight_decay"])
    moments = Moments()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=job["rounds"],
            evaluation_frequency=job["rounds"],  # the first round, which does not count
            train_cohort_size=job["cohort"],
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(net, sgd, torch.optim.SGD(net.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=job["lr"], local_batch_size=job["batch_size"]
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[moments],
    )
    if pytorch_ops.distributed.global_rank == 0:
        (folder / "seconds.json").write_text(json.dumps(np.diff(moments.ends).tolist()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
