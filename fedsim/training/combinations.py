"""What cannot be combined: one table of two traits and a reason, which a run is checked against.

A trait is declared by a part (:class:`~fedsim.algorithms.base.Algorithm`, the client rule, the
server and its parts, the attack), so that a part of the user's own is refused as fedsim's are, or
follows from a setting. The docs print the table. What concerns numbers, such as the size of a
cohort, is refused by the part that knows them, and a key without effect by its section.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fedsim.algorithms.base import Layers, no_slot
from fedsim.client import FeaturePenalty, LocalRule
from fedsim.core.errors import ConfigError
from fedsim.core.types import Slot
from fedsim.server import Average
from fedsim.server.base import has_trait

if TYPE_CHECKING:
    from fedsim.training.setup import Setup


class Trait(NamedTuple):
    """What a run may have, in words that the user knows, and whether a run has it."""

    text: str
    holds: Callable[[Setup], bool]


def _other(key: str, *usual: object) -> Callable[[Setup], bool]:
    """Whether a setting is other than usual."""
    return lambda setup: setup.config.value(key) not in usual


def _some(setup: Setup, condition: Callable[[Slot], bool], role: str = "") -> bool:
    """Whether a tensor of the model, of a role, is of some kind."""
    return any(condition(slot) for slot in setup.layout.slots if not role or slot.role == role)


def _one_part_frozen(setup: Setup) -> bool:
    """Whether features and head are not both there, and trained."""
    heads = {slot.head for slot in setup.layout.slots if slot.role == "param"}
    return not setup.has_features or heads != {False, True}


def _unsplit(setup: Setup) -> bool:
    """Whether all of the parameters, or none, are the clients' own."""
    owners = {setup.algorithm.personal(s) for s in setup.layout.slots if s.role == "param"}
    return len(owners) < 2


def _couples_samples(setup: Setup) -> bool:
    frozen = setup.config.train.frozen_bn
    return _some(setup, lambda s: not frozen if s.batchnorm else s.role == "stat")


def _weighs_by_samples(setup: Setup) -> bool:
    reduction = setup.algorithm.server.reduction
    by_samples = isinstance(reduction, Average) and reduction.weights == "samples"
    return by_samples and setup.config.dp.max_samples is None


def _personal(setup: Setup, *ways: str) -> bool:
    """Whether clients' own models are evaluated in one of these ways."""
    return setup.personalised and setup.config.evaluation.personal in ways


def _weighs_stale(setup: Setup) -> bool:
    section = setup.config.asynchrony
    weighed = section.staleness != "constant" or section.mixing is not None
    return setup.schedule.asynchronous and weighed


