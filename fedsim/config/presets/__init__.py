"""Named experiments in YAML files, in the format of :mod:`fedsim.config.experiments`.

A file has the name of its preset; others of its kind, such as the same for two cores, follow after
a line ``--- # NAME``. A preset may start from another one with a line ``preset: NAME``.
"""

import functools
import re
from collections.abc import Mapping
from importlib import resources

from fedsim.config import experiments
from fedsim.config.experiments import Experiment
from fedsim.core.errors import ConfigError, nearest


def names() -> tuple[str, ...]:
    """The names of all presets, sorted."""
    return tuple(sorted(_texts()))


def load(name: str, origin: str = "preset") -> Experiment:
    """The preset of that name; ``origin`` says where it was given, for messages."""
    if name not in names():
        raise ConfigError(
            f"{origin}: unknown preset {name!r}{nearest(name, names())}; "
            f"allowed: {', '.join(names())}"
        )
    preset = experiments.parse(_texts()[name], f"preset {name}", with_lines=False)
    if preset.preset is None:
        return preset
    return preset.over(load(preset.preset, f"preset {name} (preset)"))


@functools.cache
def _texts() -> Mapping[str, str]:
    """The YAML of each preset."""
    texts: dict[str, str] = {}
    for file in resources.files(__name__).iterdir():
        if file.name.endswith(".yaml"):
            parts = re.split(r"(?m)^--- # (\w+)\n", file.read_text(encoding="utf-8"))
            names = [file.name.removesuffix(".yaml"), *parts[1::2]]
            texts |= dict(zip(names, parts[::2], strict=True))
    return texts
