"""Parts found by name: what is read of their files without importing them."""

from __future__ import annotations

import pytest

from fedsim.algorithms.catalogue import METHODS
from fedsim.attacks import ATTACKS
from fedsim.compressors import COMPRESSORS
from fedsim.core.settings import defaults


@pytest.mark.parametrize("registry", [METHODS, ATTACKS, COMPRESSORS], ids=lambda r: r.kind)
def test_defaults_are_those_of_the_signature(registry):
    for name in registry.names():
        assert registry.defaults(name) == defaults(registry.parameters(name)), name
