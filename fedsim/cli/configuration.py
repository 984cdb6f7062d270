"""From the flags of a command to a configuration, with the user's own modules within reach."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.cli.options import overrides

if TYPE_CHECKING:
    from fedsim.config import RunConfig
    from fedsim.experiments import Settings


def configuration(preset: str | None, config: str | None, values: Mapping[str, Any]) -> RunConfig:
    """The configuration of one run, from --preset, --config and the other flags.

    Raises:
        ConfigError: something given cannot be used.
    """
    from fedsim import experiments
    from fedsim.config import load_config

    file = None if config is None else Path(config)
    flags = overrides(values)
    make_importable({} if file is None else experiments.read(file).settings, flags)
    return load_config(preset=preset, file=file, overrides=flags)


def make_importable(*layers: Settings) -> None:
    """Puts the current directory, and before it ``engine.working_dir``, in front of sys.path.

    ``module:function`` then names the user's own modules however fedsim was started.

    Args:
        layers: where ``engine.working_dir`` may be given; a later layer wins.

    Raises:
        ConfigError: the folder is not there.
    """
    from fedsim.errors import ConfigError

    folders = [Path.cwd()]
    given = [layer["engine.working_dir"] for layer in layers if "engine.working_dir" in layer]
    if given and isinstance(given[-1].value, str):
        folder = Path(given[-1].value)
        if not folder.is_dir():
            raise ConfigError(f"{given[-1].origin}: {str(folder)!r} is not a directory")
        folders.insert(0, folder.resolve())
    sys.path[:0] = [str(path) for path in folders if str(path) not in sys.path]
