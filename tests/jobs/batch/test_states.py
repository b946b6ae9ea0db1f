"""Where the rows of a batch are, and what becomes of all of them at once."""

from dataclasses import asdict

import pytest

from jobs.batch.record import BATCH_KEY, Batch
from jobs.batch.states import LATEST_MS, cancel_rows, read_statuses, retry_rows
from jobs.client import Client
from jobs.lease import LEASES_KEY
from tests.jobs.batch.shots import shot, shots, waiting
from tests.jobs.leasing import FAILED, FINISHED, RESULT


def test_a_row_is_where_its_job_is(redis, record_rows, take):
    rows = record_rows(shots(*"abcdefgh"))
    take(rows[0]).finish(FINISHED, RESULT)
    take(rows[1]).fail(FAILED, "refused")
    for _ in range(3):
        take(rows[2]).hand_back("fatal", "rank 1 died")
    Client(redis).job(rows[3].job_id).cancel()
    take(rows[4])
    redis.delete(f"rq:job:{rows[6].job_id}")
    rows[7] = rows[7].model_copy(update={"job_id": ""})
    statuses = read_statuses(redis, rows)
    assert [status.state for status in statuses] == [
        *("finished", "failed", "dead", "canceled", "running", "queued", "unknown", "not_queued")
    ]
    assert [status.times.attempts for status in statuses] == [1, 1, 3, 0, 1, 0, 0, 0]
    assert [status.times.claimed_at is not None for status in statuses] == [False] * 4 + [True] + [False] * 3


def test_many_rows_are_asked_for_in_their_order(redis, record_rows, take, monkeypatch):
    monkeypatch.setattr("jobs.batch.states.ROWS_A_CALL", 2)
    rows = record_rows(shots(*"abcde"))
    take(rows[4])
    assert [status.row for status in read_statuses(redis, rows)] == rows
    assert [status.state for status in read_statuses(redis, rows)] == ["queued"] * 4 + ["running"]
    assert asdict(cancel_rows(redis, read_statuses(redis, rows))) == {"canceled": 4, "stopping": 1}
    assert read_statuses(redis, []) == []


def test_times_are_the_servers_and_lost_attempts_count(redis, record_rows, take):
    [row] = record_rows(shots("a kite"))
    take(row).hand_back("fatal", "rank 1 died")
    redis.hset(f"rq:job:{row.job_id}", "h3_busy_ms", "90000")
    take(row)
    [status] = read_statuses(redis, [row])
    assert status.times.busy_s(status.times.claimed_at + 10) == 100
    assert status.times.queued_at <= status.times.claimed_at


def test_a_machine_that_is_gone_works_no_longer_than_its_lease(redis, record_rows, take):
    [row] = record_rows(shots("a kite"))
    take(row)
    claimed_ms = int(redis.hget(f"rq:job:{row.job_id}", "h3_claimed_ms"))
    redis.zadd(LEASES_KEY, {row.job_id: claimed_ms + 60_000})
    [status] = read_statuses(redis, [row])
    assert status.state == "running"
    assert status.times.busy_s(claimed_ms / 1000 + 8 * 3600) == pytest.approx(60)


def test_what_rq_tools_do_to_a_job_does_not_hide_where_it_is(redis, record_rows, take):
    canceled, requeued = record_rows(shots("a", "b"))
    take(canceled)
    redis.hset(f"rq:job:{canceled.job_id}", "status", "canceled")  # its attempt runs on, up to its next beat
    take(requeued).fail(FAILED, "refused")
    redis.hset(f"rq:job:{requeued.job_id}", "status", "queued")
    assert [status.state for status in read_statuses(redis, [canceled, requeued])] == ["running", "queued"]


@pytest.mark.parametrize("text", ["nan", "-1", "1e9", "9" * 16, "9" * 15, str(LATEST_MS + 1), ""])
def test_a_number_that_is_none_is_not_believed(redis, record_rows, text):
    [row] = record_rows(shots("a kite"))
    redis.hset(f"rq:job:{row.job_id}", mapping={"h3_busy_ms": text, "h3_queued_ms": text})
    [status] = read_statuses(redis, [row])
    assert (status.times.ended_busy_s, status.times.queued_at) == (0, None)


# --- retry and cancel


def test_rows_without_a_result_are_retried_before_what_waits_and_in_their_order(redis, record_rows, take):
    rows = record_rows(shots(*"abcd"))
    take(rows[1]).fail(FAILED, "refused")
    for _ in range(3):
        take(rows[2]).hand_back("fatal", "rank 1 died")
    assert asdict(retry_rows(redis, read_statuses(redis, rows))) == {"queued": 2, "late": 0}
    assert waiting(redis) == [rows[index].job_id for index in (1, 2, 0, 3)]
    assert asdict(retry_rows(redis, read_statuses(redis, rows))) == {"queued": 0, "late": 0}


def test_rows_whose_deadline_has_passed_are_not_retried(redis, record_rows, take):
    """It counts from the submit: whoever took them would give them up at once."""
    late, in_time = rows = record_rows([shot("a", deadline_s=60.0), shot("b", line=3, deadline_s=60.0)])
    for row in rows:
        take(row).fail(FAILED, "refused")
    queued_ms = int(redis.hget(f"rq:job:{late.job_id}", "h3_queued_ms"))
    redis.hset(f"rq:job:{late.job_id}", "h3_queued_ms", queued_ms - 60_000)
    assert asdict(retry_rows(redis, read_statuses(redis, rows))) == {"queued": 1, "late": 1}
    assert waiting(redis) == [in_time.job_id]


def test_all_that_is_left_is_canceled_and_what_has_ended_is_let_be(redis, leases, record_rows, take):
    rows = record_rows(shots(*"abcd"))
    take(rows[0]).finish(FINISHED, RESULT)
    running = take(rows[1])
    done = cancel_rows(redis, read_statuses(redis, rows))
    assert asdict(done) == {"canceled": 2, "stopping": 1}
    assert leases.read_orders([], running).cancel
    assert waiting(redis) == []
    assert asdict(cancel_rows(redis, read_statuses(redis, rows))) == {"canceled": 0, "stopping": 1}


def test_the_last_row_is_canceled_first(redis, record_rows):
    """Else a worker would begin what is canceled next."""
    rows = record_rows(shots(*"abc"))
    for row in rows:
        redis.hset(f"rq:job:{row.job_id}", "h3_webhook", "https://host/ended")
    cancel_rows(redis, read_statuses(redis, rows))
    ended = [told[b"job"].decode() for _, told in redis.xrange("h3:webhooks")]
    assert ended == [row.job_id for row in reversed(rows)]


def test_a_row_that_is_not_queued_is_neither_retried_nor_canceled(redis, record_rows):
    [row] = record_rows(shots("a"))
    redis.delete(*redis.keys("h3:key:*"))
    redis.hset(BATCH_KEY.format(name="night-01"), "name x", row.model_copy(update={"job_id": ""}).model_dump_json())
    statuses = read_statuses(redis, Batch(redis, "night-01").rows())
    assert retry_rows(redis, statuses).queued == 0
    assert cancel_rows(redis, statuses).canceled == 1
