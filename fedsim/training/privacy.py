"""User-level differential privacy of a run: its server, and the epsilon of its rounds."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from fedsim.algorithms.base import Algorithm
from fedsim.client.criterion import MarginControl
from fedsim.client.private import obstacle
from fedsim.config.run import RunConfig
from fedsim.config.sections import DpConfig
from fedsim.core.errors import ConfigError
from fedsim.core.layout import FlatModel
from fedsim.core.types import Layout, ModelSpec
from fedsim.privacy.accounting import (
    MOST_NOISE,
    Accountant,
    Release,
    Sampling,
    epsilons,
    least_noise,
    library,
    statement,
)
from fedsim.server import Average, Exchange
from fedsim.server.privacy import (
    AdaptiveClip,
    GaussianNoise,
    Noise,
    PrivateMean,
    PrivateSum,
    noise_beside_count,
)
from fedsim.training.stacking import examples

logger = logging.getLogger("fedsim")

LITTLE_NOISE = 0.3
"""Standard deviation of the noise over the sensitivity below which epsilon is computed by RDP: it
is in the tens after one round, and privacy loss distributions take seconds."""
ROUNDING = 0.01
"""Share by which other versions of the accountant may find another epsilon for the same noise."""
OF_COHORT = 1 / 20
"""Standard deviation of the noise on the count in adaptive clipping, by the expected cohort."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The epsilon of a run's rounds, for ``release``, a round in which a client may take part.
    ``share`` of the rounds are such, less than 1 where clients take turns; ``deployment`` is a
    round of the larger deployment."""

    release: Release
    delta: float
    accountant: Accountant
    share: Fraction = Fraction(1)
    deployment: Release | None = None

    def columns(self, rounds: int) -> dict[str, float | None]:
        """Of rounds.csv after so many rounds; None where it is infinite."""
        settings, taken = (self.delta, self.accountant), math.ceil(rounds * self.share)
        columns = {"epsilon": _epsilon(self.release, taken, *settings)}
        if self.deployment is not None:
            columns["deployment_epsilon"] = _epsilon(self.deployment, rounds, *settings)
        return columns

    def texts(self, rounds: int) -> dict[str, str]:
        """:meth:`columns` for people."""
        columns = self.columns(rounds).items()
        return {k: "infinity" if spent is None else f"{spent:.4g}" for k, spent in columns}

    def _statement(self, release: Release) -> str:
        return statement(release, self.delta, usable(self.accountant, release.effective_noise))

    def lines(self, rounds: int) -> list[str]:
        """What the epsilons after so many rounds are and mean, for people."""
        columns = self.texts(rounds)
        meaning = self._statement(self.release)
        if self.share < 1:
            taken = math.ceil(rounds * self.share)
            meaning = meaning.replace("full participation", f"a client takes part {taken} times")
        lines = [
            f"differential privacy of clients: epsilon {columns['epsilon']} after "
            f"{rounds} rounds ({meaning})"
        ]
        if self.deployment is not None:
            meaning = self._statement(self.deployment)
            lines.append(
                f"a deployment of {self.deployment.population} clients would have epsilon "
                f"{columns['deployment_epsilon']} ({meaning})"
            )
        return lines


def usable(accountant: Accountant, noise: float) -> Accountant:
    """The accountant, but with little noise RDP."""
    return "rdp" if noise < LITTLE_NOISE else accountant


def _epsilon(release: Release, rounds: int, delta: float, accountant: Accountant) -> float | None:
    """After so many rounds; None where it is infinite."""
    (epsilon,) = epsilons(release, [rounds], delta, usable(accountant, release.effective_noise))
    return epsilon if math.isfinite(epsilon) else None


def remedy(config: RunConfig) -> str:
    """What to do where models or updates are not finite."""
    dp = config.dp
    if dp.level is None or dp.noise == 0:
        return "lower train.lr"
    return f"lower dp.noise_multiplier={dp.noise:g}, dp.clip or train.lr"


def epsilon_of_samples(config: RunConfig, samples: int, steps: int) -> float | None:
    """Epsilon of a client with so many samples after so many steps of DP-SGD; None: infinite."""
    dp, batch = config.dp, min(config.train.batch_size, samples)
    release = Release(dp.noise, samples, batch, "poisson")
    return _epsilon(release, steps, dp.delta, dp.accountant)


def line_of_samples(config: RunConfig) -> str:
    """What the epsilons of clients' samples mean, for people."""
    dp = config.dp
    accountant = usable(dp.accountant, dp.noise)
    return (
        "differential privacy of samples: the epsilon of each client stands in clients.csv "
        "(neighbours add or remove one sample of it, Poisson batches with "
        f"q=min(1, {config.train.batch_size} / its samples), delta={dp.delta:g}, {accountant} "
        "accountant)"
    )


