"""Small texts and features of users, and models for them, that several tests share."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedsim.config.run import RunConfig
from fedsim.core.layout import FlatModel
from fedsim.core.types import Dataset
from fedsim.models.vision import SplitModel

TOKENS, WORDS, UNKNOWN = 6, 9, (0, 1)
USERS = (0, 1, 2, 3, 4, 5)
WITHOUT_TEST = (2, 5)
"""Users of whom nothing is in the test part."""


def _users(x, y, vocabulary, classes, never_right=()):
    """90 samples of six users of unequal size; every third of those who have a test part."""
    site = np.repeat(USERS, (10, 20, 5, 25, 18, 12))
    test = (np.arange(len(x)) % 3 == 0) & ~np.isin(site, WITHOUT_TEST)
    return Dataset(
        name="small texts",
        x=x,
        y=y,
        class_names=tuple(map(str, range(classes))),
        train=np.flatnonzero(~test),
        val=np.arange(0),
        test=np.flatnonzero(test),
        pipeline=None,
        site=site,
        site_names=tuple(f"user {i}" for i in USERS),
        groups={"early": np.flatnonzero(test)[:9]},
        vocabulary=vocabulary,
        never_right=never_right,
        sites_are_users=True,
    )


def phrases(folder):
    """The next token at every position, 1 to 6 of which count; tokens 0 and 1 are never right."""
    rng = np.random.default_rng(0)
    tokens = np.cumsum(rng.integers(0, 3, (90, TOKENS + 1)), axis=1) % WORDS
    lengths = rng.integers(1, TOKENS + 1, 90)
    y = np.where(np.arange(TOKENS) < lengths[:, None], tokens[:, 1:], -1)
    return _users(tokens[:, :-1].astype(np.int32), y.astype(np.int64), WORDS, WORDS, UNKNOWN)


def moods(folder):
    """One of three labels for each sample of tokens."""
    x = np.random.default_rng(1).integers(0, WORDS, (90, TOKENS)).astype(np.int32)
    return _users(x, (x[:, -1] % 3).astype(np.int64), WORDS, 3)


def numbers(folder):
    """Four features and one of three labels."""
    x = np.random.default_rng(2).normal(size=(90, 4)).astype(np.float32)
    return _users(x, x[:, :3].argmax(axis=1).astype(np.int64), 0, 3)


class _Features(nn.Module):
    def __init__(self, vocabulary, last):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 5)
        self.norm = nn.BatchNorm1d(5)
        self.lstm = nn.LSTM(5, 4, batch_first=True)
        self.last = last

    def forward(self, x):
        z = self.norm(self.embedding(x).transpose(1, 2)).transpose(1, 2)
        z = self.lstm(z)[0]
        return z[:, -1] if self.last else z


def tagger(num_classes, vocabulary, tokens):
    """A class for every token."""
    return SplitModel(_Features(vocabulary, last=False), nn.Linear(4, num_classes))


def reader(num_classes, vocabulary, tokens):
    """A class for all tokens together."""
    return SplitModel(_Features(vocabulary, last=True), nn.Linear(4, num_classes))


MODELS = {"phrases": f"{__name__}:tagger", "moods": f"{__name__}:reader", "numbers": "logistic"}


def config(data="phrases", method="fedavg", evaluation=None, engine=None, **train):
    """Two rounds of three users each, in one process."""
    return RunConfig(
        algorithm=method,
        data={"name": f"{__name__}:{data}", "min_samples": 1},
        model={"name": MODELS[data]},
        train={"rounds": 2, "sample_rate": 0.5, "batch_size": 8, "lr": 0.5} | train,
        evaluation={"batch_size": 7} | (evaluation or {}),
        engine={"kind": "serial"} if engine is None else engine,
    )


def token_losses(setup, vector, index):
    """Of some samples the losses of all labels that count, and whether each was predicted right.

    In float64, sample by sample and label by label.
    """
    from fedsim import models

    model = models.build(setup.model, setup.config.seed)
    flat = FlatModel(model, torch.device("cpu"))
    flat.load(torch.from_numpy(vector))
    model = model.double().eval()
    losses, right = [], []
    with torch.no_grad():
        for i in index.tolist():
            logits = model(torch.from_numpy(setup.dataset.x[i]).long()[None])[0].numpy()
            for z, label in zip(logits, setup.dataset.y[i], strict=True):
                if label >= 0:
                    losses.append(np.log(np.exp(z - z[label]).sum()))
                    right.append(z.argmax() == label and label not in setup.dataset.never_right)
    return np.array(losses), np.array(right)
