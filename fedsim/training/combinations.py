"""What cannot be combined: one table of reasons, which a run is checked against and the docs print.

What concerns a single part (a server that cannot serve another method's clients, a model without a
head) is refused by that part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsim.algorithms import fedcm, fednova, scaffold
from fedsim.client import LocalRule
from fedsim.core.errors import ConfigError
from fedsim.server import Average, ClipNorms
from fedsim.server.optimizers import Adaptive, HeavyBall, Multiply

if TYPE_CHECKING:
    from fedsim.training.setup import Setup


@dataclass(frozen=True)
class Refusal:
    """A combination that is refused before anything starts.

    Args:
        one: a part, as the user knows it.
        other: what it cannot be combined with.
        why: the reason.
        has_one: whether a run has the one.
        has_other: whether it has the other.
    """

    one: str
    other: str
    why: str
    has_one: Callable[[Setup], bool]
    has_other: Callable[[Setup], bool]


def _asynchronous(setup: Setup) -> bool:
    return setup.schedule.asynchronous


def _chooses(setup: Setup) -> bool:
    return setup.config.train.selection in ("power_of_choice", "oort")


def _transforms(setup: Setup) -> bool:
    return bool(setup.algorithm.transforms)


def _compresses(setup: Setup) -> bool:
    return setup.config.compress.name != "none"


def _decomposes(setup: Setup) -> bool:
    return setup.config.evaluation.decompose_every > 0


def _personal(*ways: str) -> Callable[[Setup], bool]:
    """Whether clients' own models are evaluated in one of these ways."""
    return lambda setup: setup.personalised and setup.config.evaluation.personal in ways


def _nothing_shared(setup: Setup) -> bool:
    return all(map(setup.algorithm.personal, setup.layout.slots))


def _attacked(setup: Setup) -> bool:
    return setup.config.attack.name is not None


def _attacked_updates(setup: Setup) -> bool:
    return setup.attack.changes_updates


def _weighs_stale(setup: Setup) -> bool:
    own = setup.config.asynchrony
    return _asynchronous(setup) and (own.staleness != "constant" or own.mixing is not None)


def _mixes(setup: Setup) -> bool:
    return _asynchronous(setup) and setup.config.asynchrony.mixing is not None


def _user_level(setup: Setup) -> bool:
    return setup.config.dp.level == "user"


def _example_level(setup: Setup) -> bool:
    return setup.config.dp.level == "example"


def _couples_samples(setup: Setup) -> bool:
    kept = setup.config.train.frozen_bn
    return any(not kept if s.batchnorm else s.role == "stat" for s in setup.layout.slots)


def _has_root(setup: Setup) -> bool:
    return setup.algorithm.server.root_samples > 0


def _by_steps(setup: Setup) -> bool:
    return setup.config.train.local_steps is not None


def _by_loaders(setup: Setup) -> bool:
    return setup.config.train.shuffle == "dataloader"


def _sums(setup: Setup) -> bool:
    return setup.config.train.secure_aggregation


def _no_mean(setup: Setup) -> bool:
    return type(setup.algorithm.server.reduction) is not Average


def _weighs_by_samples(setup: Setup) -> bool:
    reduction = setup.algorithm.server.reduction
    by_samples = isinstance(reduction, Average) and reduction.weights == "samples"
    return by_samples and setup.config.dp.max_samples is None


def _statistics_travel(setup: Setup) -> bool:
    stats = (slot for slot in setup.layout.slots if slot.role == "stat")
    return not all(map(setup.algorithm.personal, stats))


def _exchanges(*known: object) -> Callable[[Setup], bool]:
    """Whether the server answers what clients send beside the update in any other way."""
    return lambda setup: setup.algorithm.server.exchange not in (None, *known)


def _optimizers_see_cohort(setup: Setup) -> bool:
    blind = (Adaptive, HeavyBall, Multiply)
    return not all(isinstance(o, blind) for o in setup.algorithm.server.optimizers)


