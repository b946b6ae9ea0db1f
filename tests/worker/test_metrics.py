"""What a worker counts, with a real store and a real Redis, and what it shows of itself and of its farm."""

import threading
from importlib.metadata import version

import pytest
from prometheus_client import CollectorRegistry

from jobs.client import Client
from jobs.errors import StoreUnavailable
from jobs.lease import DEAD_KEY, PAUSED_KEY, QUARANTINE_KEY, Place, Reaped
from jobs.queues import QueueName
from jobs.workers import WorkerState, pause_queue, write_worker
from tests.worker.attempts import REQUEST, checkpoint, publish, render
from tests.worker.views import RECORD, WELL, view
from worker import metrics
from worker.errors import Interrupted, OutOfMemory
from worker.farm import Farm, read_farm
from worker.gauges import Gauges
from worker.life import Count, Life


@pytest.fixture
def risen():
    """By how much a count is more than when it was last asked for."""
    seen = {}

    def ask(name, **labels):
        key, now = (name, *labels.items()), metrics.REGISTRY.get_sample_value(name, labels)
        before, seen[key] = seen.get(key, now), now
        return now - before

    return ask


# --- what is counted


def test_whatever_may_cost_an_attempt_is_shown_from_the_start():
    """A rate needs something to rise from."""
    [family] = metrics.ATTEMPTS_LOST.collect()
    assert {(sample.labels["charge"], sample.labels["error"]) for sample in family.samples} == {
        ("fatal", "AttemptLost"),
        ("fatal", "Stalled"),
        ("fatal", "OutOfMemory"),
        ("drained", "Interrupted"),
        ("drained", "PutBack"),
        ("drained", "NumberUsed"),
        ("interrupted", "SpoolFull"),
        ("none", "Superseded"),
    }


@pytest.mark.parametrize("place", Place)
@pytest.mark.parametrize("error", [OutOfMemory("x"), Interrupted("x")], ids=lambda error: type(error).__name__)
def test_a_lost_attempt_counts_by_error_and_charge_and_its_job_if_that_has_ended(risen, error, place):
    def look():
        lost = risen("h3_attempts_lost_total", charge=error.charge, error=type(error).__name__)
        return lost, *(risen("h3_jobs_total", outcome=outcome, cause="") for outcome in ("dead", "canceled"))

    look()
    metrics.count_loss(error, place)
    assert look() == (1, place is Place.DEAD, place is Place.CANCELED)


def test_jobs_that_are_taken_from_silent_workers_count_by_where_they_are_now(risen):
    def look():
        return [risen("h3_jobs_taken_back_total", place=place) for place in ("queued", "dead")]

    look()
    metrics.count_taken_back(Reaped(0.0, ("a", "b"), ("c",)))
    assert look() == [2, 1]


def test_what_is_rendered_and_uploaded_counts(risen, store, job):
    def look():
        names = ("step_seconds_count", "segments_total", "upload_seconds_count", "uploaded_bytes_total")
        return [risen(f"h3_{name}") for name in names]

    look()
    render(job.begin(store), job)
    steps, segments, uploads, uploaded_bytes = look()
    puts = [name for method, name in store.calls if method == "put"]
    assert (steps, segments, uploads) == (1, 2, len(puts))
    kept = [store.stat(f"{job.id}/{name}").size_bytes for name in set(puts)]
    assert uploaded_bytes >= sum(kept) > 0  # the playlist was written more than once


def test_each_time_that_the_store_is_asked_again_counts(risen, store, job):
    failures = iter(2 * [StoreUnavailable("away")])

    def fail_twice(method, name):
        if name.endswith("init.mp4") and (failure := next(failures, None)):
            raise failure

    store.before = fail_twice
    risen("h3_store_retries_total")
    render(job.begin(store), job)
    assert risen("h3_store_retries_total") == 2


def test_what_waits_for_its_upload_is_shown_and_what_is_left_out_counts(risen, store, job):
    may_go = threading.Event()
    store.before = lambda method, name: method == "put" and may_go.wait(30)
    risen("h3_uploads_left_out_total")
    outputs = job.begin(store, spool_bytes=25)
    publish(outputs, *(checkpoint(job, step) for step in (3, 4, 5)))  # of 6 bytes each
    waiting = metrics.REGISTRY.get_sample_value("h3_spool_bytes")
    publish(outputs, checkpoint(job, 6), checkpoint(job, 7))
    outputs.close()
    may_go.set()
    assert waiting == 18
    assert risen("h3_uploads_left_out_total") == 1
    assert metrics.REGISTRY.get_sample_value("h3_spool_bytes") == 0


# --- over a restart


