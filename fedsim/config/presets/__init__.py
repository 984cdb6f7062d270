"""Named experiments: one YAML file each, in the format of :mod:`fedsim.config.experiments`.

A preset is data: what it sets is read in its file, and a new one is a new file. It may start from
another one with a line ``preset: NAME``.
"""

from __future__ import annotations

from importlib import resources

from fedsim.config import experiments
from fedsim.config.experiments import Experiment
from fedsim.core.errors import ConfigError, nearest


def names() -> tuple[str, ...]:
    """The names of all presets, sorted."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def load(name: str, origin: str = "preset") -> Experiment:
    """The preset of that name; ``origin`` is who asks, for the message.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if name not in names():
        raise ConfigError(
            f"{origin}: unknown preset {name!r}{nearest(name, names())}; "
            f"allowed: {', '.join(names())}"
        )
    text = resources.files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    found = experiments.parse(text, f"preset {name}", with_lines=False)
    if found.preset is None:
        return found
    return found.over(load(found.preset, f"preset {name} (preset)"))
