"""check_schedule: the schedules of fedsim and of the tests keep it, broken ones are named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from fedsim.core.errors import ContractError
from fedsim.schedules.base import Synchronous
from fedsim.testing import check_schedule
from tests.seams import buffered, power_of_choice


@pytest.mark.parametrize("build", [Synchronous, buffered, power_of_choice])
def test_a_schedule_keeps_the_contract(build):
    check_schedule(build)


@dataclass
class Broken:
    """A synchronous schedule with one mistake."""

    mistake: str
    asynchronous: bool = False
    calls: int = 0

    def plan(self, roster: Any, state: Any, ctx: Any, run: Any, /) -> Any:
        self.calls += 1
        plan = Synchronous().plan(roster, state, ctx, run)
        first = plan.tasks[0]
        match self.mistake:
            case "impure":
                return replace(plan, state={"calls": np.array(self.calls)})
            case "twice":
                return replace(plan, tasks=(*plan.tasks, first))
            case "held out":
                return roster.plan([3], ctx)
            case "no participation":
                return replace(plan, participation={})
            case "unknown model":
                return replace(plan, needed=frozenset({ctx.round + 1}))
            case "stale":
                kept = frozenset({ctx.round})
                tasks = (replace(first, ctx=replace(ctx, round=max(0, ctx.round - 1))),)
                return replace(plan, tasks=tasks, needed=kept)
            case "ahead":
                return replace(plan, ahead=((first,),))
            case _:
                raise ValueError("on purpose")


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("impure", "two plans from equal arguments differ"),
        ("twice", "a client has two tasks"),
        ("held out", "tasks of clients that do not train: .3."),
        ("no participation", "clients without a participation"),
        ("unknown model", "models that were not kept"),
        ("stale", "but asynchronous is False"),
        ("ahead", "clients train now and are told ahead"),
        ("raises", "ValueError: on purpose"),
    ],
)
def test_a_broken_schedule_is_named(mistake, said):
    with pytest.raises(ContractError, match=f"breaks its contract, case 'every.*{said}"):
        check_schedule(lambda: Broken(mistake))
