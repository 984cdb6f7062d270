"""FedBABU: the body alone is trained, the head by fine-tuning (Oh, Kim, Yun, ICLR 2022, Alg. 1).

    client:  phi_i <- SGD on the body from phi; the head h keeps its random start, for all clients
    server:  phi <- sum_i p_i phi_i

Clients get models of their own after the last round, by fine-tuning body and head
(``evaluation.finetune_epochs``). Until then the body with the random head is scored.

:client: SGD on the body, the head fixed
:server: mean by samples of the body
:state: client the head that all have
:sends: less, nothing of the head
:public code: the official code has a learning rate of 0 for the head and averages uniformly
    (``fedbabu.weights=uniform``), and fine-tunes body, head or both; PFLlib averages by samples;
    FL-bench sets the head's gradients to 0, but weight decay shrinks it
"""

from dataclasses import dataclass

from fedsim.algorithms.base import Algorithm, Layers
from fedsim.client import LocalEnv, LocalRule, Phase
from fedsim.server import Average, Server, Weights


@dataclass(frozen=True)
class BodyAlone(LocalRule):
    """SGD on the body."""

    needs_features = capturable = gradients_only = True
    stackable = "a part of the model is trained, blocks train all of it"

    def phases(self, env: LocalEnv) -> tuple[Phase, ...]:
        """The body for all epochs."""
        return (Phase(env.training.local_epochs, env.ctx.lr, "features"),)


def build(weights: Weights = "samples") -> Algorithm:
    """FedBABU.

    Args:
        weights: of the bodies, by samples, or uniform (the official code).
    """
    server = Server(Average(weights))
    return Algorithm(local=BodyAlone(), server=server, personal=Layers(), one_model=True)
