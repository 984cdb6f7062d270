"""FedBN: BatchNorm stays on the client, the rest is FedAvg (Li et al., ICLR 2021, Algorithm 1).

Weight, bias and running statistics of every BatchNorm module are personal. They are found by
module type: the names miss ``downsample.1`` in every torchvision ResNet, which the released FedLD
code, FL-bench and PFLlib therefore average (``bn_selection="name"`` repeats that). A model without
such modules (``logistic``, ``model.norm=group``) is refused: it would be FedAvg.

:client: plain SGD from the shared part and its own BatchNorm
:server: mean by samples of the shared part
:state: client its BatchNorm modules
:sends: less, nothing of BatchNorm
:public code: the released FedLD code, FL-bench, PFLlib and Flower's baseline select by name
    (``bn_selection=name``); PFLlib keeps the running statistics local in every method
"""

from operator import attrgetter
from typing import Literal

from fedsim.algorithms.base import Algorithm
from fedsim.core.types import Slot


def named_bn(slot: Slot) -> bool:
    """The slot's name contains ``bn``."""
    return "bn" in slot.name


def build(bn_selection: Literal["module", "name"] = "module") -> Algorithm:
    """FedBN.

    Args:
        bn_selection: what is personal, by module type, or by name as in public code.
    """
    return Algorithm(personal=named_bn if bn_selection == "name" else attrgetter("batchnorm"))
