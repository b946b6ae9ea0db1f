"""How a worker leaves: what its attempt ends with, by when."""

import pytest

from worker.departure import RESERVE_S, Departure
from worker.errors import Interrupted, PutBack

GRACE_S = 25.0
ASKED_AT = 1000.0
LEFT_S = GRACE_S - RESERVE_S  # for a step


@pytest.fixture
def departure():
    departure = Departure(GRACE_S)
    departure.ask(ASKED_AT)
    return departure


def verdict(departure, step_left_s, after_s=0.0):
    return type(departure.verdict(step_left_s, ASKED_AT + after_s))


def test_nothing_ends_before_the_worker_is_told_to_leave():
    departure = Departure(GRACE_S)
    assert departure.verdict(1000.0, ASKED_AT) is None
    assert not departure.is_asked
    assert not departure.is_over(ASKED_AT)


def test_a_step_that_fits_the_grace_time_may_end(departure):
    assert verdict(departure, LEFT_S - 0.1) is PutBack
    assert verdict(departure, 0.0, after_s=LEFT_S - 0.1) is PutBack


def test_a_step_that_does_not_fit_is_given_up_at_once(departure):
    assert verdict(departure, LEFT_S + 0.1) is Interrupted


def test_a_step_that_takes_longer_than_it_should_is_given_up_when_the_time_is_used_up(departure):
    """The reserve is for what follows: the last checkpoint's upload, the job's return, the fleet's end."""
    assert verdict(departure, 0.0, after_s=LEFT_S) is Interrupted


@pytest.mark.parametrize(("after_s", "expected"), [(0.0, PutBack), (LEFT_S - 0.1, PutBack), (LEFT_S, Interrupted)])
def test_a_step_that_nobody_knows_has_all_the_time_there_is(departure, after_s, expected):
    assert verdict(departure, None, after_s) is expected


def test_a_second_request_ends_everything_at_once(departure):
    departure.ask(ASKED_AT + 1)
    assert verdict(departure, 0.1, after_s=1) is Interrupted
    assert departure.is_over(ASKED_AT + 1)


def test_the_time_runs_from_the_first_request(departure):
    assert not departure.is_over(ASKED_AT + GRACE_S)
    assert departure.is_over(ASKED_AT + GRACE_S + 0.1)


def test_of_a_short_grace_time_a_share_is_kept_in_reserve():
    departure = Departure(2.0)
    departure.ask(ASKED_AT)
    assert verdict(departure, 1.1) is PutBack
    assert verdict(departure, 1.3) is Interrupted
