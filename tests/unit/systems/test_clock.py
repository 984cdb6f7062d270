"""The virtual clock by hand: distributions, steps, seconds, deadlines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedsim.core.rng import generator
from fedsim.systems.clock import Clock, LocalSchedule, Participation, Series, wire_bytes
from fedsim.systems.distributions import Distribution, constant, normalised, parse, parse_within

# distributions


@pytest.mark.parametrize(
    ("text", "law"),
    [
        (3, Distribution("choice", (3.0,))),
        (" 1e2 ", Distribution("choice", (100.0,))),
        ("choice(1, 10,100)", Distribution("choice", (1.0, 10.0, 100.0))),
        ("uniform( 1,10 )", Distribution("uniform", (1.0, 10.0))),
        ("lognormal(100, 0.5)", Distribution("lognormal", (100.0, 0.5))),
    ],
)
def test_numbers_and_texts_are_laws(text, law):
    assert parse(text) == parse(str(law)) == law


@pytest.mark.parametrize(
    "text",
    [
        *("", "fast", "normal(1, 2)", "uniform(1)", "uniform(2, 1)", "uniform(1, 2, 3)", "nan"),
        *("choice()", "choice(1,)", "lognormal(1)", "lognormal(0, 1)", "lognormal(1, 0)", "inf"),
        *("uniform(0, inf)", "uniform(1, 2) s", True, None),
    ],
)
def test_what_is_no_law_is_refused(text):
    with pytest.raises(ValueError, match=r"^must be "):
        parse(text)


def test_bounds_are_checked_for_every_number_that_can_come():
    positive = math.ulp(0.0), math.inf, "above 0"
    assert parse_within("lognormal(1, 3)", *positive) == parse("lognormal(1, 3)")
    for text in ("uniform(0, 1)", "choice(1, -1)"):
        with pytest.raises(ValueError, match=r"must be above 0, this goes from (0|-1) to 1$"):
            parse_within(text, *positive)
    with pytest.raises(ValueError, match=r"must be above 0$"):
        parse_within(0, *positive)
    with pytest.raises(ValueError, match=r"must be from 0 to 1, this goes from 8.*e-08 to 120260$"):
        parse_within("lognormal(0.1, 1)", 0, 1, "from 0 to 1")


def test_a_configuration_holds_numbers_as_numbers():
    assert normalised("0.5") == normalised(0.5) == 0.5
    assert isinstance(normalised("7"), float)
    assert normalised(" uniform(1,  2) ") == "uniform(1, 2)"


def test_draws_follow_their_law():
    rng = np.random.default_rng(0)

    def draws(text):
        return np.array([parse(text).draw(lambda: rng) for _ in range(4000)])

    uniform = draws("uniform(2, 4)")
    assert (uniform >= 2).all()
    assert (uniform < 4).all()
    assert uniform.mean() == pytest.approx(3, abs=0.05)
    values, counts = np.unique(draws("choice(1, 5, 7)"), return_counts=True)
    assert values.tolist() == [1, 5, 7]
    assert counts == pytest.approx(4000 / 3, rel=0.1)
    logs = np.log(draws("lognormal(100, 0.5)"))
    assert logs.mean() == pytest.approx(math.log(100), abs=0.05)
    assert logs.std() == pytest.approx(0.5, abs=0.03)


# steps and seconds

PLAN = LocalSchedule(epochs=2, batch_size=4)
CLOCK = Clock(
    distributions={
        "samples_per_second": constant(5.0),
        "download_mb_s": constant(1.0),
        "upload_mb_s": constant(0.5),
    },
    schedule=PLAN,
    vector_bytes=2_000_000,
)


@pytest.mark.parametrize(("n", "lone"), [(1, 0), (3, 0), (4, 0), (5, 1), (9, 1), (10, 0)])
def test_steps_and_samples_are_those_of_the_batches(n, lone):
    for skips in (False, True):
        seen = n - lone * skips
        sizes = [len(range(i, min(i + 4, seen))) for i in range(0, seen, 4)] * 2
        plan = replace(PLAN, skips_single=skips)
        assert plan.steps(n) == len(sizes)
        for steps in range(len(sizes) + 1):
            assert plan.samples(n, steps) == sum(sizes[:steps])


def test_a_round_by_hand():
    # 2 MB down at 1 MB/s, 2 epochs over 10 samples at 5 samples/s, 2 MB up at 0.5 MB/s
    found = CLOCK.participation(0, 0, 10)
    assert found == Participation(compute=4.0, download=1.0, upload=0.5)
    assert found.seconds(2_000_000, 2_000_000) == 2 + 4 + 4
    assert found.seconds(3_000_000, 2_500_000) == 3 + 4 + 5


def test_without_a_clock_nothing_takes_time_and_nobody_is_missing():
    found = Clock().participation(0, 0, 10)
    assert (found.max_steps, found.absent, found.seconds(10**9, 10**9)) == (None, None, 0.0)
    assert not Clock().timed
    assert not Clock(distributions={"availability": constant(0.5)}).timed
    assert CLOCK.timed


def test_later_than_the_deadline_is_left_out():
    late = replace(CLOCK, deadline=9.99).participation(0, 0, 10)
    assert late.late
    assert late.absent == "late: needs 10 s for 6 of 6 steps, clock.deadline is 9.99 s"
    assert replace(CLOCK, deadline=10.0).participation(0, 0, 10) == CLOCK.participation(0, 0, 10)


def test_partial_work_is_the_steps_that_fit():
    # without the 6 s on the way 3 s are left of 9, or 15 samples: batches of 4 4 2 4 4 2
    clock = replace(CLOCK, late="partial")
    found = replace(clock, deadline=9.0).participation(0, 0, 10)
    assert (found.max_steps, found.compute, found.absent) == (4, 14 / 5, None)
    assert replace(clock, deadline=10.0).participation(0, 0, 10).max_steps is None
    assert replace(clock, deadline=6.8).participation(0, 0, 10).max_steps == 1
    none = replace(clock, deadline=6.79).participation(0, 0, 10)
    assert none.late
    assert none.absent == "late: needs 6.8 s for 1 of 6 steps, clock.deadline is 6.79 s"


@pytest.mark.parametrize(
    ("share", "steps"), [(0.0, 1), (0.1, 1), (0.5, 3), (0.51, 4), (0.99, None), (1.0, None)]
)
def test_a_share_of_the_work_is_rounded_up_to_steps(share, steps):
    assert replace(CLOCK, work=constant(share)).participation(0, 0, 10).max_steps == steps


def test_a_share_of_the_work_is_not_rounded_up_for_a_last_bit():
    clock = replace(CLOCK, work=constant(0.07), schedule=LocalSchedule(epochs=1, batch_size=1))
    assert 0.07 * 100 > 7
    assert clock.participation(0, 0, 100).max_steps == 7


# draws


def test_traits_are_drawn_once_for_a_client_and_work_in_every_round():
    law, work = parse("lognormal(100, 1)"), parse("uniform(0.2, 1)")
    clock = Clock(
        seed=7, distributions={"samples_per_second": law}, work=work, schedule=LocalSchedule(10, 1)
    )
    speeds = [clock.trait("samples_per_second", t, 3) for t in range(4)]
    rng = generator(7, "clock.samples_per_second", 3)
    assert speeds == [100 * math.exp(rng.standard_normal())] * 4
    assert clock.trait("samples_per_second", 0, 4) != speeds[0]
    steps = [clock.participation(t, 3, 10).max_steps for t in range(4)]
    drawn = [generator(7, "clock.work", t, 3).uniform(0.2, 1) for t in range(4)]
    assert steps == [math.ceil(100 * share) for share in drawn]
    assert len(set(steps)) > 1
    other = replace(clock, seed=8)
    assert other.trait("samples_per_second", 0, 3) != speeds[0]


def test_availability_is_the_share_of_rounds_in_which_a_client_answers():
    clock = Clock(distributions={"availability": constant(0.3)})
    there = [clock.participation(t, 5, 10).absent is None for t in range(2000)]
    assert np.mean(there) == pytest.approx(0.3, abs=0.04)
    absent = clock.participation(there.index(False), 5, 10)
    assert absent.absent == "not available (clock.availability 0.3)"
    assert not absent.late
    for chance, answers in ((0.0, False), (1.0, True)):
        clock = Clock(distributions={"availability": constant(chance)})
        assert all((clock.participation(t, 5, 10).absent is None) is answers for t in range(50))


def test_the_newest_row_of_a_trace_counts():
    clock = replace(
        CLOCK, distributions={}, trace={"samples_per_second": {0: Series((0, 2), (5.0, 10.0))}}
    )
    assert clock.timed
    assert [clock.participation(t, 0, 10).compute for t in range(4)] == [4.0, 4.0, 2.0, 2.0]


def test_bytes_on_the_way():
    arrays = [np.zeros((2, 3)), np.zeros(5, np.float32), np.zeros(7, np.float16)]
    assert wire_bytes(arrays) == 4 * (6 + 5 + 7)
    assert wire_bytes([np.zeros(3, np.int64), np.zeros(3, np.int8), np.zeros(3, bool)]) == 30
    assert wire_bytes([]) == 0
