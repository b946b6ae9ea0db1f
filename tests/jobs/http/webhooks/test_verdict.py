"""What becomes of a notice after each try."""

from datetime import UTC, datetime

import pytest

from jobs.http.webhooks.settings import BACKOFF_S
from jobs.http.webhooks.verdict import (
    Again,
    Answered,
    Delivered,
    GivenUp,
    Refused,
    Unanswered,
    judge,
    read_retry_after,
)

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize("status", [200, 204, 299])
def test_any_status_of_success_is_a_delivery(status):
    assert judge(Answered(status), 3, BACKOFF_S) == Delivered(status)


@pytest.mark.parametrize("outcome", [Answered(500), Answered(302), Answered(404), Unanswered("no answer in 10 s")])
def test_what_is_not_delivered_is_tried_for_hours_then_given_up(outcome):
    *again, last = [judge(outcome, failures, BACKOFF_S) for failures in range(len(BACKOFF_S) + 1)]
    assert again == [Again(after_s, str(outcome)) for after_s in BACKOFF_S]
    assert last == GivenUp(f"{outcome}, 7 tries")


def test_a_receiver_that_wants_no_more_gets_no_more():
    assert isinstance(judge(Answered(410), 0, BACKOFF_S), GivenUp)


def test_what_may_not_be_called_is_given_up():
    assert judge(Refused("private"), 0, BACKOFF_S) == GivenUp("private")


@pytest.mark.parametrize(("asked_s", "after_s"), [(0.0, 5.0), (90.0, 90.0), (1e9, 3600.0)])
def test_a_receiver_may_put_a_notice_off_for_an_hour(asked_s, after_s):
    assert judge(Answered(503, asked_s), 0, BACKOFF_S) == Again(after_s, "status 503")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        ("Fri, 01 May 2026 12:01:00 GMT", 60),
        ("Fri, 01 May 2026 12:01:00", 60),
        ("Fri, 01 May 2026 11:00:00 GMT", 0),
        ("", 0),
        ("-5", 0),
        ("soon", 0),
        ("²", 0),
        ("9" * 400, 3600),
    ],
)
def test_retry_after_is_read_in_both_its_forms(header, seconds):
    assert read_retry_after(header, NOW) == seconds
