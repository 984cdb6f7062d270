"""Named experiments: one YAML file each, in the format of :mod:`fedsim.config.experiments`.

A preset is data: what it sets is read in its file, and a new one is a new file. It may start from
another one with a line ``preset: NAME``.
"""

from __future__ import annotations

import logging
from importlib import resources

from fedsim.config import experiments
from fedsim.config.experiments import Experiment
from fedsim.core.errors import ConfigError, nearest

RENAMED = {
    "fedgh_celeba_small": "fedgh_synthetic_mlp_small",
    "fedgh_cifar100_small": "fedgh_digits_alpha001_small",
    "fedgh_cifar10_small": "fedgh_digits_small",
    "fedgh_femnist_small": "fedgh_synthetic_batch64_small",
    "fedgh_reddit_small": "fedgh_shakespeare_clipped_small",
    "fedgh_sent140_small": "fedgh_synthetic_7users_small",
    "fedgh_tiny_imagenet_small": "fedgh_digits_5rounds_small",
    "table1_covidfl_small": "table1_covid_cxr_small",
    "table1_retina_small": "table1_retinamnist_small",
    "table1_retina_split1_small": "table1_retinamnist_alpha100_small",
    "table1_retina_split2_alpha01_small": "table1_retinamnist_alpha01_small",
    "table1_retina_split2_small": "table1_retinamnist_alpha1_small",
    "table1_retina_split3_small": "table1_retinamnist_alpha05_small",
    "table3_retina_small": "table3_retinamnist_small",
}
"""Former names of presets, which still work, and their names now."""


def names() -> tuple[str, ...]:
    """The names of all presets, sorted."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def load(name: str, origin: str = "preset") -> Experiment:
    """The preset of that name, or of that former name, with a notice.

    Args:
        name: of the preset.
        origin: where the name was given, for messages.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if name in RENAMED:
        text = f"{origin}: preset {name} is now called {RENAMED[name]}"
        logging.getLogger("fedsim").warning(text)
        name = RENAMED[name]
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
