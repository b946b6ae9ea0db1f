"""A batch that is watched: what each look tells, and what it asks Redis for."""

import pytest

from jobs.batch.progress import Counts
from jobs.batch.record import Batch
from jobs.batch.states import read_statuses, retry_rows
from jobs.batch.watcher import FAILURES_SHOWN, LOOKED_AT, BatchWatcher
from jobs.events import Failed
from jobs.offers import Offer
from jobs.request import GenerateRequest, Mode
from jobs.workers import JobRecord, WorkerState, pause_queue, write_worker
from tests.jobs.batch.shots import QUEUE, shot, shots
from tests.jobs.leasing import FAILED, FINISHED, RESULT
from tests.jobs.records import record


@pytest.fixture
def watch(redis):
    return lambda price=None: BatchWatcher(redis, Batch(redis, "night-01"), price)


def count_calls(redis, command):
    return redis.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


def test_a_look_tells_counts_steps_and_failures(redis, record_rows, take, watch):
    rows = record_rows([shot("a", "kite"), shot("b", "crane"), shot("c", "owl"), shot("d", "heron")])
    take(rows[0]).finish(FINISHED, RESULT)
    take(rows[1]).fail(FAILED, "the prompt is refused")
    take(rows[2])
    job = JobRecord(job_id=rows[2].job_id, attempt=1, queue=QUEUE, phase="denoise", step=7, steps=50)
    write_worker(redis, record(redis, state=WorkerState.BUSY, job=job))
    snapshot = watch(4.0).look()
    assert snapshot.progress.counts == Counts(finished=1, failed=1, running=1, queued=1)
    assert [(row.label, row.worker, row.phase, row.step) for row in snapshot.running] == [
        ("owl", "gpu-1", "denoise", 7)
    ]
    assert [(row.label, row.reason) for row in snapshot.failures] == [("crane", "the prompt is refused")]
    assert snapshot.waiting_for == ""


def test_what_has_finished_is_not_asked_for_again(redis, record_rows, take, watch):
    rows = record_rows(shots("a", "b"))
    watcher = watch()
    take(rows[0]).finish(FINISHED, RESULT)
    assert watcher.look().progress.counts == Counts(finished=1, queued=1)
    redis.delete(f"rq:job:{rows[0].job_id}")
    take(rows[1]).finish(FINISHED, RESULT)
    assert watcher.look().progress.counts == Counts(finished=2)


def test_a_row_that_is_retried_meanwhile_is_seen_and_fails_for_its_new_reason(redis, record_rows, take, watch):
    rows = record_rows(shots("a", "b"))
    take(rows[0]).fail(FAILED, "x")
    watcher = watch()
    assert watcher.look().progress.counts == Counts(failed=1, queued=1)
    retry_rows(redis, read_statuses(redis, rows))
    assert watcher.look().progress.counts == Counts(queued=2)
    take(rows[0]).fail(Failed(attempt=2, reason="another"), "x")
    assert [failure.reason for failure in watcher.look().failures] == ["another"]


def test_of_two_failures_between_two_looks_the_last_one_is_told(redis, record_rows, take, watch):
    [row] = record_rows(shots("a"))
    take(row).fail(FAILED, "x")
    redis.hset(f"rq:job:{row.job_id}", "h3_ended_ms", 1_000)
    watcher = watch()
    watcher.look()
    retry_rows(redis, read_statuses(redis, [row]))
    take(row).fail(Failed(attempt=2, reason="another"), "x")
    assert [failure.reason for failure in watcher.look().failures] == ["another"]


def test_the_latest_failures_are_shown_the_last_one_first(redis, record_rows, take, watch):
    rows = record_rows(shots(*"abcdefg"))
    for n, row in enumerate(rows):
        take(row).fail(Failed(attempt=1, reason=f"reason {n}"), "x")
        redis.hset(f"rq:job:{row.job_id}", "h3_ended_ms", 1_000 * n)
    reasons = [failure.reason for failure in watch().look().failures]
    assert reasons == ["reason 6", "reason 5", "reason 4", "reason 3", "reason 2"]
    assert len(reasons) == FAILURES_SHOWN


def test_rows_that_are_added_later_are_watched_too(record_rows, take, watch):
    [kite] = record_rows(shots("a kite"))
    watcher = watch()
    take(kite).finish(FINISHED, RESULT)
    assert watcher.look().progress.counts == Counts(finished=1)
    record_rows(shots("a kite", "a crane"))
    assert watcher.look().progress.counts == Counts(finished=1, queued=1)


def test_rows_whose_submit_goes_on_are_seen_when_they_are_queued(redis, client, queue, monkeypatch, watch):
    with monkeypatch.context() as broken:
        broken.setattr(type(client), "submit_many", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            queue(shots("a", "b"))
    watcher = watch()
    assert watcher.look().progress.counts == Counts(not_queued=2)
    queue(shots("a", "b"))
    assert watcher.look().progress.counts == Counts(queued=2)


def test_a_watch_ends_when_all_rows_have(record_rows, take, watch, monkeypatch):
    [row] = record_rows(shots("a"))
    rests = []

    def finish(rest_s):
        rests.append(rest_s)
        take(row).finish(FINISHED, RESULT)

    monkeypatch.setattr("time.sleep", finish)
    seen = [snapshot.progress.counts.left for snapshot in watch().follow()]
    assert (seen, rests) == ([1, 0], [1.0])


# --- what waiting rows wait for


def test_rows_that_no_worker_can_take_are_counted_by_what_they_wait_for(redis, record_rows, watch):
    record_rows([shot("a", mode="tensor"), shot("b", mode="tensor"), shot("c")])
    watcher = watch()
    assert watcher.look().waiting_for == "3 rows waiting: no worker is alive"
    write_worker(redis, record(redis, offer=Offer(modes=(Mode.ULYSSES,))))
    assert watcher.look().waiting_for == "2 rows waiting: no worker with mode tensor"
    pause_queue(redis, QUEUE)
    assert watcher.look().waiting_for == "3 rows waiting: queue batch is paused"


def test_a_look_learns_of_each_row_once_what_it_needs_and_of_all_queues_at_once_which_are_paused(
    redis, record_rows, watch
):
    """However different what is rendered is."""
    frames = [f"inputs/{n}.png" for n in range(3)]
    record_rows([shot(f"{n}", seed=n, first_frame=key, deadline_s=60.0 + n) for n, key in enumerate(frames)])
    watcher = watch()
    redis.config_resetstat()
    watcher.look()
    assert (count_calls(redis, "xrange"), count_calls(redis, "smembers")) == (3, 1)
    watcher.look()
    assert (count_calls(redis, "xrange"), count_calls(redis, "smembers")) == (3, 2)
    assert count_calls(redis, "sismember") == 0
    assert len(watcher._kinds) == 1


def test_all_that_an_offer_looks_at_is_part_of_what_rows_need():
    class Seen:
        def __init__(self):
            self.fields = set()

        def __getattr__(self, name):
            self.fields.add(name)
            return getattr(request, name)

    request, seen = GenerateRequest(prompt="a", mode="tensor", precision="bf16").resolve(), Seen()
    assert Offer(most_pixels=10**12).missing(seen, QUEUE) == ""
    assert Offer(most_pixels=1).missing(seen, QUEUE).startswith("memory for")
    assert seen.fields == set(LOOKED_AT)
