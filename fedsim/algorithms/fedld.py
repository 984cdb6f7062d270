"""FedLD: margin control and principal aggregation (Zeng et al., MICCAI 2024, Eqs. 3-7).

    client:  cross-entropy + lambda mean_b log(1 + ||f_b||^2)
    server:  of each update only its length and the signs of its principal coordinates survive,
             g_i' = ||g_i|| sum_{l <= L} lambda_l/||lambda_{1..L}|| sgn<g_i, v_l> v_l/||v_l||

The paper leaves ||lambda_l|| open: l2 over the selected axes keeps ||g_i'|| = ||g_i||, which is
what it asks of the correction. The released code differs throughout: see ``fedld_released``.

:client: cross-entropy with margin control
:server: principal aggregation
:state: none
:sends: nothing more
:public code: the released code differs in loss, weights, axes, norm and granularity
    (``fedld_released``)
"""

from fedsim.algorithms.base import Algorithm
from fedsim.client import MarginControl
from fedsim.core.settings import Fraction, NonNegative
from fedsim.server import Blocks, Gram, Server, Weights
from fedsim.server.principal import Norm, Orientation, Principal, Scope


def build(
    margin: str = "marg_log",
    margin_weight: NonNegative = 0.03,
    keep: Fraction = 0.8,
    norm: Norm = "l2",
    scope: Scope = "selected",
    blocks: Blocks = "model",
    weights: Weights = "samples",
    orientation: Orientation = "none",
) -> Algorithm:
    """FedLD.

    Args:
        margin: form of margin control, see ``fedsim.client.criterion.FORMS``; ``none`` for
            cross-entropy.
        margin_weight: lambda, >= 0.
        keep: share of the principal axes that is kept, in (0, 1].
        norm: how the eigenvalues weight the axes.
        scope: over which axes the norm goes.
        blocks: one Gram matrix for the whole model, or one per tensor.
        weights: client weights by samples (the paper), or uniform.
        orientation: unpublished: let all clients follow the calibrated axes.
    """
    rule = Principal(keep=keep, norm=norm, scope=scope, weights=weights, orientation=orientation)
    criterion = MarginControl(margin, margin_weight)
    return Algorithm(server=Server(Gram(rule, blocks)), criterion=criterion)
