"""Client work for the tests: tasks of some clients, and a worker that does them one by one."""

from __future__ import annotations

from fedsim.client.trainer import trained
from fedsim.core.types import ClientTask


def tasks(clients, ctx, **given) -> list[ClientTask]:
    """A task of each client in that round; ``given`` are further fields of all of them."""
    return [ClientTask(client=client, ctx=ctx, **given) for client in clients]


def alone(clients, ctx, **given):
    """Blocks of one task each."""
    return [(task,) for task in tasks(clients, ctx, **given)]


def models(ctx, params, downlink=None):
    """The one version of the model from which all tasks of that round start."""
    return {ctx.round: (params, downlink or {})}


def train_local(rule, env, steps=None):
    """The update of a client's training alone, without its losses."""
    return trained(rule, env, steps)[0]


def run(worker, clients, ctx, params, downlink=None, states=None, **given):
    """Reports and deltas (k, D) of a worker that does the tasks of some clients one by one."""
    sent = models(ctx, params, downlink)
    return worker.run(alone(clients, ctx, **given), sent, states or {})
