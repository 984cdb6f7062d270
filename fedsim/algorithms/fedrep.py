"""FedRep: epochs on the own head, then on the shared body (Collins et al., ICML 2021, Algorithm 1).

    client:  h_i <- head_epochs epochs of SGD on h_i from h_i, body phi frozen
             phi_i <- train.local_epochs epochs of SGD on phi from phi, h_i frozen
    server:  phi <- sum_i p_i phi_i

While the head trains the body is in evaluation mode, so that its BatchNorm statistics stay. With
``head_epochs=0`` the heads stay as they began, and the round is FedBABU's.

:client: epochs on its own head, then on the shared body
:server: mean by samples of the body
:state: client its head
:sends: less, nothing of the head
:public code: the official code has 10 epochs on the head and one on the body (``head_epochs=10``,
    ``train.local_epochs=1``), all in training mode and by one optimiser, keeps one layer more, and
    at last trains every head for 10 epochs or more; PFLlib and FL-bench are in training mode too
    and have one epoch on the head, or those that ``local_epoch`` leaves
"""

from dataclasses import dataclass

from fedsim.algorithms.base import Algorithm, Layers
from fedsim.client import LocalEnv, LocalRule, Phase
from fedsim.core.settings import CountOrZero
from fedsim.server import Average, Server, Weights


@dataclass(frozen=True)
class HeadThenBody(LocalRule):
    """SGD in two phases."""

    head_epochs: int
    needs_features = capturable = gradients_only = True
    stackable = "local training has two phases"

    def phases(self, env: LocalEnv) -> tuple[Phase, ...]:
        """First the head, then the body."""
        body = Phase(env.training.local_epochs, env.ctx.lr, "features")
        return (Phase(self.head_epochs, env.ctx.lr, "head"), body)


def build(head_epochs: CountOrZero = 10, weights: Weights = "samples") -> Algorithm:
    """FedRep.

    Args:
        head_epochs: epochs on the head before those on the body.
        weights: of the bodies, by samples (the official code), or uniform (the paper).
    """
    server = Server(Average(weights))
    return Algorithm(local=HeadThenBody(head_epochs), server=server, personal=Layers())