TRAITS = {
    # of the run
    "asynchronous": Trait(
        "clock.mode=async, or another asynchronous schedule", lambda s: s.schedule.asynchronous
    ),
    "weighs stale updates": Trait(
        "weights of stale updates (async.staleness other than constant, async.mixing)",
        _weighs_stale,
    ),
    "mixes models": Trait(
        "async.mixing", lambda s: s.schedule.asynchronous and s.config.asynchrony.mixing is not None
    ),
    "own schedule": Trait(
        "a schedule of your own (train.schedule)", _other("train.schedule", "synchronous")
    ),
    "selects by data": Trait(
        "train.selection=size, power_of_choice, oort or a list of clients",
        _other("train.selection", "uniform", "round_robin"),
    ),
    "selects by loss": Trait(
        "train.selection=power_of_choice or oort",
        lambda s: s.config.train.selection in ("power_of_choice", "oort"),
    ),
    "local steps": Trait(
        "steps in place of epochs (train.local_steps)", _other("train.local_steps", None)
    ),
    "loaders": Trait("train.shuffle=dataloader", _other("train.shuffle", "fedsim")),
    "lr_head": Trait("train.lr_head", _other("train.lr_head", None)),
    "secure": Trait(
        "secure aggregation (train.secure_aggregation)", _other("train.secure_aggregation", False)
    ),
    "user level": Trait("user-level privacy (dp.level=user)", _other("dp.level", None, "example")),
    "example level": Trait(
        "privacy of samples (dp.level=example)", _other("dp.level", None, "user")
    ),
    "target": Trait("evaluation.target_accuracy", _other("evaluation.target_accuracy", None)),
    "decomposes": Trait("evaluation.decompose_every", _other("evaluation.decompose_every", 0)),
    "personal after": Trait(
        "evaluation.personal=cohort_after", lambda s: _personal(s, "cohort_after")
    ),
    "personal in cohort": Trait(
        "evaluation.personal=cohort_before or cohort_after",
        lambda s: _personal(s, "cohort_before", "cohort_after"),
    ),
    "finetunes": Trait("evaluation.finetune_epochs", _other("evaluation.finetune_epochs", 0)),
    # of attack and compression
    "attacked": Trait("malicious clients (attack.name)", _other("attack.name", None)),
    "attacked updates": Trait(
        "malicious clients (attack.name) that change their updates",
        lambda s: s.attack.changes_updates,
    ),
    "omniscient": Trait(
        "attacks that know the benign updates (alie, ipm, mimic, min_max, min_sum)",
        lambda s: s.attack.cohort is not None,
    ),
    "compresses": Trait("compression (compress.name)", _other("compress.name", "none")),
    "transforms": Trait("transforms of clients' updates", lambda s: bool(s.algorithm.transforms)),
    # of the method
    "probe": Trait("a pass before training (fediir)", lambda s: s.algorithm.probe is not None),
    "pools": Trait("pooled training (centralized)", lambda s: s.algorithm.pools),
    "pools some": Trait(
        "pooled training (centralized) at a sample rate below 1",
        lambda s: s.algorithm.pools and s.cohort_size < len(s.partition.participants),
    ),
    "needs exact updates": Trait(
        "a method with sums of updates on both sides (feddyn)",
        lambda s: s.algorithm.needs_exact_updates,
    ),
    "measures progress": Trait(
        "a method that measures what clients did (fedcm, fednova, qffl)",
        lambda s: s.algorithm.measures_progress,
    ),
    "shares nothing": Trait(
        "a model that stays on the clients (local)",
        lambda s: all(map(s.algorithm.personal, s.layout.slots)),
    ),
    "shares a part": Trait(
        "slots that stay on the clients (fedbn, fedpac, fedper, fedrep, pfedla, local)",
        lambda s: _some(s, s.algorithm.personal),
    ),
    "keeps tensors": Trait(
        "tensors that clients keep to themselves (fedbn: BatchNorm)",
        lambda s: s.algorithm.personal is not no_slot,
    ),
    "splits": Trait(
        "a method that shares some layers (fedper, lgfedavg, fedrep, fedbabu, fedrod)",
        lambda s: isinstance(s.algorithm.personal, Layers),
    ),
    "phases": Trait(
        "local training in phases (fedpac, fedrep, fedbabu)",
        lambda s: type(s.algorithm.local).phases is not LocalRule.phases,
    ),
    "needs features": Trait(
        "a method that trains features(x) and a linear head apart",
        lambda s: s.algorithm.local.needs_features,
    ),
    "computes with features": Trait(
        "a loss of features of a sample (moon, feddecorr, fedpac, fedsr, fedrod)",
        lambda s: (
            isinstance(s.algorithm.local, FeaturePenalty)
            or (s.algorithm.local.needs_features and s.algorithm.local.needs_classes)
        ),
    ),
    "needs classes": Trait(
        "a method with statistics of classes (fediir, fedpac, fedrod, fedsr, knnper)",
        lambda s: any(
            rule is not None and rule.needs_classes
            for rule in (s.algorithm.local, s.algorithm.personalise)
        ),
    ),
    "flips labels": Trait(
        "attacks on labels (label_flip, backdoor)", lambda s: s.attack.samples is not None
    ),
    "more than gradients": Trait(
        "clients that see more of their samples than gradients of the plain loss (moon, fedsam, "
        "fedpac, feddecorr, fedrod, fedala, ditto, apfl, pfedme, perfedavg, qffl, afl, ifca, "
        "scaffold with option I)",
        lambda s: not s.algorithm.local.gradients_only or s.algorithm.beside is not None,
    ),
    "reads features": Trait(
        "predictions by features (knnper)",
        lambda s: s.algorithm.personalise is not None and s.algorithm.personalise.needs_features,
    ),
    "softmax_frob": Trait(
        "margin=softmax_frob", lambda s: s.algorithm.criterion.form == "softmax_frob"
    ),
    # of the server
    "needs same start": Trait(
        "a server that mixes clients' models or answers single clients (fedpac, pfedla, "
        "matched_mean, ifca)",
        lambda s: s.algorithm.server.needs_same_start,
    ),
    "trains itself": Trait(
        "a server that trains on validation samples (fltrust)",
        lambda s: s.algorithm.server.root_samples > 0,
    ),
    "no mean": Trait(
        "a rule other than the mean (fedld, fedgh, krum, ifca; --server fedavg keeps the clients' "
        "part)",
        lambda s: type(s.algorithm.server.reduction) is not Average,
    ),
    "weighs by samples": Trait(
        "weights by samples (give --server fedavg --set fedavg.weights=uniform, or dp.max_samples)",
        _weighs_by_samples,
    ),
    "transforms cohort": Trait(
        "transforms of the cohort (fednova, nnm, bucketing, norm_clipping, qffl, afl)",
        lambda s: bool(s.algorithm.server.receive),
    ),
    "compares updates": Trait(
        "transforms of the cohort (nnm, bucketing, qffl, afl; not norm_clipping and fednova, whose "
        "clients can scale their updates)",
        lambda s: not all(has_trait(t, "by_client") for t in s.algorithm.server.receive),
    ),
    "rescales the step": Trait(
        "a step that is rescaled (fednova, qffl, afl)",
        lambda s: any(has_trait(t, "rescales") for t in s.algorithm.server.receive),
    ),
    "reads uploads": Trait(
        "what clients send beside the update (fedcm, fedpac, pfedla; not scaffold)",
        lambda s: bool(s.algorithm.server.exchange and not s.algorithm.server.private_sum),
    ),
    "answers single clients": Trait(
        "a server that answers single clients (fedpac, pfedla)",
        lambda s: bool(s.algorithm.server.exchange and not s.algorithm.server.sums),
    ),
    "optimizers see cohort": Trait(
        "server optimisers that see the cohort (feddyn)",
        lambda s: not all(has_trait(o, "blind") for o in s.algorithm.server.optimizers),
    ),
    # of model and data
    "not both": Trait(
        "a model without features and head, or with one of them frozen (model.trainable)",
        _one_part_frozen,
    ),
    "no features": Trait("a model without features(x)", lambda s: not s.has_features),
    "not split": Trait("a model of which clients would keep all trained layers, or none", _unsplit),
    "no head": Trait(
        "a model of which no head is trained", lambda s: not _some(s, lambda t: t.head, "param")
    ),
    "sent statistics": Trait(
        "running statistics of BatchNorm that are sent",
        lambda s: _some(s, lambda slot: not s.algorithm.personal(slot), "stat"),
    ),
    "couples samples": Trait(
        "BatchNorm that trains, or other running statistics", _couples_samples
    ),
    "text": Trait("text", lambda s: bool(s.dataset.vocabulary)),
    "no classes": Trait(
        "a task without classes of samples or tokens", lambda s: not s.task.cross_entropy
    ),
    "loss of a batch": Trait(
        "a task whose loss is no mean over samples", lambda s: not s.task.additive
    ),
    "labels of parts": Trait(
        "data with a label for every token or pixel", lambda s: s.task.output != "sample"
    ),
    "held out": Trait("data.heldout_clients", lambda s: bool(s.partition.held_out)),
    "none to keep": Trait(
        "a model of which no such tensor is trained", lambda s: not _some(s, s.algorithm.personal)
    ),
}
"""By name, as :data:`REFUSED` has them."""

