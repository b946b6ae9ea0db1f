"""The worker around its fleet, on a real Redis: what it writes down, takes, and does when it is told to stop.

Its fleet has one rank and no model.
"""

import inspect
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq import SimpleWorker, Worker
from rq.suspension import resume, suspend
from rq.worker_registration import register
from structlog.testing import capture_logs

from jobs.client import Client
from jobs.file_store import FileStore
from jobs.lease import BEATS_A_LEASE, LEASES_KEY, WAKE_CHANNEL, Leases
from jobs.offers import Offer
from jobs.queues import QueueName
from jobs.render_times import RenderClass, read_render_times
from jobs.request import GenerateRequest, ResolvedRequest
from jobs.result import Result, result_key
from jobs.store import open_store
from jobs.workers import WorkerState, read_workers
from tests.waiting import eventually
from tests.worker.calls import push
from tests.worker.outages import FAILURES
from tests.worker.runners import GO_ON, Deaf, Dying, Light, Waiting
from worker.attempt import Attempt
from worker.errors import Interrupted, Stalled, UploadFailed
from worker.life import Life
from worker.mgpu import MGPUController
from worker.outputs import OutputLimits, Outputs
from worker.rq_worker import RenderWorker
from worker.settings import WorkerSettings
from worker.stall import StallWatch
from worker.standing import Standing