def test_counts_outlive_a_restart(risen):
    def look():
        return risen("h3_segments_total"), risen("h3_jobs_total", outcome="failed", cause="store")

    metrics.SEGMENTS.inc(3)
    metrics.count_end("failed", "store")
    look()
    metrics.take_up(Life.model_validate_json(metrics.pass_on(Life()).model_dump_json()))  # here, all doubles by it
    segments, failures = look()
    assert (segments, failures) == (
        metrics.REGISTRY.get_sample_value("h3_segments_total") / 2,
        metrics.REGISTRY.get_sample_value("h3_jobs_total", {"outcome": "failed", "cause": "store"}) / 2,
    )


@pytest.mark.parametrize(
    "strange",
    [
        Count(metric="h3_nothing", labels={}, value=1),
        Count(metric="h3_jobs", labels={"color": "red"}, value=1),
        Count(metric="h3_jobs", labels={}, value=1),
        Count(metric="h3_segments", labels={"color": "red"}, value=1),
        Count(metric="h3_segments", labels={}, value=-1),
    ],
    ids=str,
)
def test_counts_of_another_version_are_left_out(risen, strange):
    risen("h3_segments_total")
    metrics.take_up(Life(counts=(strange, Count(metric="h3_segments", labels={}, value=2))))
    assert risen("h3_segments_total") == 2


# --- what is shown


def shown(seen):
    """Asks for what a scrape gets."""
    registry = CollectorRegistry()
    registry.register(Gauges(lambda: seen))
    return lambda name, **labels: registry.get_sample_value(f"h3_{name}", labels)


def test_a_worker_shows_its_state_its_fleet_and_its_memory():
    ask = shown(WELL)
    states = {state: ask("worker_state", state=state) for state in WorkerState}
    assert states.pop("lost") is None  # that is for others to say
    assert states == {state: state == "ready" for state in states}
    assert (ask("worker_healthy"), ask("fleet_up"), ask("fleet_failed_starts")) == (1, 1, 0)
    assert (ask("worker_restarts_total"), ask("redis_unanswered_seconds")) == (2, 1)
    assert ask("rank_resident_bytes", rank="0") == 3 << 30
    assert (ask("gpu_used_bytes", gpu="0"), ask("gpu_total_bytes", gpu="0")) == (40 << 30, 140 << 30)
    versions = {"version": version("h3render"), "torch": version("torch")}
    assert ask("build_info", model="abc", **versions) == 1


def test_a_worker_that_takes_no_job_shows_why():
    assert shown(view(reason="paused"))("worker_held", reason="paused") == 1
    assert shown(WELL)("worker_held", reason="") is None


def test_a_worker_that_is_not_well_shows_it():
    ask = shown(view(fleet="poisoned"))
    assert (ask("worker_healthy"), ask("fleet_up")) == (0, 0)


def test_a_worker_shows_the_largest_size_that_it_takes_if_that_is_known():
    unknown = RECORD.offer.model_copy(update={"most_pixels": None})
    assert shown(WELL)("largest_render_pixels") == 1 << 30
    assert shown(view(offer=unknown))("largest_render_pixels") is None


def test_a_worker_sees_its_queues_the_dead_jobs_and_the_others(redis):
    for queue in ("high", "default", "default"):
        Client(redis).submit(REQUEST, queue=queue)
    pause_queue(redis, "high")
    redis.zadd(DEAD_KEY, {"dead": 1})
    redis.hset(QUARANTINE_KEY, "rubbish", "no job")
    sick = RECORD.model_copy(update={"id": "sick", "state": WorkerState.UNHEALTHY})
    for record in (sick, RECORD):  # the second has been silent since 1970
        write_worker(redis, record)
    ask = shown(view(farm=read_farm(redis, list(QueueName))))
    assert [ask("queue_jobs", queue=queue) for queue in QueueName] == [1, 2, 0]
    assert [ask("queue_paused", queue=queue) for queue in QueueName] == [1, 0, 0]
    assert (ask("dead_jobs"), ask("quarantined_jobs")) == (1, 1)
    workers = {state: ask("workers", state=state) for state in WorkerState}
    assert workers == {state: state in ("unhealthy", "lost") for state in WorkerState}


def test_a_worker_shows_how_long_the_first_job_of_a_queue_has_waited(redis):
    job = Client(redis).submit(REQUEST)
    queued_ms = int(redis.hget(f"rq:job:{job.id}", "h3_queued_ms"))
    redis.hset(f"rq:job:{job.id}", "h3_queued_ms", queued_ms - 90_000)
    ask = shown(view(farm=read_farm(redis, list(QueueName))))
    assert 90 <= ask("queue_head_wait_seconds", queue="default") < 120
    assert ask("queue_head_wait_seconds", queue="high") == 0


def test_a_key_of_a_wrong_type_hides_the_farm_and_harms_nothing(redis):
    redis.set(PAUSED_KEY, "no set")
    assert read_farm(redis, list(QueueName)) == Farm()
