"""Section clock and its trace file: what they give, and what is refused."""

from __future__ import annotations

import math

import pytest

from fedsim import algorithms
from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalRule, Phase
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import Layout, Slot
from fedsim.systems.clock import LocalSchedule, Series
from fedsim.systems.distributions import constant, parse
from fedsim.systems.trace import read_trace
from fedsim.training.assemble import clock_of

LAYOUT = Layout(
    (
        Slot(name="conv", shape=(4,), start=0, stop=4),
        Slot(name="norm", shape=(2,), start=4, stop=6, batchnorm=True),
        Slot(name="head", shape=(3,), start=6, stop=9, head=True),
        Slot(name="norm.mean", shape=(2,), start=9, stop=11, role="stat", batchnorm=True),
    )
)


def clock(method="fedavg", train=None, algorithm=None, **section):
    config = RunConfig(algorithm=method, train=train or {}, clock=section, seed=3)
    algorithm = algorithm or algorithms.load(method, config.hyperparameters[method])
    return clock_of(config, 3, algorithm, LAYOUT)


def trace(tmp_path, *lines):
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_clock_of_a_section():
    found = clock(
        train={"local_epochs": 2, "batch_size": 8},
        samples_per_second="lognormal(100, 0.5)", availability="0.9", work="uniform(0.5, 1)",
        deadline=5, late="partial",
    )  # fmt: skip
    assert found.distributions == {
        "samples_per_second": parse("lognormal(100, 0.5)"),
        "availability": constant(0.9),
    }
    assert (found.seed, found.deadline, found.late) == (3, 5.0, "partial")
    assert found.work == parse("uniform(0.5, 1)")
    assert found.schedule == LocalSchedule(2, 8, True)
    assert found.vector_bytes == 4 * 11


def test_what_stays_on_the_client_is_not_sent():
    assert clock("fedbn").vector_bytes == 4 * 7
    assert clock("fedbn", samples_per_second=1).vector_bytes == 4 * 7
    assert clock("fedpac").vector_bytes == 4 * 8


def test_the_epochs_of_all_phases_count_and_batch_norm_that_does_not_train_skips_nothing():
    assert clock("fedpac", {"local_epochs": 3}, samples_per_second=1).schedule.epochs == 1 + 3
    assert not clock(train={"frozen_bn": True}, samples_per_second=1).schedule.skips_single


def test_steps_in_place_of_epochs_are_what_takes_time():
    fixed = clock(train={"local_steps": 7, "batch_size": 8}, samples_per_second=10.0)
    assert [fixed.schedule.steps(n) for n in (3, 100)] == [7, 7]
    assert fixed.participation(0, 0, 20).compute == pytest.approx(
        4.8
    )  # samples 8 + 8 + 4, 8 + 8 + 4, 8
    half = clock(train={"local_steps": 7, "batch_size": 8}, samples_per_second=10.0, work=0.5)
    assert half.participation(0, 0, 20).max_steps == 4


def test_without_a_section_nothing_takes_time():
    found = clock()
    assert (found.timed, found.deadline, found.distributions) == (False, math.inf, {})


class Curious(LocalRule):
    def phases(self, env):
        return (Phase(len(env.x), 0.1),)


def test_a_plan_that_depends_on_the_data_is_refused_with_a_clock_alone():
    assert clock(algorithm=Algorithm(local=Curious())).vector_bytes == 44
    with pytest.raises(ConfigError, match="clock: algorithm fedavg plans its training with more"):
        clock(algorithm=Algorithm(local=Curious()), samples_per_second=1)


def test_a_deadline_needs_something_that_takes_time(tmp_path):
    with pytest.raises(ConfigError, match=r"clock\.deadline: 5 given, but nothing takes time"):
        clock(deadline=5, availability=0.5)
    path = trace(tmp_path, "client_id,upload_mb_s", "0,1", "1,1", "2,1")
    assert clock(deadline=5, trace=str(path)).timed


def test_a_trace(tmp_path):
    path = trace(
        tmp_path,
        "round,client_id,samples_per_second,availability",
        *("1,2,10,1", "1,0,20,0.5", "1,1,30,0", "5,0,40,0.25", "3,0,50,1"),
    )
    assert read_trace(path, 3) == {
        "samples_per_second": {
            0: Series((0, 2, 4), (20.0, 50.0, 40.0)),
            1: Series((0,), (30.0,)),
            2: Series((0,), (10.0,)),
        },
        "availability": {
            0: Series((0, 2, 4), (0.5, 1.0, 0.25)),
            1: Series((0,), (0.0,)),
            2: Series((0,), (1.0,)),
        },
    }


def test_a_trace_and_a_key_for_the_same_are_refused(tmp_path):
    path = trace(tmp_path, "client_id,upload_mb_s", "0,1", "1,1", "2,1")
    with pytest.raises(ConfigError, match=r"clock\.upload_mb_s: 3\.0 given; clock\.trace .* too"):
        clock(upload_mb_s=3, trace=str(path))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["client_id,speed", "0,1"], "unknown column 'speed'"),
        (["client_id,round", "0,1"], "no trait; the columns are client_id"),
        (["client,upload_mb_s", "0,1"], "needed are the columns client_id"),
        (["client_id,upload_mb_s", "0,1", "3,1"], "row 3: client_id 3 must be 0 to 2"),
        (["client_id,upload_mb_s", "0.5,1"], "row 2: client_id '0.5' is not a whole number"),
        (["client_id,upload_mb_s", "0,1", "0,2"], "row 3: client_id 0 is given twice"),
        (["client_id,upload_mb_s", "0,1", "2,2"], "trace.csv: no row of client_id 1 for round 1"),
        (["client_id,round,upload_mb_s", "0,2,1"], "no row of client_id 0 for round 1"),
        (["client_id,round,upload_mb_s", "0,0,1"], "row 2: round 0 must be 1 or more"),
        (["client_id,upload_mb_s", "0,fast"], "row 2: upload_mb_s 'fast' must be above 0"),
        (["client_id,upload_mb_s", "0,"], "row 2: upload_mb_s '' must be above 0"),
        (["client_id,upload_mb_s", "0,0"], "row 2: upload_mb_s '0' must be above 0"),
        (["client_id,upload_mb_s", "0,inf"], "row 2: upload_mb_s 'inf' must be above 0"),
        (
            ["client_id,availability", "0,0", "1,0", "2,0"],
            "trace.csv: availability is 0 in all rows",
        ),
        (["client_id,availability", "0,2"], "row 2: availability '2' must be from 0 to 1"),
    ],
)
def test_traces_that_are_refused(tmp_path, lines, message):
    path = trace(tmp_path, *lines)
    with pytest.raises(DataError) as error:
        read_trace(path, 3)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


def test_a_trace_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"^clock\.trace .*none\.csv: there is no such file$"):
        clock(trace=str(tmp_path / "none.csv"))