OFFER = Offer(model_digest="abc", world_size=1, most_pixels=1 << 30)
REQUEST = {"prompt": "a red kite", "width": 64, "height": 64, "frames": 39, "steps": 2, "seed": 1}
LEASE_S = 6.0  # a beat a second
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def light_fleet():
    """For all tests that leave it healthy."""
    with new_fleet(Light) as controller:
        yield controller


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    """The file that lets `Waiting` and `Deaf` go on, whichever test has started them."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("gate") / "go-on"
        patch.setenv(GO_ON, str(path))
        yield path


@pytest.fixture(scope="module")
def waiting_fleet(gate):
    """Likewise."""
    with new_fleet(Waiting) as controller:
        yield controller


@contextmanager
def new_fleet(runner):
    controller = MGPUController(runner, num_gpus=1, backend="gloo", outputs="cpu")
    try:
        controller.start(timeout=DEADLINE_S, checkpoint="")
        yield controller
    finally:
        controller.shutdown(graceful_timeout=0)


@pytest.fixture
def new_worker(light_fleet, file_store_url, tmp_path):
    """Make workers, on a fleet that tests share, or one of their own if they name a runner."""
    with ExitStack() as stack:

        def make(url, runner=None, store=None, fleet=light_fleet, **settings):
            once = Retry(NoBackoff(), 0)  # the library's own retries would hide ours
            redis = stack.enter_context(Redis.from_url(url, retry=once))
            settings = {"lease_s": LEASE_S, "least_free_bytes": 0, "spool_dir": tmp_path, **settings}
            settings = WorkerSettings(store_url=file_store_url, **settings)
            fleet = stack.enter_context(new_fleet(runner)) if runner else fleet
            life, beat_s = Life(), settings.lease_s / BEATS_A_LEASE
            standing = Standing(settings.worker_name, life, OFFER, fleet, (), beat_s)
            store = store or open_store(file_store_url)
            worker = RenderWorker(redis, url, list(QueueName), fleet, store, settings, standing, life)
            stack.callback(lambda: worker.pubsub_thread and worker.pubsub_thread.stop())  # if it could not sign off
            return worker

        yield make


@pytest.fixture(autouse=True)
def signal_handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, lambda *_: None)  # a worker that ends by an error must not take pytest with it
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def go_on(gate):
    """Lets the runners `Waiting` and `Deaf` go on."""
    gate.unlink(missing_ok=True)
    return gate.touch


def serve(worker, act):
    """Serve in this thread, which is the one that gets signals, while `act` goes on in another; then stop."""
    has_ended = threading.Event()

    def begin():
        eventually(lambda: has_ended.is_set() or signal.getsignal(signal.SIGTERM) == worker.request_stop)
        if not has_ended.is_set():
            act()

    def stop(acting):
        tell_to_stop()
        if acting.exception():  # it may hang in a job
            eventually(lambda: has_ended.is_set() or worker.duty.is_leaving)
            tell_to_stop()

    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(begin)
        acting.add_done_callback(stop)
        try:
            worker.serve(burst=False)
        finally:
            has_ended.set()
        acting.result()


def tell_to_stop():
    os.kill(os.getpid(), signal.SIGTERM)


def read_offers(redis):
    """Of the workers that take jobs."""
    return [worker.offer for worker in read_workers(redis) if worker.state in (WorkerState.READY, WorkerState.BUSY)]


def submit(redis, queue=QueueName.DEFAULT):
    return Client(redis).submit(REQUEST, queue=queue)


def places(redis, job):
    """Where a job is: one queue, or claimed, or its end."""
    found = [queue.value for queue in QueueName if job.id.encode() in redis.lrange(f"rq:queue:{queue}", 0, -1)]
    found += ["claimed"] if redis.zscore(LEASES_KEY, job.id) is not None else []
    outcome = redis.hget(f"rq:job:{job.id}", "h3_outcome")
    return found + ([outcome.decode()] if outcome else [])


def records_of_runs(redis):
    return redis.zrange("rq:wip:default", 0, -1) + redis.keys("rq:execution*")


def await_step(job, step=1):
    for event in job.events(timeout_s=DEADLINE_S):
        if event.kind == "step_done" and event.step == step:
            return


# --- RQ under it


OVERRIDDEN = [name for name in vars(RenderWorker) if hasattr(SimpleWorker, name) and not name.startswith("__")]


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_what_is_overridden_takes_what_rq_gives_it(name):
    """RQ passes some arguments by keyword; a newer one may pass others."""
    ours, theirs = getattr(RenderWorker, name), getattr(SimpleWorker, name)
    assert type(ours) is type(theirs)
    if not isinstance(theirs, property):
        assert parameters(ours) == parameters(theirs)


def parameters(method):
    return [(each.name, each.kind) for each in inspect.signature(method).parameters.values()]


def test_the_overridden_names_are_known():
    """Whoever overrides another one has looked at how RQ uses it."""
    known = {"request_stop", "clean_registries", "connection_timeout", "register_birth", "kill_horse"}
    assert set(OVERRIDDEN) == known


def test_rq_leaves_our_limits_of_an_answer_alone(new_worker, redis_url):
    """It raises them to 415 s by default."""
    worker = new_worker(redis_url)
    assert worker.connection.connection_pool.connection_kwargs.get("socket_timeout", 0) <= 30


def test_rq_has_what_is_called_of_it(new_worker, redis_url):
    worker = new_worker(redis_url)
    inspect.signature(worker.subscribe).bind()
    inspect.signature(worker.heartbeat).bind(90, pipeline=None)
    inspect.signature(worker.set_state).bind("busy", pipeline=None)
    inspect.signature(worker.set_current_job_id).bind(None, pipeline=None)
    inspect.signature(worker.teardown).bind()
    inspect.signature(register).bind(worker, None)


def test_no_name_of_ours_hides_one_of_rq(new_worker, redis_url):
    worker = new_worker(redis_url)
    stock = SimpleWorker(["default"], connection=worker.connection)
    ours = vars(worker).keys() - vars(stock).keys() | vars(RenderWorker).keys() - vars(object).keys()
    hidden = {name for name in ours if hasattr(stock, name) and not name.startswith("__")}
    assert hidden == set(OVERRIDDEN)


# --- an outage at the end of an attempt


class TurningPoint(FileStore):
    """The store in a folder; when a second attempt reads the first one's result, something happens."""

    def __init__(self, root):
        super().__init__(root)
        self.when_read = lambda: None

    def get(self, key):
        self.when_read()
        return super().get(key)


ENDINGS = {
    "default": Interrupted("the worker was told to stop"),
    "failed": UploadFailed("it is full"),
    "finished": None,
}


