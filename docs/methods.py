"""Writes docs/METHODS.md from the docstrings of fedsim/algorithms: ``python docs/methods.py``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedsim import algorithms
from fedsim.algorithms.catalogue import METHODS
from fedsim.core.settings import argument_texts

PAGE = Path(__file__).resolve().parent / "METHODS.md"
INTRO = """# Methods

[Which method when](concepts/heterogeneity.md#which-method-when) helps to choose. Here is
every method of `fedsim list algorithms`, made from the docstrings of `fedsim/algorithms` by
`python docs/methods.py`. P is the number of trained parameters, D that with the running statistics
of BatchNorm, C the number of classes, d the number of features that the head sees, N the number of
clients. Every method trains by SGD with momentum and weight decay as `train.*` says (most also
by AdamW, see [pretrained networks](how-to/pretrained.md)), on cross-entropy or any form of margin
control (`--margin`), and unless a line says otherwise each update goes up (D numbers) and the model
down (D).

`--server NAME` puts the server rule of one method under the clients of another, such as
`-a fednova --server fedgh`. `--server NAME,NAME,...` is a chain: the first method gives the
reduction of the updates to one step and its own server optimisers, each other one adds its server
optimisers (fedadam, fedyogi, fedadagrad, fedavgm, slowmo). Pre-aggregations (nnm, bucketing,
norm_clipping) may come before all: `--server nnm,krum`. So `--server fedadam` is the mean, then
Adam, and `--server fedgh,fedadam` FedGH's step, then Adam; `fedadam.weights` has no effect there.
Each method's hyperparameters are read from its own section. What a method's own clients send stays
with them (FedNova's normalisation, SCAFFOLD's control variates); what cannot be combined is refused
with the reason.

The last column of the tables says, for each method with its default options, whether clients can be
trained in blocks (`--client-batch`), as one model with a client dimension.

Of the public code named here, these versions were read: FL-bench 075292b (servers) and c6503ac
(clients), FedLab a0bb295 and 6a41bb4, PFLlib 487a29e, Flower 2d0adc7 and 10d58a7, JianXu95/FedPAC
7cf08f3; for afl, apfl, ditto, ifca, perfedavg, pfedme and qffl litian96/ditto 26d9b29,
CharlieDinh/pFedMe caf24b1, litian96/fair_flearn f097971, jichan3751/ifca 61e44b8, MLOPTPSU/FedTorch
ab8068d, PFLlib d832e76 and FL-bench 06e658b; for the other personalised methods lgcollins/FedRep
d82e629, jhoon-oh/FedBABU e34c15b, TsingZ0/FedALA a7a9b21, omarfoq/knn-per ee17520,
pliang279/LG-FedAvg 8ee6a68, PFLlib 2b077c1 and 04240b9, FL-bench 2dc8a04 (on the same samples the
updates, mixtures and shares of FedRep, FedBABU, FedALA and kNN-Per equal those of their authors'
codes to rounding); for robust rules, [how well-known code computes it](reference/known-code.md) has
them, with what each difference does. Other versions may differ. One more difference concerns every
method: macro-F1 and balanced accuracy ([tables](TABLES.md)) run over the classes with support,
while scikit-learn's `f1_score(average="macro")` also counts, with 0, a class that is predicted but
has no test samples.
"""


GROUPS = {
    "Baselines": (
        "what every other method is compared with",
        ("fedavg", "local", "centralized"),
    ),
    "Client drift": (
        "local training that stays closer to the global objective",
        ("fedprox", "scaffold", "feddyn", "fednova", "fedcm", "fedsam"),
    ),
    "Server optimisers": (
        "the mean update as a gradient for Adam, momentum and the like",
        ("fedadagrad", "fedadam", "fedavgm", "fedyogi", "slowmo"),
    ),
    "Aggregation of unlike updates": (
        "rules in place of the mean, where clients' updates conflict or differ in quality",
        (
            *("fedgh", "fedgh_released", "fedld", "fedld_released", "matched_mean", "pcgrad"),
            *("regagg", "robfedavg", "simagg"),
        ),
    ),
    "Robust rules": (
        "steps that a number of faulty clients, or attackers, cannot move far; "
        "see [robust rules](how-to/attacks.md#robust-rules)",
        (
            *("bucketing", "bulyan", "centered_clipping", "coordinate_median", "fltrust"),
            *(
                "geometric_median",
                "krum",
                "mda",
                "multikrum",
                "nnm",
                "norm_clipping",
                "trimmed_mean",
            ),
        ),
    ),
    "A model for each client": (
        "a part of the model, or all of it, stays with its client, or is mixed with others'; "
        "see [a model for each client](how-to/personalise.md)",
        (
            *("fedbn", "fedper", "lgfedavg", "fedrep", "fedbabu", "fedrod", "fedpac"),
            *("fedala", "knnper", "pfedla"),
            *("apfl", "ditto", "ifca", "perfedavg", "pfedme"),
        ),
    ),
    "Fairness between clients": (
        "clients with a large loss count more; see [fairness](how-to/fairness.md)",
        ("afl", "qffl"),
    ),
    "Features and domains": (
        "a term of the loss on the features, against collapse or towards what domains share",
        ("feddecorr", "fediir", "fedsr", "moon"),
    ),
}
"""By the title of a group what it is for, and its methods."""


def cell(text: str) -> str:
    """Text that cannot end a cell of a Markdown table."""
    return text.replace("``", "`").replace("|", "\\|")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *([cell(c) for c in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def title(name: str) -> tuple[str, str, str]:
    """What a method calls itself, what it does, and its source."""
    label, _, rest = algorithms.describe(name).partition(": ")
    what, _, source = rest.rstrip(".").rpartition(" (")
    return label, what, source.removesuffix(")")


def options(name: str) -> list[tuple[str, str, str]]:
    """Each hyperparameter with its default and its line in the docstring of ``build``."""
    texts = argument_texts(METHODS.docstrings(name)[1])
    parameters = algorithms.parameters(name).items()
    return [(key, str(p.default), texts[key]) for key, p in parameters]


def said(stackable: bool | str) -> str:
    """Whether a method's clients can be trained as a block."""
    return "yes" if stackable is True else f"no: {stackable}"


def page() -> str:
    """The whole of METHODS.md."""
    names = algorithms.names()
    fields = {name: algorithms.fields(name) for name in names}
    blocks = {name: algorithms.load(name).local.stackable for name in names}
    head = ("Method", "Paper", "Client part", "Server part", "State", "Also sent", "Blocks")
    lines = [INTRO.rstrip("\n")]
    for group, (purpose, members) in GROUPS.items():
        overview = (
            (
                f"[`{n}`](#{n})",
                title(n)[2],
                *(fields[n][f] for f in algorithms.FIELDS[:4]),
                said(blocks[n]),
            )
            for n in members
        )
        lines += ["", f"**{group}**: {purpose}.", "", *table(head, overview)]
    for name in names:
        label, what, source = title(name)
        lines += ["", f"## {name}", "", f"{label}: {what} ({source}).", ""]
        if options(name):
            keys = ((f"`{name}.{key}`", default, said) for key, default, said in options(name))
            lines += [*table(("Option", "Default", "Meaning"), keys), ""]
        lines.append(cell(f"Well-known public code: {fields[name]['public code']}."))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
