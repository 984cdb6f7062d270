"""fedsim: federated learning under data heterogeneity, simulated on Ray.

``run`` runs an experiment, ``resume`` resumes one, ``RunStore`` reads the results of one; ``sweep``
does a grid of them, and ``study`` tunes methods before it compares them;
``predict`` and ``load_model`` use the models of a finished one; ``verify`` does rounds again and
compares, ``replay`` with something changed, ``influence`` says what each client did to them.
``aggregate`` is the server step of any method and ``decompose`` the loss decomposition, both on
NumPy arrays.
"""

from typing import TYPE_CHECKING, Any

from fedsim.version import __version__ as __version__

if TYPE_CHECKING:
    from fedsim.api import aggregate as aggregate
    from fedsim.api import resume as resume
    from fedsim.api import run as run
    from fedsim.api import study as study
    from fedsim.api import sweep as sweep
    from fedsim.audit.influence import influence as influence
    from fedsim.audit.replay import replay as replay
    from fedsim.audit.verify import verify as verify
    from fedsim.config.run import RunConfig as RunConfig
    from fedsim.config.sections import AsyncConfig as AsyncConfig
    from fedsim.config.sections import AttackConfig as AttackConfig
    from fedsim.config.sections import ClockConfig as ClockConfig
    from fedsim.config.sections import CompressConfig as CompressConfig
    from fedsim.config.sections import DataConfig as DataConfig
    from fedsim.config.sections import DpConfig as DpConfig
    from fedsim.config.sections import EngineConfig as EngineConfig
    from fedsim.config.sections import EvaluationConfig as EvaluationConfig
    from fedsim.config.sections import ModelConfig as ModelConfig
    from fedsim.config.sections import TrainConfig as TrainConfig
    from fedsim.display.trackers import tracker as tracker
    from fedsim.metrics.decomposition import decompose as decompose
    from fedsim.predictions.models import load_model as load_model
    from fedsim.predictions.predict import predict as predict
    from fedsim.storage.run_dir import RunStore as RunStore
    from fedsim.studies.results import StudyStore as StudyStore
    from fedsim.studies.results import SweepStore as SweepStore
    from fedsim.training.callbacks import Callback as Callback

_NAMES = {
    "fedsim.api": ("aggregate", "resume", "run", "study", "sweep"),
    "fedsim.audit.influence": ("influence",),
    "fedsim.audit.replay": ("replay",),
    "fedsim.audit.verify": ("verify",),
    "fedsim.config.run": ("RunConfig",),
    "fedsim.config.sections": (
        *("AsyncConfig", "AttackConfig", "ClockConfig", "CompressConfig", "DataConfig"),
        *("DpConfig", "EngineConfig", "EvaluationConfig", "ModelConfig", "TrainConfig"),
    ),
    "fedsim.display.trackers": ("tracker",),
    "fedsim.metrics.decomposition": ("decompose",),
    "fedsim.predictions.models": ("load_model",),
    "fedsim.predictions.predict": ("predict",),
    "fedsim.storage.run_dir": ("RunStore",),
    "fedsim.studies.results": ("StudyStore", "SweepStore"),
    "fedsim.training.callbacks": ("Callback",),
}
"""The modules of the names above, which are imported on first use."""
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(["__version__", *_HOME])


def __getattr__(name: str) -> Any:
    """Imports the public functions on first use, so that ``fedsim --help`` need not wait."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedsim' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """All public names, for completion."""
    return sorted({*globals(), *__all__})
