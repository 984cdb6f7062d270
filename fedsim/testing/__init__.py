"""Contract tests for parts of your own: what fedsim's own tests run, for your test suite.

Each raises a :class:`~fedsim.core.errors.ContractError` that names the case and what differs first.
"""

from fedsim.testing.methods import check_method
from fedsim.testing.readers import check_reader

__all__ = ["check_method", "check_reader"]