@pytest.mark.parametrize("place", ENDINGS)
def test_an_outage_while_an_attempt_ends_leaves_the_job_in_one_place(new_worker, redis_server, tmp_path, place):
    """And no record of the run behind: RQ's readers would later fail a job that waits or has finished."""
    store = TurningPoint(tmp_path / "store")
    worker = new_worker(redis_server.url, store=store)
    redis = worker.connection
    job = submit(redis)
    worker._take().lease.hand_back("drained", "so that the next one is the second")
    commit_result(store, job.id)
    taken = worker._take()
    assert places(redis, job) == ["claimed"]
    assert len(records_of_runs(redis)) == 3

    def go_down():
        redis_server.stop()
        if (ending := ENDINGS[place]) is not None:
            raise ending

    store.when_read = go_down
    running = threading.Thread(target=worker._run, args=(taken,))
    with capture_logs() as lines:
        running.start()
        eventually(lambda: [line for line in lines if line["event"].startswith("Redis does not answer")])
        redis_server.start()
        running.join(DEADLINE_S)
    assert not running.is_alive()
    assert places(redis, job) == [place]
    assert records_of_runs(redis) == []
    assert job.status().state == {"default": "waiting"}.get(place, place)


def commit_result(store, job_id):
    result = Result(
        job_id=job_id,
        attempt=1,
        request=ResolvedRequest(**REQUEST),
        video_key="v",
        report_key="r",
        playlist_key="p",
        pieces=[],
    )
    store.put_once(result_key(job_id), result.model_dump_json().encode(), content_type="application/json")


# --- its record


def test_the_record_of_a_worker_carries_its_offer(new_worker, redis_url, redis):
    worker = new_worker(redis_url)
    worker.register_birth()
    with worker._heartbeat:
        eventually(lambda: read_offers(redis) == [OFFER])
    [listed] = Worker.all(connection=redis)
    assert listed.name == worker.name
    assert redis.smembers("rq:workers:high") == {worker.key.encode()}
    assert LEASE_S < redis.ttl(worker.key) < LEASE_S + 100  # it is not long forgotten after a death


def test_a_worker_is_registered_again_when_redis_has_forgotten_everything(new_worker, redis_url, redis):
    worker = new_worker(redis_url)
    worker.register_birth()
    with worker._heartbeat:
        eventually(lambda: read_offers(redis))
        redis.flushall()
        eventually(lambda: read_offers(redis) == [OFFER], timeout_s=3 * worker._leases.beat_s)
    assert [listed.name for listed in Worker.all(connection=redis)] == [worker.name]
    assert {key.decode() for queue in QueueName for key in redis.smembers(f"rq:workers:{queue}")} == {worker.key}


def test_a_beat_takes_back_what_a_dead_worker_held(new_worker, redis_url, redis):
    job = submit(redis)
    leases = Leases(redis, lease_s=0.05)
    [[waiting]] = leases.peek(["default"], 0, 1)
    leases.claim(waiting, "a worker that dies")
    with new_worker(redis_url, lease_s=1.2)._heartbeat:
        eventually(lambda: places(redis, job) == ["default"])
    assert [event.kind for event in job.news()] == ["queued", "started", "attempt_lost"]


def test_a_beat_that_comes_before_the_birth_does_no_harm(new_worker, redis_url, redis):
    """The beats begin before the worker is registered, which takes longer than that on a slow server."""
    worker = new_worker(redis_url)
    worker._attendance.beat(redis)
    serve(worker, lambda: eventually(lambda: read_offers(redis)))


@pytest.mark.parametrize(
    "failure",
    [
        "it is killed",
        "its memory is full",
        "its master is gone",
        "its disk is full",
    ],
)
def test_an_idle_worker_rides_out_an_outage_and_takes_the_next_job(new_worker, redis_server, failure):
    fail, mend = FAILURES[failure]
    worker = new_worker(redis_server.url)
    job = submit(worker.connection)
    with Redis.from_url(redis_server.url) as redis:
        fail(redis_server, redis)
        with ThreadPoolExecutor(1) as pool, capture_logs() as lines:
            taking = pool.submit(worker._next, burst=False)
            try:
                eventually(lambda: taking.done() or [line for line in lines if "Redis does not" in line["event"]])
            finally:
                mend(redis_server, redis)
            assert taking.result(DEADLINE_S).lease.job_id == job.id


