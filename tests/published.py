"""A published table for tests: its text, in which they change something, and what is read of it."""

from __future__ import annotations

from fedsim.config import published

NUMBERS = """\
numbers:
  FedAvg: {Digits: 80.5}
  FedGH: {Digits: {value: 82, sd: 1.5, n: 5, margin: 2}}
"""
GOOD = (
    """\
title: "A table"
source:
  paper: "Somebody, 2024"
  place: Table 1
  page: 7
provenance: Read in the paper.
metric: final_test_accuracy
unit: percent
margin: 1.0
widest: 8
runs: 1
"""
    + NUMBERS
    + """\
claims:
  - {above: FedGH, below: FedAvg, settings: [Digits]}
jobs:
  full:
    preset: fedgh_digits_small
    data: digits, embedded
    samples: 1437
    seconds: 30
    methods:
      FedAvg: {algorithm: fedavg, server: own}
      FedGH: {algorithm: fedavg, server: fedgh}
    settings:
      Digits: {split: alpha1_all}
"""
)


def parse(text: str) -> published.Table:
    """The table of a text, whose file is called a.yaml."""
    return published.parse(text, "a", "a.yaml")
