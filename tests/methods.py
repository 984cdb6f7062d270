"""Small runs of any method on digits: 22 training images a client, two clients a round."""

from __future__ import annotations

import numpy as np

from fedsim.config.run import RunConfig

TABLES = (
    *("rounds.csv", "clients.csv", "classes.csv", "confusion.csv", "partition.csv"),
    "model.safetensors",
)
NUM_CLIENTS = 8


def config(name, model="cnn", **sections):
    """Three rounds of a method; 2 of 8 clients each, evaluated at the end."""
    given = {
        "data": {"num_clients": NUM_CLIENTS, "test_fraction": 0.9},
        "train": {"rounds": 3, "sample_rate": 0.25, "batch_size": 20, "lr": 0.02},
        "evaluation": {"every": 3},
        "engine": {"kind": "serial", "checkpoint_every": 0},
    }
    for section, values in sections.items():
        given[section] = given.get(section, {}) | values
    return RunConfig(algorithm=name, model={"name": model}, **given)


def results(store):
    """The bytes that do not depend on where the work was done."""
    files = [
        *TABLES,
        *(
            f
            for f in ("evaluations.csv", "server.csv", "clients.safetensors")
            if (store.path / f).exists()
        ),
    ]
    return {file: (store.path / file).read_bytes() for file in files}


def uneven(path):
    """A partition file whose last client has one sample."""
    owners = np.r_[np.arange(179) % (NUM_CLIENTS - 1), NUM_CLIENTS - 1]
    rows = [f"{client},{index}" for index, client in enumerate(owners[:179])]
    rows[-1] = f"{NUM_CLIENTS - 1},178"
    path.write_text("\n".join(["client,index", *rows]) + "\n")
    return path
