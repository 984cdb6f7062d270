"""fedsim: federated learning under data heterogeneity, simulated on Ray.

``run`` runs an experiment, ``resume`` resumes one, ``RunStore`` reads the results of one;
``predict`` and ``load_model`` use the models of a finished one. ``aggregate`` is the server step of
any method and ``decompose`` the loss decomposition, both on NumPy arrays.
"""

from typing import TYPE_CHECKING, Any

from fedsim.version import __version__

if TYPE_CHECKING:
    from fedsim.api import aggregate, decompose
    from fedsim.config.run import RunConfig
    from fedsim.storage.run_dir import RunStore
    from fedsim.training.callbacks import Callback
    from fedsim.training.driver import resume, run
    from fedsim.training.export import load_model
    from fedsim.training.predict import predict
    from fedsim.training.trackers import tracker

__all__ = [
    "Callback",
    "RunConfig",
    "RunStore",
    "__version__",
    "aggregate",
    "decompose",
    "load_model",
    "predict",
    "resume",
    "run",
    "tracker",
]

_HOME = {
    "Callback": "fedsim.training.callbacks",
    "aggregate": "fedsim.api",
    "decompose": "fedsim.api",
    "RunConfig": "fedsim.config.resolve",
    "RunStore": "fedsim.storage.run_dir",
    "load_model": "fedsim.training.export",
    "predict": "fedsim.training.predict",
    "resume": "fedsim.training.driver",
    "run": "fedsim.training.driver",
    "tracker": "fedsim.training.trackers",
}


def __getattr__(name: str) -> Any:
    """Imports the public functions on first use, so that ``fedsim --help`` need not wait."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedsim' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
