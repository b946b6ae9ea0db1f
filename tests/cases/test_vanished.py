"""Workers that are gone, or seem to be."""

import signal
import threading
import time

import pytest
from redis import Redis
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer

from jobs import events
from jobs.client import Client
from jobs.store import open_store
from tests.cases.runners import Script
from tests.waiting import eventually

LEASE_S = 1.0  # of the lasting farm
STARTED_WITHIN_S = {LEASE_S: 4.0, 5.0: 8.0, 60.0: 75.0}  # by lease


def pytest_generate_tests(metafunc):
    if "lease_s" in metafunc.fixturenames:
        leases = [5.0, 60.0] if metafunc.config.getoption("full") else [LEASE_S]
        metafunc.parametrize("lease_s", leases)


@pytest.fixture
def two_workers(lasting_farm):
    """Both ready, of the shortest lease; for the tests that leave them well."""
    while len(lasting_farm.living) < 2:
        lasting_farm.start_ready()
    return lasting_farm


@pytest.fixture
def two_of_this_lease(request, lease_s):
    """The farm of two such workers, both ready."""
    if lease_s == LEASE_S:
        return request.getfixturevalue("two_workers")
    farm = request.getfixturevalue("farm")
    farm.lease_s = lease_s
    for _ in range(2):
        farm.start_ready()
    return farm


def test_case_8_stale_records_of_a_finished_job_change_nothing(lasting_farm, watched):
    """The first of these tests: it starts the second of the two workers."""
    farm = lasting_farm
    farm.keep_ready()
    job = farm.client.submit(Script(name="stale").request())
    job.wait(timeout_s=60)
    before = farm.rendered()
    last = len(job.news())
    farm.redis.zadd("rq:wip:default", {f"{job.id}:stale": 1})
    farm.redis.rpush("rq:queue:default:intermediate", job.id, job.id)

    seen = set()

    def read():
        with Redis.from_url(farm.redis_url) as redis:
            registry = StartedJobRegistry("default", connection=redis, serializer=JSONSerializer)
            for _ in range(50):
                registry.get_job_ids()
                seen.add(Client(redis).job(job.id).status().state)

    readers = [threading.Thread(target=read) for _ in range(8)]
    for reader in readers:
        reader.start()
    farm.start_ready()  # another one, which cleans at its start
    for reader in readers:
        reader.join()
    eventually(lambda: not farm.redis.exists("rq:queue:default:intermediate", "rq:wip:default"))
    eventually(lambda: farm.redis.hget(f"rq:job:{job.id}", "status") == b"finished")
    assert seen == {"finished"}
    assert farm.redis.zscore("rq:failed:default", job.id) is None
    assert farm.rendered() == before
    assert len(job.news()) == last


@pytest.mark.slow
def test_case_3_a_job_of_many_leases_runs_once(two_workers, watched, full):
    leases = 20 if full else 6
    steps = round(leases * LEASE_S / 0.2)
    job = two_workers.client.submit(Script(name="long", steps=steps, step_s=0.2).request())
    job.wait(timeout_s=90)
    assert [e.attempt for e in two_workers.events_of(job.id, events.Started)] == [1]
    assert two_workers.rendered().count(f"long step {steps}") == 1


def test_case_4_a_rank_that_holds_the_gil_for_two_leases_keeps_its_lease(two_workers, watched):
    job = two_workers.client.submit(Script(name="deaf", hold_gil_s=2.5).request())
    job.wait(timeout_s=60)
    assert [e.attempt for e in two_workers.events_of(job.id, events.Started)] == [1]


