"""Selection: of some candidates those with the highest loss (Cho et al., AISTATS 2022)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedsim.core.types import RoundContext, Vectors
from fedsim.schedules.base import Pass, Roster, RoundPlan


@dataclass(frozen=True)
class PowerOfChoice:
    """Asks ``factor`` m candidates for their losses, and trains the m with the highest ones."""

    factor: int = 2
    asynchronous: ClassVar[bool] = False

    def plan(self, roster: Roster, _: Vectors, ctx: RoundContext, run: Pass, /) -> RoundPlan:
        """A synchronous round of those chosen; the candidates download the model once."""
        size = min(self.factor * roster.cohort_size, ctx.num_clients)
        candidates = roster.plan(roster.draw(ctx, size, "candidates"), ctx)
        asked = [replace(task, work="loss", max_steps=None) for task in candidates.tasks]
        losses = {update.client_id: update.extras["loss"][0] for update in run(asked)}
        chosen = sorted(losses, key=lambda c: (-losses[c], c))[: roster.cohort_size]
        others = len(losses) - len(chosen)
        return replace(
            roster.plan(chosen, ctx),
            downlink_bytes=others * roster.clock.vector_bytes,
            uplink_bytes=4 * len(losses),
        )


def build(factor: int = 2) -> PowerOfChoice:
    """The schedule."""
    return PowerOfChoice(factor)
