"""Sign flipping: malicious clients send ``-scale`` times their update."""

from functools import partial

from fedsim.attacks.base import Attack, Federation
from fedsim.core.settings import Positive
from fedsim.core.types import ClientTask, Layout, Vector


def scaled(delta: Vector, task: ClientTask, layout: Layout, *, factor: float) -> Vector:
    """The update, its change of the parameters times ``factor``."""
    sent = delta.copy()
    sent[: layout.num_params] *= factor
    return sent


def build(federation: Federation, scale: Positive = 1.0) -> Attack:
    """Sign flipping of strength ``scale``."""
    return Attack(update=partial(scaled, factor=-scale))