def test_case_9_a_worker_that_slept_past_its_lease_discards_its_work_and_lives(two_workers, tmp_path):
    farm, gate = two_workers, tmp_path / "gate"
    job = farm.client.submit(Script(name="slept", segments=3, gate=str(gate), gate_segment=2).request())
    farm.await_event(job.id, events.SegmentReady, count=2)
    [started] = farm.events_of(job.id, events.Started)
    sleeper, other = sorted(farm.living, key=lambda worker: started.worker not in worker.log.read_text())
    assert started.worker not in other.log.read_text()
    sleeper.send(signal.SIGSTOP)
    farm.await_event(job.id, events.Started, count=2)
    gate.touch()
    finished = job.wait(timeout_s=60)
    assert finished.attempt == 2
    told = job.news()

    sleeper.send(signal.SIGCONT)
    eventually(lambda: "attempt discarded" in sleeper.log.read_text(), timeout_s=30)
    assert job.news() == told
    result = farm.check_result(job.id)
    assert result.attempt == 2
    store = open_store(farm.store_url)
    named = {piece.key for piece in result.pieces}
    written = {*store.list(f"{job.id}/")} - {f"{job.id}/result.json"}
    assert {key.split("/")[2] for key in written - named if key.endswith(".m4s")} <= {"1"}
    assert sleeper.process.poll() is None
    check_both_work(farm, tmp_path / "gate of both")


def check_both_work(farm, gate):
    """Each has a job at the same time."""
    jobs = [farm.client.submit(Script(name=f"at once {i}", gate=str(gate), gate_step=1).request()) for i in range(2)]
    for job in jobs:
        farm.await_event(job.id, events.Started)
    gate.touch()
    assert [job.wait(timeout_s=60).attempt for job in jobs] == [1, 1]


@pytest.mark.slow
def test_case_1_a_killed_workers_job_goes_on_elsewhere_in_time_from_its_last_segment(
    two_of_this_lease, watched, lease_s, tmp_path
):
    farm, gate = two_of_this_lease, tmp_path / "gate"
    job = farm.client.submit(Script(name="orphan", segments=8, gate=str(gate), gate_segment=3).request())
    farm.await_event(job.id, events.SegmentReady, count=3)
    [started] = farm.events_of(job.id, events.Started)
    [owner] = [worker for worker in farm.living if started.worker in worker.log.read_text()]
    owner.kill_group()
    killed_at = time.monotonic()
    gate.touch()
    farm.await_event(job.id, events.Started, count=2, timeout_s=STARTED_WITHIN_S[lease_s] + 30)
    assert time.monotonic() - killed_at < STARTED_WITHIN_S[lease_s]
    job.wait(timeout_s=60)

    assert farm.rendered("orphan segment") == [f"orphan segment {i}" for i in range(8)]
    told = job.news()
    assert [e.attempt for e in told if isinstance(e, events.Started)] == [1, 2]
    assert [e.kind for e in told if e.is_last] == ["finished"]
    [lost] = [e for e in told if isinstance(e, events.AttemptLost)]
    assert lost.charge == "interrupted"  # it had moved the job forward
    result = farm.check_result(job.id)
    attempts = {p.key.rsplit("/")[-1]: p.key.split("/")[2] for p in result.pieces}
    assert [attempts[f"segment-{i:05d}.m4s"] for i in range(8)] == ["1"] * 3 + ["2"] * 5


@pytest.mark.slow
def test_case_7_a_job_that_kills_its_workers_is_put_away_and_the_others_are_rendered(lasting_farm, watched, full):
    """The last of these tests: none of the others' workers is left."""
    farm = lasting_farm
    with farm.supervising(4 if full else 1):
        bad = farm.client.submit(Script(name="bad", kill_worker=True).request())
        good = [farm.client.submit(Script(name=f"good {i}").request()) for i in range(20)]
        for job in good:
            job.wait(timeout_s=240)
            farm.check_result(job.id)
        [dead] = farm.await_event(bad.id, events.Dead, timeout_s=240)
    assert [loss.attempt for loss in dead.losses] == [1, 2, 3]
    assert all("lease ran out" in loss.reason for loss in dead.losses)
    assert bad.status().state == "dead"
    assert farm.restarts <= 3
    assert [e.attempt for e in farm.events_of(bad.id, events.Started)] == [1, 2, 3]