# --- what it does not take


def test_a_worker_without_room_for_outputs_takes_no_job(new_worker, redis_url, redis):
    job = submit(redis)
    with capture_logs() as lines:
        assert new_worker(redis_url, least_free_bytes=1 << 60)._take() is None
    assert places(redis, job) == ["default"]
    assert any("no room for outputs" in line.get("reason", "") for line in lines)
    assert new_worker(redis_url)._take().lease.job_id == job.id


def test_rq_suspend_is_respected_until_rq_resume(new_worker, redis_url, redis):
    worker, job = new_worker(redis_url), submit(redis)
    suspend(redis)
    assert worker._take() is None
    assert places(redis, job) == ["default"]
    resume(redis)
    assert worker._take().lease.job_id == job.id


def test_a_worker_that_was_told_to_stop_takes_no_job(new_worker, redis_url, redis):
    worker, job = new_worker(redis_url), submit(redis)
    worker.request_stop(signal.SIGTERM, None)
    assert worker._next(burst=False) is None
    assert places(redis, job) == ["default"]


def test_a_worker_whose_fleet_died_while_it_was_idle_takes_no_job_and_leaves(new_worker, redis_url, redis):
    worker, job = new_worker(redis_url, Light), submit(redis)
    [rank] = worker._controller.status().ranks
    os.kill(rank.pid, signal.SIGKILL)
    eventually(lambda: not worker._controller.is_alive)
    worker.serve(burst=False)
    assert worker.duty.must_restart
    assert places(redis, job) == ["default"]
    assert redis.hget(f"rq:job:{job.id}", "h3_attempts") is None


# --- being told to stop


def test_an_idle_worker_leaves_at_the_first_signal_and_signs_off(new_worker, redis_url, redis):
    worker = new_worker(redis_url)
    serve(worker, lambda: eventually(lambda: read_offers(redis)))
    assert redis.smembers("rq:workers") == set()
    assert not worker.duty.must_restart
    job = submit(redis)
    assert places(redis, job) == ["default"]


def test_an_idle_worker_leaves_while_redis_is_gone(new_worker, redis_server):
    worker = new_worker(redis_server.url)
    with capture_logs() as lines:

        def act():
            eventually(lambda: worker.pubsub_thread is not None and read_offers(worker.connection))
            redis_server.kill()
            eventually(lambda: [line for line in lines if line["event"] == "Redis does not answer, trying again"])

        serve(worker, act)
    assert "not signed off, the record of this worker will expire" in [line["event"] for line in lines]


def test_at_the_first_signal_the_fleet_stops_and_the_job_goes_back_uncharged(
    new_worker, waiting_fleet, redis_url, redis, go_on
):
    worker = new_worker(redis_url, fleet=waiting_fleet)
    job, behind = submit(redis), submit(redis)

    def act():
        await_step(job)
        tell_to_stop()
        eventually(lambda: places(redis, job) == ["default"], timeout_s=DEADLINE_S)

    serve(worker, act)
    assert worker._controller.is_alive  # the fleet was not killed for it
    assert redis.lrange("rq:queue:default", 0, -1) == [job.id.encode(), behind.id.encode()]
    assert redis.hmget(f"rq:job:{job.id}", "h3_attempts", "h3_fatal", "h3_interruptions") == [b"1", None, None]
    assert job.news()[-1].charge == "drained"
    assert records_of_runs(redis) == []
    assert not worker.duty.must_restart


def test_a_job_that_finishes_before_it_can_stop_is_published(new_worker, redis_url, redis, go_on):
    worker = new_worker(redis_url, Deaf)
    first, second = submit(redis), submit(redis)

    def act():
        await_step(first)
        tell_to_stop()
        eventually(lambda: worker.duty.running.attempt._verdict)
        go_on()

    serve(worker, act)
    assert first.status().state in ("finished", "queued", "waiting")  # the runner looks again before its second step
    assert second.status().state.is_queued


