"""Steps on fixed tensors give the bytes of the usual loop, whatever clients came before."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from fedsim import algorithms
from fedsim.client import LocalRule, Phase, Uplink
from fedsim.client.block import obstacle
from fedsim.client.steps import Steps
from fedsim.client.trainer import UNCAPTURABLE
from fedsim.core.layout import freeze
from fedsim.core.types import ModelSpec, PrivateSteps, RoundContext, Training
from fedsim.engine.spec import WorkerSpec, Stacking
from fedsim.engine.worker import Worker
from fedsim.models.vision import SplitModel
from tests.algorithms.training import CLASSES, SIZE, dataset
from tests.tasks import models, tasks

CPU = torch.device("cpu")
SIZES = (17, 9, 16, 1, 8, 12, 9)
"""Of seven clients, in batches of eight: short last batches, single samples, twice the same."""
NEEDS = {"fedpac": "cnn", "fedsr": "cnn"}
OPTIONS = {
    "fedprox l2": {"prox_form": "l2_per_tensor"},
    "scaffold I": {"option": "I"},
    "feddyn by_samples": {"client_alpha": "by_samples"},
    "feddecorr paper": {"form": "paper"},
    "fedsam asam": {"variant": "asam"},
    "fedsam momentum": {"alpha": 0.5},
    "fedsr l2r": {"deterministic": True, "a_l2r": 0.1},
}