def warn_of_delta(config: RunConfig, sizes: Sequence[int]) -> None:
    """Warns of a delta that allows to publish what should be protected. ``sizes`` are the training
    samples of each client that trains."""
    n, protected = len(sizes), "clients"
    if config.dp.level == "example":
        n, protected = max(sizes), "training samples of a client"
    if config.dp.level is not None and config.dp.delta * n >= 1:
        logger.warning(
            "dp.delta=%g is not below 1 / %d %s: such a delta allows to publish one of them as it "
            "is, whatever epsilon says; set dp.delta well below that",
            config.dp.delta,
            n,
            protected,
        )


def check_samples(criterion: MarginControl, model: ModelSpec, flat: FlatModel) -> None:
    """Refuses ``dp.level=example`` where it cannot be."""
    library()
    flat.mode(train=True)
    for norm in flat.norms:  # only one that does not train gets here
        norm.eval()
    why = obstacle(flat, criterion, examples(model)[:2])
    if why is not None:
        raise ConfigError(
            f"dp.level: example given; torch.func.vmap, which computes gradients by sample, cannot "
            f"run model.name={model.name}: {why}"
        )


def with_noise(config: RunConfig, clients: int, cohort_size: int) -> RunConfig:
    """The configuration with the noise for ``dp.epsilon``, where that is given. A ConfigError where
    there is none, or the noise that is given does not do."""
    dp, rounds = config.dp, config.train.rounds
    if dp.epsilon is None:
        return config

    def noised(noise: float) -> RunConfig:
        return config.model_copy(update={"dp": dp.model_copy(update={"noise_multiplier": noise})})

    def spent(noise: float) -> float:
        columns = _budget(noised(noise), clients, cohort_size).columns(rounds)
        epsilon = columns.get("deployment_epsilon", columns["epsilon"])
        return math.inf if epsilon is None else epsilon

    if dp.noise_multiplier is not None:
        if (epsilon := spent(dp.noise_multiplier)) > dp.epsilon * (1 + ROUNDING):
            raise ConfigError(
                f"dp.epsilon: {dp.epsilon:g} given; with dp.noise_multiplier={dp.noise:g} it is "
                f"{epsilon:.4g}: leave that out"
            )
        return config
    noise = least_noise(spent, dp.epsilon)
    if noise is None:
        raise ConfigError(
            f"dp.epsilon: {dp.epsilon:g} given; with the {dp.accountant} accountant and any noise "
            f"it is {spent(MOST_NOISE):.4g} or more: give a larger one"
        )
    return noised(noise)


def private(
    config: RunConfig, algorithm: Algorithm, layout: Layout, sizes: Sequence[int], cohort_size: int
) -> tuple[Algorithm, Budget]:
    """The method with a private server, and the epsilons of its rounds."""
    dp, server, clients = config.dp, algorithm.server, len(sizes)
    if dp.max_samples is not None and server.reduction == Average("uniform"):
        raise ConfigError(
            f"dp.max_samples: {dp.max_samples} given; the server weighs all clients the same"
        )
    if (server.exchange is None) != (dp.clip_control is None):
        raise ConfigError(
            "dp.clip_control: is missing; give the norm to clip changes of control variates to"
            if dp.clip_control is None
            else f"dp.clip_control: {dp.clip_control:g} given; only clients of scaffold send "
            "control variates"
        )
    budget = _budget(config, clients, cohort_size)
    library()
    relative = cohort_size / (dp.noise_cohort or cohort_size)  # of the noise, to that given
    mean = _mean(dp, algorithm, layout, sizes, cohort_size)
    exchange: Exchange | None = server.exchange
    noise = mean.noise_multiplier * relative
    if exchange is not None and dp.clip_control is not None:
        # two Gaussian mechanisms of z sqrt(2) are one of z
        noise *= math.sqrt(2)
        exchange = PrivateSum(exchange, server.private_sum, dp.clip_control, noise)
    if mean.adaptive is not None:
        count = mean.adaptive.count_noise * relative
        mean = replace(mean, adaptive=replace(mean.adaptive, count_noise=count))
    mean = replace(mean, noise_multiplier=noise)
    if dp.mechanism == "banded":
        mean = replace(mean, noise=_banded(config, params(algorithm, layout), clients, cohort_size))
    return replace(algorithm, server=replace(server, reduction=mean, exchange=exchange)), budget


