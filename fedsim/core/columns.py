"""The columns of summary.csv: which of them are settings. All others are outcomes.

A setting with a section has the dotted key of config.yaml, such as ``train.lr`` or
``fedprox.mu``; no outcome has a dot in its name. ``fedsim.training.summary`` writes the columns,
``analysis`` reads them.
"""

SETTINGS = (
    *("algorithm", "dataset", "model", "num_clients", "sample_rate", "alpha", "rounds", "best_by"),
    *("server", "margin", "margin_weight", "margin_threshold"),
)
"""The settings without a section; runs that differ in ``seed`` alone repeat each other."""
WITHOUT_EFFECT = frozenset({
    "train.threads", "evaluation.batch_size", "evaluation.decompose_every",
    "evaluation.decompose_max_samples", "evaluation.decompose_scope", "evaluation.decompose_split",
    "evaluation.loss_matrix", "evaluation.clients_every", "evaluation.cosines",
    "evaluation.target_accuracy",
})  # fmt: skip
"""Settings on which no result depends, but for last bits; so are those of section ``engine``."""


def is_setting(column: str) -> bool:
    """Whether results depend on a column of summary.csv, rather than being in it."""
    section, dot, _ = column.partition(".")
    if not dot:
        return column in SETTINGS
    return section != "engine" and column not in WITHOUT_EFFECT
