"""fedsim: federated learning under data heterogeneity, simulated on Ray.

``run`` runs an experiment, ``resume`` resumes one, ``RunStore`` reads the results of one; ``sweep``
does a grid of them, and ``study`` tunes methods before it compares them;
``predict`` and ``load_model`` use the models of a finished one; ``verify`` does rounds again and
compares, ``replay`` with something changed, ``influence`` says what each client did to them.
``aggregate`` is the server step of any method and ``decompose`` the loss decomposition, both on
NumPy arrays.
"""

from typing import TYPE_CHECKING, Any

from fedsim.version import __version__

if TYPE_CHECKING:
    from fedsim.api import aggregate, resume, run, study, sweep
    from fedsim.audit.influence import influence
    from fedsim.audit.replay import replay
    from fedsim.audit.verify import verify
    from fedsim.config.attack import AttackConfig
    from fedsim.config.run import RunConfig
    from fedsim.config.sections import (
        AsyncConfig,
        ClockConfig,
        CompressConfig,
        DataConfig,
        DpConfig,
        EngineConfig,
        EvaluationConfig,
        ModelConfig,
        TrainConfig,
    )
    from fedsim.display.trackers import tracker
    from fedsim.metrics.decomposition import decompose
    from fedsim.predictions.predict import predict
    from fedsim.storage.run_dir import RunStore
    from fedsim.studies.results import StudyStore, SweepStore
    from fedsim.training.callbacks import Callback
    from fedsim.training.export import load_model

__all__ = [
    "AsyncConfig",
    "AttackConfig",
    "Callback",
    "ClockConfig",
    "CompressConfig",
    "DataConfig",
    "DpConfig",
    "EngineConfig",
    "EvaluationConfig",
    "ModelConfig",
    "RunConfig",
    "RunStore",
    "StudyStore",
    "SweepStore",
    "TrainConfig",
    "__version__",
    "aggregate",
    "decompose",
    "influence",
    "load_model",
    "predict",
    "replay",
    "resume",
    "run",
    "study",
    "sweep",
    "tracker",
    "verify",
]

_SECTIONS = (
    "Async", "Attack", "Clock", "Compress", "Data", "Dp", "Engine", "Evaluation", "Model", "Train",
)  # fmt: skip
_HOME = {
    **{f"{name}Config": "fedsim.config.sections" for name in _SECTIONS},
    "Callback": "fedsim.training.callbacks",
    "aggregate": "fedsim.api",
    "decompose": "fedsim.metrics.decomposition",
    "RunConfig": "fedsim.config.resolve",
    "RunStore": "fedsim.storage.run_dir",
    "StudyStore": "fedsim.studies.results",
    "SweepStore": "fedsim.studies.results",
    "influence": "fedsim.audit.influence",
    "load_model": "fedsim.training.export",
    "predict": "fedsim.predictions.predict",
    "replay": "fedsim.audit.replay",
    "resume": "fedsim.api",
    "run": "fedsim.api",
    "study": "fedsim.api",
    "sweep": "fedsim.api",
    "tracker": "fedsim.display.trackers",
    "verify": "fedsim.audit.verify",
}


def __getattr__(name: str) -> Any:
    """Imports the public functions on first use, so that ``fedsim --help`` need not wait."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedsim' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """All public names, for completion."""
    return sorted({*globals(), *__all__})
