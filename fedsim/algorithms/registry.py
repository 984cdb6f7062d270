"""The methods: one file each, found by its name; ``build(**hyperparameters) -> Algorithm``.

The typed keyword parameters of ``build`` are the method's hyperparameters: help, the check of
configuration files and the CSV columns come from the signature. A method that lives elsewhere is
named ``module:function``, or ``FILE.py:function``; it may also be a plain rule, see
:mod:`fedsim.server.plain`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedsim.algorithms.base import Algorithm
from fedsim.algorithms.catalogue import METHODS, chain, check
from fedsim.client import LocalRule, MarginControl
from fedsim.core.errors import ConfigError
from fedsim.server import Average, Server
from fedsim.server.base import has_trait
from fedsim.server.plain import PlainRule, is_rule


def load(name: str, hyperparameters: Mapping[str, Any] | None = None) -> Algorithm:
    """Builds a method."""
    build, values = METHODS.builder(name), check(name, hyperparameters or {})
    if ":" in name and is_rule(build, METHODS.title(name)):
        return Algorithm(server=Server(PlainRule(build, values)))
    algorithm = METHODS.made(name, Algorithm, build, **values)
    for part, kind in {"local": LocalRule, "server": Server, "criterion": MarginControl}.items():
        value = getattr(algorithm, part)
        if not isinstance(value, kind):
            raise ConfigError(
                f"algorithm {name!r}: its {part} is {type(value).__name__}, needed is "
                f"{kind.__name__}"
            )
    return algorithm


def compose(
    name: str,
    hyperparameters: Mapping[str, Mapping[str, Any]],
    *,
    server: str | None = None,
    margin: str | None = None,
    margin_weight: float | None = None,
    margin_threshold: float | None = None,
) -> Algorithm:
    """A method, with other server rules or another margin control where they are given.

    Args:
        name: the method.
        hyperparameters: by method, for all methods that are named.
        server: comma-separated methods: pre-aggregations, then one that gives the reduction and its
            server optimisers, then the server optimisers of each other one. None for the method's
            own.
        margin: form of margin control; None for the method's own, as in the following two.
        margin_weight: lambda.
        margin_threshold: tau, T or u.
    """
    algorithm = load(name, hyperparameters.get(name))
    servers = {other: load(other, hyperparameters.get(other)).server for other in chain(server)}
    loss = algorithm.criterion
    criterion = MarginControl(
        loss.form if margin is None else margin,
        loss.weight if margin_weight is None else margin_weight,
        loss.threshold if margin_threshold is None else margin_threshold,
    )
    composed = chained(name, algorithm.server, servers)
    return replace(algorithm, server=composed, criterion=criterion)


def chained(name: str, base: Server, servers: Mapping[str, Server]) -> Server:
    """The server of method ``name`` with the parts of others in the place of its own."""
    if not servers:
        return base
    first = next(iter(servers))
    before, (reducer, reducing), following = _parts(servers)
    fixed = base.incompatible_reason
    if fixed and (first != name or (following and (base.exchange or base.optimizers))):
        raise ConfigError(f"server {','.join(servers)!r} cannot serve {name}, which {fixed}")
    for other, server in servers.items():
        if other != name and server.needs_own_clients:
            reason = server.incompatible_reason or "works with what its own clients send"
            raise ConfigError(f"server {other!r} cannot serve {name}: it {reason}")
    for other, server in following:
        extra = server.receive and other != name
        if not server.optimizers or type(server.reduction) is not Average or extra:
            raise ConfigError(
                f"server {','.join(servers)!r}: only the first method gives the reduction, after "
                "pre-aggregations such as nnm; the others give a server optimiser after the mean, "
                f"as fedadam does; {other!r} does not"
            )
    others = [server for other, server in (*before, (reducer, reducing)) if other != name]
    received = [part for server in others for part in server.receive]
    mixing = next((i for i, p in enumerate(received) if has_trait(p, "mixes")), len(received))
    return replace(
        base,
        reduction=reducing.reduction,
        optimizers=tuple(o for server in servers.values() for o in server.optimizers),
        receive=(*received[:mixing], *base.receive, *received[mixing:]),
        needs_same_start=base.needs_same_start or reducing.needs_same_start,
        needs_whole_updates=reducing.needs_whole_updates,
        root_samples=reducing.root_samples,
    )


Named = tuple[str, Server]


def _parts(servers: Mapping[str, Server]) -> tuple[list[Named], Named, list[Named]]:
    """The pre-aggregations, what gives the reduction, and the server optimisers after it.

    Pre-aggregations are cohort transforms and the mean; before an optimiser the last one's mean is
    the reduction.
    """
    after, before = list(servers.items()), list[Named]()
    while after and (s := after[0][1]).receive and _is_mean(s) and not s.optimizers:
        if s.needs_own_clients:
            break
        before.append(after.pop(0))
    if not after or (before and _is_mean(after[0][1]) and after[0][1].optimizers):
        after.insert(0, before.pop())
    return before, after[0], after[1:]


def _is_mean(server: Server) -> bool:
    return type(server.reduction) is Average
