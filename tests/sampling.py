"""Some values of a grid by default, the others where a mark selects them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def marked_beside(
    kept: Container[Any], values: Iterable[Any], mark: pytest.MarkDecorator = pytest.mark.slow
) -> list[Any]:
    """All values for ``parametrize``; those that are not kept have the mark."""
    return [value if value in kept else pytest.param(value, marks=mark) for value in values]
