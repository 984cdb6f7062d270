"""What each failure of Ray means, and how long work may take."""

from __future__ import annotations

import math

import pytest
from ray import exceptions

from fedsim.core.errors import DivergedError, WorkerError
from fedsim.engine.ray.dispatch import Timeout
from fedsim.engine.ray.faults import FINAL, LOST, failure, fault_of, one_line


@pytest.mark.parametrize(("kind", "words"), LOST)
def test_lost_work_is_done_again(kind, words):
    fault = fault_of(made(kind))
    assert (fault.lost, fault.alive, fault.raised) == (True, False, None)
    assert fault.error.startswith(words)


@pytest.mark.parametrize(("kind", "words"), FINAL)
def test_what_would_come_again_ends_the_run(kind, words):
    fault = fault_of(made(kind))
    assert not fault.lost
    assert fault.error.startswith(words)


def test_a_failure_nobody_knows_is_lost_work():
    assert fault_of(exceptions.RaySystemError("client", "what")).lost


def test_an_exception_in_a_client_is_final_and_keeps_its_words():
    fault = fault_of(exceptions.RayTaskError("train", "traceback", ValueError("bad")))
    assert (fault.error, fault.lost, fault.alive) == ("ValueError: bad", False, True)
    error = failure("round 2, client 3", fault)
    assert isinstance(error, WorkerError)
    assert str(error) == "round 2, client 3: ValueError: bad"


def test_what_fedsim_raised_in_a_client_passes_as_it_is():
    raised = DivergedError("round 1, client 2: ...")
    fault = fault_of(exceptions.RayTaskError("train", "traceback", raised))
    assert failure("round 1, client 2", fault) is raised


def test_a_lost_argument_is_sent_anew_to_the_same_actor():
    cause = made(exceptions.ObjectLostError)
    fault = fault_of(exceptions.RayTaskError("train", "traceback", cause))
    assert (fault.lost, fault.alive, fault.objects) == (True, True, True)


def test_an_actor_whose_class_cannot_be_made_is_final():
    died = exceptions.ActorDiedError(
        exceptions.RayTaskError("__init__", "traceback", ImportError("fedsim"), actor_id="ab")
    )
    assert fault_of(died).lost is False


def test_long_texts_become_one_short_line():
    text = one_line(ValueError("a\n" * 1000))
    assert "\n" not in text
    assert len(text) < 450
    assert text.endswith("...")


def made(kind):
    if issubclass(kind, exceptions.ObjectLostError):
        return kind("ab" * 14, None, "")
    if kind is exceptions.RayActorError:
        return exceptions.ActorDiedError()
    if kind is exceptions.ActorUnavailableError:
        return kind("gone", b"a" * 16)
    return kind("gone")


def test_a_timeout_without_a_limit_learns_from_whole_rounds():
    timeout = Timeout(None)
    assert timeout.seconds(100) == math.inf
    timeout.finished(10, 20.0)
    assert timeout.seconds(100) == math.inf, "a round's first client is no measure for the others"
    timeout.settled()
    assert timeout.seconds(100) == 10 * 100 * 2.0
    assert timeout.seconds(1) == 60.0, "never below a minute"


def test_a_timeout_with_a_limit():
    timeout = Timeout(5.0)
    timeout.finished(1, 1000.0)
    timeout.settled()
    assert timeout.seconds(10**6) == 5.0