def params(algorithm: Algorithm, layout: Layout) -> tuple[slice, ...]:
    """The coordinates of the parameters that clients send."""
    slots = (slot for slot in layout.slots if slot.role == "param")
    return tuple(slot.where for slot in slots if not algorithm.personal(slot))


def _banded(config: RunConfig, sent: tuple[slice, ...], clients: int, cohort_size: int) -> Noise:
    """Noise of banded matrix factorisation, where clients take turns."""
    dp, selection = config.dp, config.train.selection
    if selection != "round_robin":
        raise ConfigError(
            f"dp.mechanism: banded needs train.selection=round_robin, not {selection}: a client "
            "must not take part again before some rounds have passed"
        )
    separation = clients // cohort_size
    bands = separation if dp.bands is None else dp.bands
    if bands > separation:
        raise ConfigError(
            f"dp.bands: {bands} given; a client may take part again after {separation} rounds "
            f"({cohort_size} of {clients} a round), so at most {separation} are possible"
        )
    from fedsim.privacy.banded import BandedNoise, coefficients  # its scipy takes a second

    return BandedNoise(sent, tuple(coefficients(bands, config.train.rounds).tolist()))


def _mean(
    dp: DpConfig, algorithm: Algorithm, layout: Layout, sizes: Sequence[int], cohort_size: int
) -> PrivateMean:
    """The server's mean, with the noise that is given for the expected cohort."""
    noise, adaptive = dp.noise, None
    if dp.quantile is not None:
        size = dp.noise_cohort or cohort_size
        count = size * OF_COHORT if dp.count_noise is None else dp.count_noise
        beside = noise_beside_count(noise, count)
        if beside is None:
            shown = f"{count:g}, a twentieth of {size} clients,"
            raise ConfigError(
                f"dp.count_noise: {shown if dp.count_noise is None else f'{count:g}'} is too "
                f"little for adaptive clipping: with dp.noise_multiplier={noise:g} it must be "
                f"above {noise / 2:g}, so that the count alone does not use up the noise; unset, "
                f"it is for more than {10 * noise:g} clients a round"
            )
        count = 0.0 if noise == 0 and dp.count_noise is None else count
        adaptive, noise = AdaptiveClip(dp.quantile, dp.clip_lr, count, cohort_size), beside
    expected = float(cohort_size)
    if dp.max_samples is not None:
        expected *= sum(min(n / dp.max_samples, 1.0) for n in sizes) / len(sizes)
    return PrivateMean(
        clip=dp.clip_norm,
        noise_multiplier=noise,
        expected=expected,
        max_samples=dp.max_samples,
        noise=GaussianNoise(params(algorithm, layout)),
        adaptive=adaptive,
    )


def _budget(config: RunConfig, clients: int, cohort_size: int) -> Budget:
    """The epsilons of rounds with cohorts of the expected size out of so many clients."""
    dp, train = config.dp, config.train
    z = dp.noise * cohort_size / (dp.noise_cohort or cohort_size)
    taking_turns = train.selection == "round_robin"
    sampling: Sampling = "poisson" if train.cohort == "poisson" else "fixed"
    deployment = None
    if dp.population is not None and dp.noise_cohort is not None:
        if taking_turns:
            raise ConfigError(
                f"dp.population: {dp.population} given; with train.selection=round_robin clients "
                "take turns, which a deployment's clients do not"
            )
        deployment = _release(dp.noise, dp.population, dp.noise_cohort, sampling)
    release, share = _release(z, clients, cohort_size, sampling), Fraction(1)
    if taking_turns:
        release = _release(z, cohort_size, cohort_size, sampling)
        share = Fraction(cohort_size, clients)
    return Budget(
        release=release,
        delta=dp.delta,
        accountant=dp.accountant,
        share=share,
        deployment=deployment,
    )


def _release(z: float, population: int, cohort: int, sampling: Sampling) -> Release:
    return Release(z, population, cohort, "full" if cohort == population else sampling)
