"""Local: every client trains a model of its own and nothing is averaged (baseline).

All tensors are personal: a client's model starts from the initial one, is trained in the rounds in
which the client is drawn, and never meets another client's. As in every method the optimiser starts
anew in each round. At a sample rate of 1 these are K separate trainings.

:client: plain SGD from its own model
:server: none, the global model stays the initial one
:state: client its model (D)
:sends: nothing at all, neither up nor down
:public code: PFLlib and FL-bench call it Local
"""

from fedsim.algorithms.base import Algorithm, every_slot
from fedsim.server import Average, Server


def build() -> Algorithm:
    """Local training."""
    alone = "trains every client alone, so that there is nothing to aggregate"
    return Algorithm(personal=every_slot, server=Server(Average(), incompatible_reason=alone))
