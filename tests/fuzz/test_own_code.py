"""Own methods, models, loaders and executors that raise, exit, or return something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.harness import Case, parts, tried

pytestmark = pytest.mark.integration

SERIAL = ("run", "--engine", "serial", "--rounds", "2", "--clients", "4", "--sample-rate", "1")
OUT = ("--out", "out")
FAULTS = {
    "an error": "raise ValueError('on purpose')",
    "a missing file": "open('no such file')",
    "an exit": "raise SystemExit(0)",
    "a kind of its own": "raise type('Mine', (BaseException,), {})('on purpose')",
    "endless calls": "(f := lambda: f())()",
}
"""What a function may do."""

HEADER = """\
from dataclasses import dataclass, replace
import numpy as np
import torch
from torch import nn
from fedsim.algorithms import Algorithm
from fedsim.client import LocalRule, Uplink
from fedsim.core.types import Dataset, Pipeline
from fedsim.models.vision import SplitModel
from fedsim.server import Average, Server
"""
MODEL = """\
def make(num_classes, in_channels, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))
"""
LOADER = """\
def load(folder):
    y = np.arange(200) % 4
    x = np.repeat(y, 64).reshape(200, 1, 8, 8).astype(np.uint8)
    return Dataset(
        name="mine", x=x, y=y, class_names=tuple("abcd"), train=np.arange(160), val=np.arange(0),
        test=np.arange(160, 200), pipeline=Pipeline(size=8, mean=(0.5,), std=(0.5,)),
    )
