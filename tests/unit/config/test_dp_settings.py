"""Section ``dp``."""

import pytest

from fedsim import RunConfig
from fedsim.core.errors import ConfigError

USER = {"level": "user", "clip": 1.0}
EXAMPLE = {"level": "example", "clip": 1.0}


def test_off_by_default() -> None:
    assert RunConfig().dp.level is None
    assert RunConfig(dp=USER).dp.clip_norm == 1.0
    assert RunConfig(dp={"level": "user", "quantile": 0.5}).dp.clip_norm == 0.1


@pytest.mark.parametrize(
    ("dp", "message"),
    [
        ({"clip": 1.0}, "dp.clip: 1.0 given; give dp.level too"),
        ({"level": "user"}, "dp.clip: is missing; .* updates .or dp.quantile, to adapt it."),
        ({"level": "example"}, "dp.clip: is missing; .* gradients"),
        ({**EXAMPLE, "quantile": 0.5}, "dp.quantile: .* not possible with dp.level=example"),
        ({**EXAMPLE, "mechanism": "banded"}, "dp.mechanism: .* not possible with dp.level=example"),
        ({**USER, "clip_lr": 0.1}, "dp.clip_lr: .* only adaptive clipping has it, see dp.quantile"),
        ({**USER, "bands": 3}, "dp.bands: 3 given; only dp.mechanism=banded"),
        ({**USER, "mechanism": "banded", "quantile": 0.5}, "dp.quantile: .* fixed clipping norm"),
        ({**USER, "population": 9}, "dp.population: 9 given; give dp.noise_cohort too"),
        ({**USER, "noise_cohort": 9}, "dp.noise_cohort: 9 given; give dp.population too"),
        ({**USER, "noise_cohort": 9, "population": 8}, "dp.noise_cohort: 9 given, more than"),
        ({**USER, "delta": 1.0}, "dp.delta: 1.0 given"),
        ({**USER, "clip": 0.0}, "dp.clip: 0.0 given"),
        (
            {**USER, "noise_multiplier": 1e30},
            "dp.noise_multiplier: 1e+30 given".replace("+", r"\+"),
        ),
        ({**USER, "noise": 1.0}, "unknown key 'dp.noise'"),
    ],
)
def test_what_has_no_effect_or_contradicts_is_refused(dp: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(dp=dp)
