"""Attacks by malicious clients: one file each, found by its name, or a function of the user's.

``build(federation, **settings)`` returns an :class:`~fedsim.attacks.base.Attack`. Settings that are
keys of section ``attack`` (:class:`~fedsim.config.attack.AttackConfig`) are given there, all others
in the section of the function's name.
"""

from fedsim.core.registry import Registry

ATTACKS = Registry("attack", "fedsim.attacks", first=1)
