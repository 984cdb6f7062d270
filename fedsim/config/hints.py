"""Which key is probably meant by one that does not exist."""

from collections.abc import Iterable, Mapping

from fedsim.core.errors import nearest

FOREIGN: Mapping[str, str] = {
    **dict.fromkeys(("method", "algo", "strategy"), "algorithm"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed"),
    **dict.fromkeys(("dataset", "data_name"), "data.name"),
    **dict.fromkeys(("data_dir", "data_path", "root"), "data.dir"),
    **dict.fromkeys(("dirichlet", "dirichlet_alpha", "concentration"), "data.alpha"),
    **dict.fromkeys(
        ("clients", "n_clients", "num_users", "n_parties", "client_num"), "data.num_clients"
    ),
    **dict.fromkeys(("arch", "net", "network", "model_name"), "model.name"),
    **dict.fromkeys(("frac", "fraction", "fraction_fit", "join_ratio"), "train.sample_rate"),
    **dict.fromkeys(("num_rounds", "n_rounds", "global_rounds", "comm_round"), "train.rounds"),
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs", "local_epoch"), "train.local_epochs"),
    **dict.fromkeys(("bs", "batch", "batchsize", "local_bs"), "train.batch_size"),
    **dict.fromkeys(("learning_rate", "local_lr", "client_lr", "eta"), "train.lr"),
    **dict.fromkeys(("wd", "decay"), "train.weight_decay"),
    **dict.fromkeys(("opt", "optim"), "train.optimizer"),
    **dict.fromkeys(("scheduler", "lr_scheduler"), "train.lr_schedule"),
    **dict.fromkeys(("eval_every", "eval_interval", "eval_gap", "test_every"), "evaluation.every"),
    **dict.fromkeys(("num_workers", "workers"), "engine.actors"),
    **dict.fromkeys(("gpus", "num_gpus"), "engine.gpus_per_client"),
}
"""The keys that names from other frameworks stand for, for hints."""


def known_as(leaf: str, keys: Iterable[str]) -> str | None:
    """The dotted key whose last part is ``leaf``, or for which other frameworks use this name.

    Args:
        leaf: without a section.
        keys: those of all sections.
    """
    return FOREIGN.get(leaf) or next((k for k in keys if k.rpartition(".")[2] == leaf), None)


def unknown_key(key: str, names: Iterable[str], keys: Iterable[str]) -> str:
    """Why the dotted ``key`` is refused, with the key that is probably meant, if there is one.

    Args:
        key: as it was given.
        names: the keys that exist, of which the most similar one may be meant.
        keys: those of all sections.
    """
    names = tuple(names)
    section, dot, leaf = key.rpartition(".")
    inside = [k for k in names if dot and k.startswith(f"{section}.") and leaf in k[len(section) :]]
    if len(inside) == 1 and len(leaf) > 3:
        return f"unknown key {key!r} (did you mean {inside[0]!r}?)"
    meant = known_as(key.rpartition(".")[2], keys)
    meant = meant or next((k for k in names if k.endswith(f".{key}")), None)
    return f"unknown key {key!r}" + (
        f" (did you mean {meant!r}?)" if meant else nearest(key, names)
    )
