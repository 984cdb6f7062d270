"""Section ``dp`` of a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from fedsim.config.section import Key, Section
from fedsim.core.settings import CountOrNone, InvalidSetting, Positive

USER, ADAPTIVE = ("dp.level=user",), ("dp.quantile",)


class DpConfig(Section):
    """Section ``dp``: differential privacy of the global model."""

    prefix = "dp."
    only_with = "dp.level"
    initial_clip: ClassVar[float] = 0.1
    level: Literal["user", "example"] | None = None
    """Whom it protects: a client with all of its samples, by noise on the server (user), or a
    sample, by noise in each step of a client's SGD (example); unset: no differential privacy."""
    clip: float | None = Field(default=None, gt=0)
    """Norm C to which a client's update (user) or a sample's gradient (example) is clipped; with
    dp.quantile that of the first round, unset: 0.1."""
    noise_multiplier: float | None = Field(default=1.0, ge=0, le=1e6)
    """Standard deviation of the noise in units of the clipping norm, z; 0: no noise, and no
    privacy; with dp.epsilon unset, or null: the least for that."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Delta for which epsilon is computed; well below 1 / number of those protected."""
    accountant: Literal["pld", "rdp"] = "pld"
    """How epsilon is computed: from privacy loss distributions (pld, tighter), or from Renyi
    divergences (rdp)."""
    mechanism: Annotated[Literal["gaussian", "banded"], Key(only_with=USER)] = "gaussian"
    """Noise of the rounds, user level: independent (gaussian), or correlated by a banded matrix
    (banded, DP-FTRL), with train.selection=round_robin."""
    bands: Annotated[CountOrNone, Key(only_with=("dp.mechanism=banded",))] = None
    """Bandwidth of the banded matrix, at most the rounds from one participation of a client to its
    next one; unset: these."""
    quantile: Annotated[
        float | None, Field(gt=0, lt=1), Key(only_with=(*USER, "dp.mechanism=gaussian"))
    ] = None
    """Quantile of the updates' norms to which the clipping norm adapts, user level; unset: the
    clipping norm is fixed."""
    clip_lr: Annotated[Positive, Key(only_with=ADAPTIVE)] = 0.2
    """Learning rate eta of adaptive clipping: C <- C exp(-eta (share not clipped - quantile))."""
    count_noise: Annotated[float | None, Field(gt=0), Key(only_with=ADAPTIVE)] = None
    """Standard deviation of the noise on the number of updates that are not clipped, in adaptive
    clipping; unset: a twentieth of the expected cohort."""
    clip_control: Annotated[float | None, Field(gt=0), Key(only_with=USER)] = None
    """Norm to which a client's change of SCAFFOLD's control variate is clipped, user level."""
    max_samples: Annotated[CountOrNone, Key(only_with=USER)] = None
    """Clients weigh min(samples / max_samples, 1), user level; unset: all the same."""
    noise_cohort: Annotated[CountOrNone, Key(only_with=(*USER, "dp.population"))] = None
    """Expected cohort of a larger deployment, user level: the noise on the mean is as small as it
    would be there, and its epsilon is written beside that of the run."""
    population: Annotated[CountOrNone, Key(only_with=(*USER, "dp.noise_cohort"))] = None
    """Clients of that deployment."""
    epsilon: Annotated[float | None, Field(gt=0), Key(only_with=USER)] = None
    """Epsilon that all rounds together may take, user level (with dp.population that of the
    deployment): dp.noise_multiplier is found for it before the run."""

    @model_validator(mode="before")
    @classmethod
    def _noise_is_found(cls, values: Any) -> Any:
        """Without a noise beside epsilon, there is none yet."""
        given = values if isinstance(values, Mapping) else {}
        if given.get("level") == "user" and given.get("epsilon") is not None:
            return {"noise_multiplier": None, **values}
        return values

    @model_validator(mode="after")
    def _has_noise(self) -> DpConfig:
        if self.noise_multiplier is None and self.epsilon is None:
            raise InvalidSetting("dp.noise_multiplier", "null given; give it, or dp.epsilon")
        return self

    @property
    def noise(self) -> float:
        """z; NaN until it is found."""
        return math.nan if self.noise_multiplier is None else self.noise_multiplier

    @property
    def clip_norm(self) -> float:
        """C of the first round."""
        return self.initial_clip if self.clip is None else self.clip