"""


def own(kind: str, name: str) -> tuple[str, ...]:
    """The flags for a function of the module ``mine``."""
    flag = {"algorithm": "-a", "model": "--model", "data": "-d", "engine": "--engine"}[kind]
    return (*SERIAL, *OUT, flag, f"mine:{name}")


def module(*parts: str) -> dict[str, str]:
    return {"mine.py": "\n".join((HEADER, *parts))}


def cases_at_the_start() -> list[Case]:
    """What is wrong before the first round: exit status 2, the place is named."""
    cases = []
    for name, fault in FAULTS.items():
        for kind in ("algorithm", "model", "data", "engine"):
            text = f"def f({'' if kind == 'algorithm' else '*a, **k'}): {fault}"
            said = ("mine:f", "mine.py:11")
            cases.append(Case(f"{kind}: {name}", own(kind, "f"), said, 2, module(text)))
        text = {"mine.py": f"def f(): 1\n{fault}"}
        cases.append(Case(f"import: {name}", own("model", "f"), "mine.py:", 2, text))
        forward = (
            "class Net(nn.Linear):",
            "    def forward(self, x):",
            f"        {fault}",
            "def f(c, i, s): return Net(i * s * s, c)",
        )
        cases.append(Case(f"forward: {name}", own("model", "f"), "mine.py:13", 2, module(*forward)))
        for hook in ("adapt", "personal"):
            text = f"def hook(*a): {fault}\ndef f(): return Algorithm({hook}=hook)"
            cases.append(
                Case(f"{hook}: {name}", own("algorithm", "f"), "mine.py:11", 2, module(text))
            )
    return cases


def returning(kind: str) -> list[Case]:
    """Functions that return something else."""
    values = ("None", "'x'", "object()", "Dataset", "nn.Linear(3, 3)", "np.zeros(3)", "Algorithm")
    arguments = "" if kind == "algorithm" else "*a, **k"
    return [
        Case(f"{kind}: {v}", own(kind, "f"), "", 2, module(f"def f({arguments}): return {v}"))
        for v in values
    ]


JUNK = ("None", "3", "'x'", "np.zeros(3)", "np.array(['a'])")


def cases_of_datasets() -> list[Case]:
    """A field of the data set is junk."""
    fields = {
        "name": ("None", "3"),
        "x": JUNK,
        "y": JUNK,
        "class_names": ("None", "3", "()", "('a',)", "[1, 2]", "('a', 'a', 'b', 'c')"),
        "train": (*JUNK, "np.arange(999)", "np.zeros(160, int)", "-np.arange(160)"),
        "test": (*JUNK, "np.arange(0)", "np.arange(200)"),
        "val": ("None", "3", "'x'", "np.array([9999])", "np.array([0.5])"),
        "pipeline": ("3", "'x'", "Pipeline(size=0, mean=(0.5,), std=(0.5,))",
                     "Pipeline(size=8, mean=(), std=())", "Pipeline(size=8, mean=(0,), std=(0,))",
                     "None",
                     "Pipeline(size=8, mean=None, std=None)"),
        "site": ("3", "'x'", "[0]", "np.arange(3)"),
        "groups": ("3", "{'a': 3}", "{'a': np.arange(3)}", "{'a': np.arange(0)}"),
        "vocabulary": ("-1", "'x'", "3"),
        "never_right": ("(99,)", "('a',)"),
    }  # fmt: skip
    return [
        Case(
            f"{field}={value}",
            own("data", "f"),
            ("mine",),
            2,
            module(LOADER, f"def f(folder): return replace(load(folder), {field}={value})"),
        )
        for field, values in fields.items()
        for value in values
    ]


def cases_of_models() -> list[Case]:
    """Models that cannot be trained, or do not start from numbers."""
    bodies = {
        "NaN": ("net[1].weight.data[0, 0] = float('nan')", ("NaN", "1.weight")),
        "infinite": ("net[1].bias.data[:] = float('inf')", ("infinite", "1.bias")),
        "integers": ("net = net.to(torch.int64)", ""),
        "other classes": ("net[1] = nn.Linear(i * s * s, c + 1)", "logits"),
        "no parameters": ("net = nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(c))", ""),
        "nothing to train": ("net.requires_grad_(False)", ""),
        "a meta device": ("net = net.to('meta')", ""),
    }
    return [
        Case(
            name,
            own("model", "f"),
            said,
            2,
            module(MODEL, f"def f(c, i, s):\n    net = make(c, i, s)\n    {body}\n    return net"),
        )
        for name, (body, said) in bodies.items()
    ]


def cases_in_rounds() -> list[Case]:
    """What goes wrong in a round: exit status 1, round and place are named."""
    cases = []
    for name, fault in FAULTS.items():
        for hook, arguments in (("begin", "env"), ("loss", "env, s, x, y"), ("finish", "env, s")):
            rule = f"class Rule(LocalRule):\n    def {hook}(self, {arguments}): {fault}"
            text = module(rule, "def f(): return Algorithm(local=Rule())")
            says = ("round 1, client 0", "mine.py:12")
            cases.append(Case(f"{hook}: {name}", own("algorithm", "f"), says, 1, text, stays=False))
        rule = f"class Mean(Average):\n    def __call__(self, *a, **k):\n        {fault}"
        text = module(rule, "def f(): return Algorithm(server=Server(Mean()))")
        says = ("round 1", "mine.py:13")
        cases.append(Case(f"server: {name}", own("algorithm", "f"), says, 1, text, stays=False))
        net = (
            "class Net(nn.Linear):\n    def forward(self, x):\n"
            f"        if self.training: {fault}\n        return super().forward(x.flatten(1))\n"
            "def f(c, i, s): return Net(i * s * s, c)"
        )
        says = ("round 1", "mine.py:13")
        text = module(net)
        cases.append(Case(f"training: {name}", own("model", "f"), says, 1, text, stays=False))
    return cases


CASES = [
    *cases_at_the_start(),
    *(case for kind in ("algorithm", "model", "data", "engine") for case in returning(kind)),
    *cases_of_datasets(),
    *cases_of_models(),
    *cases_in_rounds(),
]


@pytest.mark.parametrize("number", parts(10))
def test_own_code(number: int, tmp_path: Path) -> None:
    tried(CASES[number::10], tmp_path)
