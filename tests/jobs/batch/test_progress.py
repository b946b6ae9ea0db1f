"""How far a batch is, as arithmetic over times."""

from dataclasses import asdict, replace

import pytest

from jobs.batch.progress import (
    Counts,
    Progress,
    RowState,
    RowTimes,
    Span,
    find_cost,
    measure,
    merge,
    rate_per_hour,
    time_left_s,
)
from jobs.in_words import say_duration

HOUR = 3600.0
FINISHED_ROW = RowTimes(RowState.FINISHED, attempts=1, ended_busy_s=600, queued_at=0, ended_at=1000)
RUNNING_ROW = RowTimes(RowState.RUNNING, attempts=2, ended_busy_s=100, claimed_at=900, leased_until=1400, queued_at=0)
QUEUED_ROW = RowTimes(RowState.QUEUED, queued_at=0)


def test_every_state_is_counted_once():
    counts = Counts.of(state for state in RowState for _ in range(2))
    assert list(asdict(counts)) == list(RowState)
    assert asdict(counts) == dict.fromkeys(asdict(counts), 2)
    assert (counts.rows, counts.left, counts.without_result) == (16, 4, 10)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (Counts(), "0 rows: 0 finished"),
        (Counts(finished=1), "1 row: 1 finished"),
        (Counts(finished=1, dead=2, queued=1200), "1,203 rows: 1 finished, 2 dead, 1,200 queued"),
        (Counts(not_queued=2), "2 rows: 0 finished, 2 not queued"),
    ],
)
def test_counts_in_words(counts, words):
    assert counts.describe() == words


# --- when machines worked


@pytest.mark.parametrize(
    ("row", "span"),
    [
        (FINISHED_ROW, Span(400, 1000)),
        (RUNNING_ROW, Span(800, 1300)),
        (replace(RUNNING_ROW, leased_until=1000), Span(800, 1000)),  # its worker is dead
        (replace(RUNNING_ROW, leased_until=None), Span(800, 1300)),
        (QUEUED_ROW, None),
        (replace(QUEUED_ROW, attempts=1, ended_busy_s=10), None),  # when is not recorded
        (RowTimes(RowState.CANCELED, ended_at=1000), None),
    ],
)
def test_a_row_was_worked_on_up_to_its_end_or_until_now(row, span):
    assert row.find_span(1300) == span


@pytest.mark.parametrize(
    ("row", "busy_s"),
    [(FINISHED_ROW, 600), (RUNNING_ROW, 500), (replace(RUNNING_ROW, leased_until=800), 100), (QUEUED_ROW, 0)],
)
def test_a_row_is_busy_in_all_its_attempts_and_no_longer_than_its_lease(row, busy_s):
    assert row.busy_s(1300) == busy_s


def test_times_of_work_are_merged():
    spans = [Span(5, 6), Span(0, 2), Span(1, 3), Span(3, 4), Span(1, 2)]
    assert merge(spans) == [Span(0, 4), Span(5, 6)]
    assert merge([]) == []


# --- the rate


NIGHT = Span(0, 4 * HOUR)


@pytest.mark.parametrize(
    ("worked", "finished_at", "rate"),
    [
        ([], [900], None),
        ([NIGHT], [], None),
        ([Span(50, 50)], [50], None),
        ([Span(0, 1800)], [900], 2),  # half an hour since the beginning
        ([NIGHT], [900], 0.25),
        ([NIGHT], [0.5 * HOUR * n for n in range(1, 9)], 2),  # five ends reach further back than an hour
        ([Span(0, 2 * HOUR)], [HOUR + 60 * n for n in range(1, 31)], 30),  # of the last hour only
        ([Span(0, 20 * HOUR)], [20 * HOUR - 600 * n for n in range(3)], 0.15),
        ([Span(0, HOUR)], [*range(1, 8)], 7),
        ([Span(0, 10 * HOUR)], [*range(1, 8)], 5 * HOUR / (10 * HOUR - 2)),  # it stands still
        # An idle night is no part of the last hour: half of that was before it.
        ([Span(0, HOUR), Span(10 * HOUR, 10.5 * HOUR)], [100 * n for n in range(1, 37)], 18),
        ([Span(0, HOUR), Span(10 * HOUR, 12 * HOUR)], [10.9 * HOUR + n for n in range(1, 11)], 5 / (1.1 - 5 / HOUR)),
    ],
)
def test_the_rate_is_that_of_the_last_hour_of_work(worked, finished_at, rate):
    assert rate_per_hour(worked, finished_at) == (rate if rate is None else pytest.approx(rate))


def finish_rows(count, workers, busy_s):
    """One after the other on each worker."""
    return [
        RowTimes(RowState.FINISHED, 1, busy_s, queued_at=0, ended_at=(n // workers + 1) * busy_s) for n in range(count)
    ]


@pytest.mark.parametrize("later_s", [0, 600, HOUR, 8 * HOUR, 7 * 24 * HOUR])
def test_what_is_told_of_a_batch_that_has_ended_stays_the_same(later_s):
    rows = finish_rows(300, 2, 180.0)
    progress = measure(rows, rows[-1].ended_at + later_s)
    assert (progress.rate_per_hour, progress.left_s) == (pytest.approx(40), 0)


def test_rows_that_are_retried_in_the_morning_are_not_slower_for_the_night_in_between():
    rows = finish_rows(300, 2, 180.0)
    now = rows[-1].ended_at + 8 * HOUR
    retried = [
        RowTimes(RowState.RUNNING, 2, 10, claimed_at=now - 60, leased_until=now + 60),
        RowTimes(RowState.QUEUED, 1, 10),
    ]
    progress = measure(rows[:-2] + retried, now)
    assert progress.rate_per_hour == pytest.approx(40, abs=2)
    assert progress.left_s == 2 * 180 - 70


# --- the time left


@pytest.mark.parametrize(
    ("left", "running", "finished", "seconds"),
    [
        (0, [], [], 0),
        (3, [], [600.0], None),  # nothing runs
        (3, [0.0], [], None),  # nothing has finished
        (3, [0.0], [600.0], 1800),
        (3, [0.0], [500.0, 700.0], 1800),
        (3, [200.0], [600.0], 1600),
        (3, [0.0, 200.0], [600.0], 800),
        (1, [900.0], [600.0], 0),  # it takes longer than they did
        (1, [0.0], [9000.0] + [600.0] * 20, 600),  # the latest tell
    ],
)
def test_the_rest_takes_what_the_latest_rows_took_on_as_many_machines_as_run_now(left, running, finished, seconds):
    assert time_left_s(left, running, finished) == seconds


@pytest.mark.parametrize(("busy_s", "price", "cost"), [(1800, 4.0, 2.0), (1800, None, None), (0, 4.0, 0.0)])
def test_the_cost_is_of_busy_hours(busy_s, price, cost):
    assert find_cost(busy_s, price) == cost


def test_a_batch_is_measured_as_a_whole():
    progress = measure([FINISHED_ROW, RUNNING_ROW, QUEUED_ROW], now=1300, price_per_hour=36)
    counts = Counts(finished=1, running=1, queued=1)
    assert progress == Progress(counts, 1100, pytest.approx(4), 2 * 600 - 500, 11)
    assert measure([], 0) == Progress(Counts(), 0, None, 0.0, None)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_durations_in_two_units(seconds, words):
    assert say_duration(seconds) == words