def test_the_second_signal_gives_the_job_back_at_once_and_uncharged(new_worker, redis_url, redis, go_on):
    worker = new_worker(redis_url, Deaf)
    job, behind = submit(redis), submit(redis)

    def act():
        await_step(job)
        tell_to_stop()
        eventually(lambda: worker.duty.is_leaving)
        assert places(redis, job) == ["claimed"]
        tell_to_stop()
        eventually(lambda: places(redis, job) == ["default"], timeout_s=DEADLINE_S)

    serve(worker, act)
    assert redis.lrange("rq:queue:default", 0, -1) == [job.id.encode(), behind.id.encode()]
    assert redis.hmget(f"rq:job:{job.id}", "h3_attempts", "h3_fatal", "h3_interruptions") == [b"1", None, None]
    assert job.news()[-1].charge == "drained"
    assert records_of_runs(redis) == []
    assert not worker.duty.must_restart


def test_a_signal_while_a_job_is_taken_gives_it_back_uncharged(new_worker, redis_url, redis):
    worker, job = new_worker(redis_url), submit(redis)
    taken = worker._take()
    worker.request_stop(signal.SIGTERM, None)
    worker._run(taken)
    assert places(redis, job) == ["default"]
    assert job.news()[-1].charge == "drained"
    assert records_of_runs(redis) == []
    assert not worker.duty.must_restart


def test_a_fleet_that_is_shut_down_before_the_render_begins_interrupts_the_attempt(new_worker, redis_url, redis):
    """The second signal, while the attempt still looks for what to go on from. It must not count against the job."""
    worker = new_worker(redis_url, Light)
    submit(redis)
    taken = worker._take()
    worker._controller.shutdown(graceful_timeout=0)
    attempt = Attempt(worker._controller, taken.request, StallWatch(), None)
    limits = OutputLimits(least_free_bytes=0)
    outputs = Outputs(worker._store, "x", taken.lease, taken.request, limits=limits, on_failure=attempt.abort)
    with pytest.raises(Interrupted):
        attempt.run(outputs)


def test_an_attempt_that_is_over_does_not_end_the_fleet_of_the_next(light_fleet, job, store):
    attempt = Attempt(light_fleet, GenerateRequest.parse(REQUEST).resolve(), StallWatch(), None)
    attempt._end(job.begin(store))
    before = threading.active_count()
    attempt.abort(Stalled("too late"))
    assert light_fleet.is_alive
    assert threading.active_count() == before  # nobody is about to end it


# --- running jobs


def test_a_worker_renders_job_after_job_and_each_at_once(new_worker, redis_url, redis):
    worker = new_worker(redis_url)
    jobs = []

    def act():
        eventually(lambda: read_offers(redis))
        for queue in QueueName:
            jobs.append(submit(redis, queue))
            assert jobs[-1].wait(timeout_s=DEADLINE_S).attempt == 1

    serve(worker, act)
    assert [places(redis, job) for job in jobs] == 3 * [["finished"]]
    assert records_of_runs(redis) == []
    [(measured, seconds)] = read_render_times(redis).seconds.items()
    assert (measured, len(seconds)) == (RenderClass.of(ResolvedRequest(**REQUEST), OFFER), 3)


def test_a_job_whose_picture_is_not_there_fails_at_once_and_the_next_is_rendered(new_worker, redis_url, redis):
    worker = new_worker(redis_url)
    jobs = [Client(redis).submit({**REQUEST, **frames}) for frames in ({"last_frame": "inputs/kite.png"}, {})]
    worker.serve(burst=True)
    assert [places(redis, job) for job in jobs] == [["failed"], ["finished"]]
    assert [event.kind for event in jobs[0].news()] == ["queued", "started", "failed"]
    failed = jobs[0].news()[-1]
    assert failed.cause == "request"
    assert "inputs/kite.png does not exist: put the picture there" in failed.reason
    assert not worker.duty.must_restart


