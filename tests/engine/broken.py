"""What a Ray worker must be able to import: a method that fails, and somebody else's actor."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.local import LocalEnv, LocalRule
from fedsim.plugin import Algorithm


@dataclass(frozen=True)
class Broken(LocalRule):
    def begin(self, env: LocalEnv) -> None:
        if env.ctx.round == 1 and env.client_id == 2:
            raise ValueError("on purpose")


def build() -> Algorithm:
    return Algorithm(local=Broken())


class Holder:
    """Holds resources of a Ray that others use too."""

    def ping(self) -> bool:
        return True