def _omniscient(setup: Setup) -> bool:
    return setup.attack.cohort is not None


_STALE = "clock.mode=async, or another asynchronous schedule"
_WEIGHED = "weights of stale updates (async.staleness other than constant, async.mixing)"
_CHANGED = "transforms of clients' updates"
_BASE = "takes all clients of a round to start from the newest model"
_DELTA = "takes the update that is sent for the change of the client's model"

_COMPRESSED = "compression (compress.name)"

_WITH_STALE: tuple[tuple[str, str, Callable[[Setup], bool]], ...] = (
    ("a pass before training (fediir)", _BASE, lambda s: s.algorithm.probe is not None),
    (
        "a server that mixes clients' models or answers single clients (fedpac, pfedla, "
        "matched_mean)",
        _BASE,
        lambda s: s.algorithm.server.needs_same_start,
    ),
    ("pooled training (centralized)", _BASE, lambda s: s.algorithm.pools),
    ("evaluation.decompose_every", _BASE, _decomposes),
    (
        "evaluation.personal=cohort_before or cohort_after",
        _BASE,
        _personal("cohort_before", "cohort_after"),
    ),
)
_WITH_WEIGHED: tuple[tuple[str, str, Callable[[Setup], bool]], ...] = (
    (
        "feddyn",
        "keeps the sum of the updates on the server and the exact ones on the clients",
        lambda s: s.config.algorithm == "feddyn",
    ),
)
_WITH_MIXED: tuple[tuple[str, str, Callable[[Setup], bool]], ...] = (
    (
        "fedcm and fednova",
        "take an update for what the client did since its start",
        lambda s: s.config.algorithm in ("fedcm", "fednova"),
    ),
)
_WITH_CHANGED: tuple[tuple[str, str, Callable[[Setup], bool]], ...] = (
    ("pooled training (centralized)", "sends no client's update", lambda s: s.algorithm.pools),
    ("a model that stays on the clients (local)", "is not sent", _nothing_shared),
    ("evaluation.decompose_every", _DELTA, _decomposes),
    ("evaluation.personal=cohort_after", _DELTA, _personal("cohort_after")),
)
_WITH_COMPRESSED: tuple[tuple[str, str, Callable[[Setup], bool]], ...] = (
    *_WITH_CHANGED,
    (
        "a server that mixes clients' models or answers single clients (fedpac, pfedla, "
        "matched_mean)",
        "needs clients' exact models or heads",
        lambda s: s.algorithm.server.needs_same_start,
    ),
    *_WITH_WEIGHED,
)
_USER_LEVEL = "user-level privacy (dp.level=user)"
_WITH_USER_LEVEL: tuple[tuple[str, str, Callable[[Setup], bool]], ...] = (
    (_STALE, "lets clients take part in another way than the accountant knows", _asynchronous),
    (
        "train.selection=size, power_of_choice, oort or a list of clients",
        "draws clients by their data, or the same ones again and again",
        lambda s: s.config.train.selection not in ("uniform", "round_robin"),
    ),
    (
        "a schedule of your own (train.schedule)",
        "draws clients in a way that the accountant does not know",
        lambda s: s.config.train.schedule != "synchronous",
    ),
    ("pooled training (centralized)", "sends no client's update", lambda s: s.algorithm.pools),
    ("a model that stays on the clients (local)", "is not sent", _nothing_shared),
    (
        "a rule other than the mean (fedld, fedgh, krum; --server fedavg keeps the clients' part)",
        "has coefficients that depend on the data, so that a client may change more than its own "
        "clipped update",
        _no_mean,
    ),
    (
        "transforms of the cohort (fednova, nnm, bucketing, norm_clipping)",
        "come before the clipping and may depend on other clients",
        lambda s: bool(s.algorithm.server.receive),
    ),
    (
        "what clients send beside the update (fedcm, fedpac, pfedla; not scaffold)",
        "is neither clipped nor noised",
        _exchanges(scaffold.server_control),
    ),
    (
        "a pass before training (fediir)",
        "is neither clipped nor noised",
        lambda s: s.algorithm.probe is not None,
    ),
    (
        "server optimisers that see the cohort (feddyn)",
        "read more than the noised step",
        _optimizers_see_cohort,
    ),
    (
        "weights by samples (give --server fedavg --set fedavg.weights=uniform, or dp.max_samples)",
        "are bounded by nothing",
        _weighs_by_samples,
    ),
    (
        "running statistics of BatchNorm that are sent",
        "are not clipped; model.norm=group has none, and fedbn keeps them on the clients",
        _statistics_travel,
    ),
    (
        "attacks that know the benign updates (alie, ipm, mimic, min_max, min_sum)",
        "make a client's update of those of others",
        _omniscient,
    ),
)
_EXAMPLE_LEVEL = "privacy of samples (dp.level=example)"
_WITH_EXAMPLE_LEVEL: tuple[tuple[str, str, Callable[[Setup], bool]], ...] = (
    (
        "pooled training (centralized)",
        "has no clients whose samples are protected",
        lambda s: s.algorithm.pools,
    ),
    (
        "clients that see more of their samples than gradients of the plain loss (moon, fedsam, "
        "fedpac, feddecorr, scaffold with option I)",
        "use them without clipping and noise",
        lambda s: not s.algorithm.local.gradients_only,
    ),
    (
        "a pass before training (fediir)",
        "is neither clipped nor noised",
        lambda s: s.algorithm.probe is not None,
    ),
    (
        "margin=softmax_frob",
        "is no mean over samples",
        lambda s: s.algorithm.criterion.form == "softmax_frob",
    ),
    (
        "BatchNorm that trains, or other running statistics",
        "lets samples change each other's gradients; model.norm=group has none",
        _couples_samples,
    ),
    ("text", "has models without gradients by sample", lambda s: bool(s.dataset.vocabulary)),
    (
        "train.selection=power_of_choice or oort",
        "reads the clients' losses, which have no noise",
        _chooses,
    ),
    (
        "evaluation.finetune_epochs",
        "trains on after what epsilon counts",
        lambda s: s.config.evaluation.finetune_epochs > 0,
    ),
)
_SECURE = "secure aggregation (train.secure_aggregation)"
_WITH_SECURE: tuple[tuple[str, str, Callable[[Setup], bool]], ...] = (
    (
        "a rule other than the mean (fedld, fedgh, krum)",
        "needs single updates, or their inner products",
        _no_mean,
    ),
    (
        "transforms of the cohort (nnm, bucketing; not norm_clipping and fednova, whose clients "
        "can scale their updates)",
        "need single updates, or their inner products",
        lambda s: (
            not all(
                isinstance(t, ClipNorms | fednova.NormalisedUpdates)
                for t in s.algorithm.server.receive
            )
        ),
    ),
    (
        "a server that answers single clients (fedpac, pfedla)",
        "needs what single clients send",
        _exchanges(scaffold.server_control, fedcm.direction),
    ),
    (
        "train.selection=power_of_choice or oort",
        "needs the losses of single clients",
        _chooses,
    ),
    (_COMPRESSED, "sends messages that cannot be summed under masks", _compresses),
    (_STALE, "has no common cohort whose masks cancel", _asynchronous),
    (
        "attacks that know the benign updates (alie, ipm, mimic, min_max, min_sum)",
        "sees what secure aggregation hides",
        _omniscient,
    ),
)
_WITH_ATTACK = tuple(
    Refusal("malicious clients (attack.name)", other, why, attacked, has)
    for (other, why, has), attacked in zip(
        _WITH_CHANGED, (_attacked, _attacked, _attacked_updates, _attacked_updates), strict=True
    )
)
_ROOT = "a server that trains on validation samples (fltrust)"
_WITH_ROOT: tuple[tuple[str, str, Callable[[Setup], bool]], ...] = (
    (_STALE, "has clients that start from older models than the server", _asynchronous),
    ("pooled training (centralized)", "sends no client's update", lambda s: s.algorithm.pools),
    (
        "slots that stay on the clients (fedbn, fedpac, pfedla, local)",
        "have no values on the server",
        lambda s: any(map(s.algorithm.personal, s.layout.slots)),
    ),
    (
        "fednova",
        "multiplies the step by the clients' steps, where it has the server's own length",
        lambda s: any(isinstance(t, fednova.NormalisedUpdates) for t in s.algorithm.server.receive),
    ),
)
_CHOOSES = "train.selection=power_of_choice or oort"
_WITH_CHOICE: tuple[tuple[str, str, Callable[[Setup], bool]], ...] = (
    ("pooled training (centralized)", "has no clients with a loss", lambda s: s.algorithm.pools),
)
_STEPS = "steps in place of epochs (train.local_steps)"
_WITH_STEPS: tuple[tuple[str, str, Callable[[Setup], bool]], ...] = (
    (
        "local training in phases (fedpac)",
        "counts epochs in each",
        lambda s: type(s.algorithm.local).phases is not LocalRule.phases,
    ),
    (
        "pooled training (centralized) at a sample rate below 1",
        "pools other samples in each round, so that no pass can carry on",
        lambda s: s.algorithm.pools and s.cohort_size < len(s.partition.participants),
    ),
    (_EXAMPLE_LEVEL, "draws each batch on its own, by epochs", _example_level),
)
_LOADERS = "train.shuffle=dataloader"
_WITH_LOADERS: tuple[tuple[str, str, Callable[[Setup], bool]], ...] = (
    (_STALE, "lets clients take turns in another order", _asynchronous),
    ("pooled training (centralized)", "has one loader", lambda s: s.algorithm.pools),
    (
        "data.heldout_clients",
        "has clients whose loaders draw nothing",
        lambda s: bool(s.partition.held_out),
    ),
)
REFUSED = (
    *(Refusal(_STALE, other, why, _asynchronous, has) for other, why, has in _WITH_STALE),
    *(Refusal(_WEIGHED, other, why, _weighs_stale, has) for other, why, has in _WITH_WEIGHED),
    *(Refusal("async.mixing", other, why, _mixes, has) for other, why, has in _WITH_MIXED),
    *_WITH_ATTACK,
    *(Refusal(_ROOT, other, why, _has_root, has) for other, why, has in _WITH_ROOT),
    *(Refusal(_STEPS, other, why, _by_steps, has) for other, why, has in _WITH_STEPS),
    *(Refusal(_LOADERS, other, why, _by_loaders, has) for other, why, has in _WITH_LOADERS),
    *(Refusal(_CHOOSES, other, why, _chooses, has) for other, why, has in _WITH_CHOICE),
    *(Refusal(_COMPRESSED, other, why, _compresses, has) for other, why, has in _WITH_COMPRESSED),
    *(Refusal(_CHANGED, other, why, _transforms, has) for other, why, has in _WITH_CHANGED),
    *(Refusal(_USER_LEVEL, other, why, _user_level, has) for other, why, has in _WITH_USER_LEVEL),
    *(
        Refusal(_EXAMPLE_LEVEL, other, why, _example_level, has)
        for other, why, has in _WITH_EXAMPLE_LEVEL
    ),
    *(Refusal(_SECURE, other, why, _sums, has) for other, why, has in _WITH_SECURE),
)
"""All refused combinations, in the order of the documentation."""


def check(setup: Setup) -> None:
    """Refuses a run that asks for what cannot be combined.

    Raises:
        ConfigError: it does; says what and why.
    """
    for refusal in REFUSED:
        if refusal.has_one(setup) and refusal.has_other(setup):
            raise ConfigError(
                f"{refusal.one} cannot be combined with {refusal.other}, which {refusal.why}"
            )


def table() -> str:
    """The refused combinations in Markdown."""
    rows = (f"| {r.one} | {r.other} | {r.why} |" for r in REFUSED)
    return "\n".join(("| what | with | which |", "|---|---|---|", *rows))
