"""FedALA: own and received layers, mixed by learnt weights (Zhang et al., AAAI 2023, Algorithm 1).

Before it trains, client i makes of its own last model th_i and the received th (Eqs. 3 to 6)

    thhat_i = th_i + (th - th_i) * W_i        in the chosen layers, th elsewhere
    W_i <- clip(W_i - eta (th - th_i) * grad F_i(thhat_i), 0, 1)

with a step for each batch of a share of its samples, drawn anew. W_i starts at 1 and is kept. At
first it learns until the last batch's loss has a deviation below 0.1 over 10 passes (in at most 100
of them), later for one pass, in evaluation mode. Scored is that mixture with the newest model. With
``eta=0`` it is FedAvg.

:client: mixes its own last layers into the received model, then plain SGD
:server: mean by samples
:state: client the chosen layers of its model, and their weights
:sends: nothing more
:public code: the official code mixes the last two tensors (``layers=head``), lets clients that do
    not train mix in every round too, takes successive samples as the share, and keeps running
    statistics on the clients; PFLlib leaves out the last short batch; FL-bench's clients share W
"""

from dataclasses import dataclass
from statistics import pstdev

import torch
from torch import Tensor

from fedsim.algorithms.base import Algorithm, Layers
from fedsim.client import LocalEnv, LocalRule, NoTraining, Uplink
from fedsim.core.layout import as_tensor, select
from fedsim.core.rng import torch_generator
from fedsim.core.settings import Fraction, NonNegative

RECENT, STILL, MOST = 10, 0.1, 100
"""Losses of passes that are compared, the deviation at which they are at rest, passes at most."""


@dataclass(frozen=True)
class MixedStart(LocalRule):
    """SGD from the mixture."""

    layers: Layers
    eta: float
    share: float
    stackable = capturable = True

    def chosen(self, env: LocalEnv) -> tuple[list[Tensor], Tensor]:
        """The parameters that are mixed, and their S places in a vector."""
        pairs = [(slot, p) for slot, p in env.flat.params if self.layers(slot)]
        mask = torch.from_numpy(select(env.flat.layout, [s for s, _ in pairs].__contains__))
        return [p for _, p in pairs], mask.nonzero().squeeze(1).to(env.start.device)

    def begin(self, env: LocalEnv) -> Tensor:
        """Learns the weights (S,), which it returns, and loads the mixture."""
        params, where = self.chosen(env)
        sent, first = env.start[where], "weights" not in env.state
        weights = torch.ones_like(sent) if first else as_tensor(env.state["weights"]).to(sent)
        if "own" not in env.state or not params:
            return weights
        own = as_tensor(env.state["own"]).to(sent)
        order = torch_generator(env.ctx.seed, "fedala", env.key, env.client_id)
        drawn = torch.randperm(len(env.x), generator=order)[: max(int(self.share * len(env.x)), 1)]
        vector, losses = env.start.clone(), list[float]()
        env.still()
        for _ in range(MOST if first else 1):
            for batch in drawn.to(env.x.device).split(env.training.batch_size):
                vector[where] = torch.lerp(own, sent, weights)
                env.flat.load(vector)
                with env.precision():
                    loss = env.criterion(env.model(env.test(env.x[batch])), env.y[batch])
                slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, params)])
                weights = (weights - self.eta * slope * (sent - own)).clamp(0, 1)
            losses.append(float(loss.detach()))
            if len(losses) > RECENT and pstdev(losses[-RECENT:]) < STILL:
                break
        vector[where] = torch.lerp(own, sent, weights)
        env.flat.load(vector)
        return weights

    def finish(self, env: LocalEnv, s: Tensor) -> Uplink:
        """Keeps the trained layers, and the weights once they have been learnt."""
        own = env.flat.flat.detach()[self.chosen(env)[1]].cpu().numpy()
        learnt = {"weights": s.clone().cpu().numpy()} if "own" in env.state else {}
        return Uplink(state={"own": own, **learnt})


class Mixture(NoTraining, MixedStart):
    """The mixture alone."""

    def finish(self, env: LocalEnv, s: Tensor) -> Uplink:
        """Nothing is kept."""
        return Uplink()


def build(layers: str = "head", eta: NonNegative = 1.0, share: Fraction = 0.8) -> Algorithm:
    """FedALA.

    Args:
        layers: those that are mixed: ``head``, or patterns of tensor names between commas.
        eta: learning rate of the weights, >= 0.
        share: of a client's samples that the weights are learnt from, in (0, 1].
    """
    given = Layers(layers), eta, share
    return Algorithm(local=MixedStart(*given), personalise=Mixture(*given))
