"""The methods: one file each, found by its name; ``build(**hyperparameters) -> Algorithm``.

The typed keyword parameters of ``build`` are the method's hyperparameters: help, the check of
configuration files and the CSV columns come from the signature. A method that lives elsewhere is
named ``module:function``.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedsim.algorithms.base import Algorithm
from fedsim.algorithms.catalogue import chain, check, check_known
from fedsim.client import LocalRule, MarginControl
from fedsim.core.errors import ConfigError
from fedsim.core.imports import resolve, users_code
from fedsim.server import Average, Server


def load(name: str, hyperparameters: Mapping[str, Any] | None = None) -> Algorithm:
    """Builds a method.

    Raises:
        ConfigError: as :func:`check`, a value that the method refuses, or a function of the user's
            that builds something else.
    """
    build, values = builder(name), check(name, hyperparameters or {})
    with users_code(f"algorithm {name!r}", ConfigError):
        built = build(**values)
    if not isinstance(built, Algorithm):
        raise ConfigError(
            f"algorithm {name!r}: the function returned {type(built).__name__}, needed is "
            "fedsim.algorithms.Algorithm"
        )
    kinds = {"local": LocalRule, "server": Server, "criterion": MarginControl}
    for part, kind in kinds.items():
        found = getattr(built, part)
        if not isinstance(found, kind):
            raise ConfigError(
                f"algorithm {name!r}: its {part} is {type(found).__name__}, needed is "
                f"{kind.__name__}"
            )
    return built


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
        server: comma-separated methods: the reduction and the server optimisers of the first, then
            the server optimisers of each other one. None for the method's own.
        margin: form of margin control; None for the method's own, as in the following two.
        margin_weight: lambda.
        margin_threshold: tau, T or u.

    Raises:
        ConfigError: as :func:`load`, or parts that do not go together.
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


def chained(name: str, own: Server, servers: Mapping[str, Server]) -> Server:
    """The server of method ``name`` with the parts of others in the place of its own.

    Args:
        name: the method.
        own: its server.
        servers: the others by their names: the first gives the reduction and its optimisers, the
            following ones their optimisers. The first may be the method itself.

    Raises:
        ConfigError: they do not go together; says why.
    """
    if not servers:
        return own
    (first, reducing), *following = servers.items()
    fixed = own.incompatible_reason
    if fixed and (first != name or (following and (own.exchange or own.optimizers))):
        raise ConfigError(f"server {','.join(servers)!r} cannot serve {name}, which {fixed}")
    for other, server in servers.items():
        if other != name and server.needs_own_clients:
            reason = server.incompatible_reason or "works with what its own clients send"
            raise ConfigError(f"server {other!r} cannot serve {name}: it {reason}")
    for other, server in following:
        if not server.optimizers or type(server.reduction) is not Average:
            raise ConfigError(
                f"server {','.join(servers)!r}: only the first method gives the reduction, the "
                f"others a server optimiser after the mean, as fedadam does; {other!r} does not"
            )
    return replace(
        own,
        reduction=reducing.reduction,
        optimizers=tuple(o for server in servers.values() for o in server.optimizers),
        needs_whole_updates=reducing.needs_whole_updates,
    )


def builder(name: str) -> Callable[..., Algorithm]:
    """The function that builds a method.

    Raises:
        ConfigError: no such method.
    """
    if ":" in name:
        return resolve(name, f"algorithm {name!r}")
    check_known(name)
    build: Callable[..., Algorithm] = importlib.import_module(f"fedsim.algorithms.{name}").build
    return build
