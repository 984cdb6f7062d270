"""The kind of device by env.json and checkpoints."""

from __future__ import annotations

import pytest

from fedsim.core.machine import kind_of, other_kind

H200 = {"name": "NVIDIA H200", "multiprocessors": 132, "precision": "tf32"}
OTHERS = {"deterministic": True, "nondeterministic": ["put_"], "uncaptured": {}}


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (
            {"device": H200 | OTHERS, "server_device": "NVIDIA H200"},
            {"server": "NVIDIA H200"} | H200,
        ),
        ({"device": {}, "server_device": "cpu"}, {"server": "cpu"}),
        ({"device": H200 | {"server": "NVIDIA H200"}}, {"server": "NVIDIA H200"} | H200),
        ({"device": "NVIDIA A100"}, {"name": "NVIDIA A100", "server": "cpu"}),
        ({"device": ""}, {"server": "cpu"}),
        ({}, {"server": "cpu"}),
    ],
    ids=["env.json", "no actor yet", "checkpoint", "a name", "no round", "empty"],
)
def test_what_is_known(part, kind):
    assert kind_of(part) == kind
    assert kind_of({"device": kind}) == kind


def test_in_what_two_differ():
    now = kind_of({"device": H200, "server_device": "NVIDIA H200"})
    assert other_kind(now, now) == other_kind({}, now) == other_kind(now, {}) == ""
    assert other_kind({"name": "NVIDIA H200"}, now) == ""
    before = now | {"multiprocessors": 114, "server": "cpu"}
    assert other_kind(before, now) == (
        "multiprocessors 132 instead of 114; server's device NVIDIA H200 instead of cpu"
    )