COMMANDS = [
    b"no json",
    b"\xff",
    b"[]",
    b"{}",
    b'{"command": "eval"}',
    b'{"command": "kill-horse"}',
    b'{"command": "stop-job"}',
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # RQ's thread that listens
@pytest.mark.parametrize("command", COMMANDS, ids=ascii)
def test_rubbish_on_the_channels_does_not_disturb_a_worker(new_worker, redis_url, redis, command):
    worker = new_worker(redis_url)

    def act():
        eventually(lambda: read_offers(redis))
        for channel in (worker.pubsub_channel_name, WAKE_CHANNEL):
            eventually(lambda channel=channel: redis.publish(channel, command))
        assert submit(redis).wait(timeout_s=DEADLINE_S)

    serve(worker, act)
    assert not worker.duty.must_restart


def test_a_burst_ends_when_the_queues_are_empty_whatever_was_in_them(new_worker, redis_url, redis):
    worker = new_worker(redis_url)
    for number in range(200):
        push(redis, "high", f"rubbish-{number}")
    jobs = [submit(redis, queue) for queue in QueueName]
    worker.serve(burst=True)
    assert [places(redis, job) for job in jobs] == 3 * [["finished"]]
    assert [redis.llen(f"rq:queue:{queue}") for queue in QueueName] == [0, 0, 0]


def test_an_attempt_whose_lease_is_lost_is_discarded_and_the_fleet_stays(
    new_worker, waiting_fleet, redis_url, redis, go_on
):
    worker = new_worker(redis_url, fleet=waiting_fleet)
    lost = submit(redis)

    def act():
        await_step(lost)
        redis.zrem(LEASES_KEY, lost.id)  # as if another had taken it back
        eventually(lambda: redis.hget(worker.key, "state") == b"idle", timeout_s=DEADLINE_S)
        go_on()
        assert submit(redis).wait(timeout_s=DEADLINE_S)

    serve(worker, act)
    assert not worker.duty.must_restart
    assert not worker._store.stat(result_key(lost.id))
    assert [event.kind for event in lost.news()] == ["queued", "started", "step_done"]


@pytest.mark.parametrize(
    ("runner", "settings", "reason"),
    [(Dying, {}, "SIGKILL"), (Waiting, {"step_timeout_s": 0.5}, "the fleet stalled: no step for")],
    ids=["a rank that dies", "a rank that hangs"],
)
def test_a_fleet_that_is_lost_costs_the_job_one_of_its_tries(
    new_worker, redis_url, redis, go_on, runner, settings, reason
):
    worker = new_worker(redis_url, runner, **settings)
    job = submit(redis)
    worker.serve(burst=False)  # leaves by itself
    assert worker.duty.must_restart
    assert places(redis, job) == ["default"]
    assert redis.hget(f"rq:job:{job.id}", "h3_fatal") == b"1"
    [lost] = [event for event in job.news() if event.kind == "attempt_lost"]
    assert (lost.charge, reason in lost.reason) == ("fatal", True)


def test_a_lease_is_kept_for_as_long_as_the_job_runs(new_worker, waiting_fleet, redis_url, redis, go_on):
    worker = new_worker(redis_url, fleet=waiting_fleet, lease_s=1.2)
    job = submit(redis)
    serve(worker, lambda: await_longer_than_a_lease(redis, job, go_on))
    assert job.wait(timeout_s=1).attempt == 1


def test_a_lease_is_kept_though_the_workers_record_cannot_be_written(
    new_worker, waiting_fleet, redis_url, redis, go_on
):
    worker = new_worker(redis_url, fleet=waiting_fleet, lease_s=1.2)
    job = submit(redis)

    def act():
        await_step(job)
        redis.set("rq:workers", "no set")
        try:
            await_longer_than_a_lease(redis, job, go_on)
        finally:
            redis.delete("rq:workers")

    serve(worker, act)
    assert job.wait(timeout_s=1).attempt == 1


def await_longer_than_a_lease(redis, job, go_on):
    await_step(job)
    ends_at = redis.zscore(LEASES_KEY, job.id)
    eventually(lambda: redis.zscore(LEASES_KEY, job.id) > ends_at + 1_500)
    go_on()
    job.wait(timeout_s=DEADLINE_S)