_DELTA = "takes the update that is sent for the change of the client's model"
_NO_UPDATE = "sends no client's update"
_SUMS = "keeps the sum of the updates on the server and the exact ones on the clients"

_NOTHING = {"pools": _NO_UPDATE, "shares nothing": "is not sent"}
_CHANGED = {"decomposes": _DELTA, "personal after": _DELTA}

_PAIRS: dict[str, dict[str, str]] = {
    "needs features": {
        "not both": "leaves it one of the two at most",
    },
    "computes with features": {"labels of parts": "have no features of a sample with one label"},
    "needs classes": {"no classes": "has none"},
    "flips labels": {"no classes": "has none"},
    "target": {"no classes": "has no accuracy"},
    "decomposes": {"loss of a batch": "does not add up over clients"},
    "splits": {"not split": "makes it local or fedavg by another name"},
    "reads features": {
        "no features": "has none to compare",
        "decomposes": "takes models without their neighbours",
        "personal after": "takes models without their neighbours",
        "labels of parts": "have no features of a sample with one label",
    },
    "keeps tensors": {"none to keep": "makes it fedavg by another name; fedbn needs BatchNorm"},
    "lr_head": {"phases": "has learning rates of its own", "no head": "leaves it without a place"},
    "asynchronous": dict.fromkeys(
        ("probe", "needs same start", "pools", "decomposes", "personal in cohort"),
        "takes all clients of a round to start from the newest model",
    ),
    "weighs stale updates": {"needs exact updates": _SUMS},
    "mixes models": {"measures progress": "takes an update for its client's whole progress"},
    "attacked": _NOTHING,
    "attacked updates": _CHANGED,
    "trains itself": {
        "asynchronous": "has clients that start from older models than the server",
        "pools": _NO_UPDATE,
        "shares a part": "have no values on the server",
        "rescales the step": "multiplies the step by the clients' steps, where it has the server's "
        "own length",
    },
    "local steps": {
        "phases": "counts epochs in each",
        "pools some": "pools other samples in each round: no pass can carry on",
        "example level": "draws each batch on its own, by epochs",
    },
    "loaders": {
        "asynchronous": "lets clients take turns in another order",
        "pools": "has one loader",
        "held out": "has clients whose loaders draw nothing",
    },
    "selects by loss": {"pools": "has no clients with a loss"},
    "compresses": {
        **_NOTHING,
        **_CHANGED,
        "needs same start": "needs clients' exact models or heads",
        "needs exact updates": _SUMS,
    },
    "transforms": _NOTHING | _CHANGED,
    "user level": {
        "asynchronous": "lets clients take part as the accountant does not know",
        "selects by data": "draws clients by their data, or the same again and again",
        "own schedule": "draws clients in a way that the accountant does not know",
        **_NOTHING,
        "no mean": "has coefficients that depend on the data, so that a client may change more "
        "than its own clipped update",
        "transforms cohort": "come before the clipping and may depend on other clients",
        "reads uploads": "is neither clipped nor noised",
        "probe": "is neither clipped nor noised",
        "optimizers see cohort": "read more than the noised step",
        "weighs by samples": "are bounded by nothing",
        "sent statistics": "are not clipped; model.norm=group has none, and fedbn keeps them on "
        "the clients",
        "omniscient": "make a client's update of those of others",
    },
    "example level": {
        "pools": "has no clients whose samples are protected",
        "more than gradients": "use them without clipping and noise",
        "probe": "is neither clipped nor noised",
        "softmax_frob": "is no mean over samples",
        "couples samples": "lets samples change each other's gradients; model.norm=group has none",
        "text": "has models without gradients by sample",
        "selects by loss": "reads the clients' losses, which have no noise",
        "finetunes": "trains on after what epsilon counts",
        "loss of a batch": "has no gradients by sample",
    },
    "secure": {
        "no mean": "needs single updates, or their inner products",
        "compares updates": "need single updates, or their inner products",
        "answers single clients": "needs what single clients send",
        "selects by loss": "needs the losses of single clients",
        "compresses": "sends messages that cannot be summed under masks",
        "asynchronous": "has no common cohort whose masks cancel",
        "omniscient": "sees what secure aggregation hides",
    },
}
REFUSED = tuple((a, b, why) for a, others in _PAIRS.items() for b, why in others.items())
"""Two traits that no run has together, and what of the second is the reason."""


def check(setup: Setup) -> None:
    """Refuses a run that asks for what cannot be combined, before anything starts."""
    traits = {name: trait for name, trait in TRAITS.items() if trait.holds(setup)}
    for one, other, why in REFUSED:
        if one in traits and other in traits:
            raise ConfigError(
                f"{traits[one].text} cannot be combined with {traits[other].text}, which {why}"
            )


def table() -> str:
    """The refused combinations in Markdown."""
    rows = (f"| {TRAITS[a].text} | {TRAITS[b].text} | {why} |" for a, b, why in REFUSED)
    return "\n".join(("| what | with | which |", "|---|---|---|", *rows))
