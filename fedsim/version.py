"""The version of fedsim, readable without importing anything else."""

__version__ = "0.1.0"
DISTRIBUTION = "fedsim-ray"
"""What pip calls it; the project that PyPI calls ``fedsim`` is another simulator."""
