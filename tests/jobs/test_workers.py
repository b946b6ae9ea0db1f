"""What workers say of themselves, how others read it, and what they can be told. On a real Redis."""

import pytest

from jobs.errors import WorkerNotFound
from jobs.lease import Leases, Orders
from jobs.offers import Offer
from jobs.request import Mode, ResolvedRequest
from jobs.workers import (
    KEPT_S,
    WORKERS_KEY,
    WorkerState,
    drain_worker,
    explain_waiting,
    find_replaced,
    forget_worker,
    pause_worker,
    read_workers,
    resume_worker,
    write_worker,
)
from tests.jobs.records import record

REQUEST = ResolvedRequest(prompt="a red kite", width=64, height=32, frames=39, steps=2, seed=1)
TENSOR = REQUEST.model_copy(update={"mode": Mode.TENSOR})
ULYSSES_ONLY = Offer(modes=(Mode.ULYSSES,))


def states(redis):
    return {worker.name: worker.state.value for worker in read_workers(redis)}


# --- reading


def test_workers_are_listed_by_name_as_they_were_written(redis):
    told = [record(redis, name, offer=Offer(world_size=4)) for name in ("b", "a")]
    for worker in told:
        write_worker(redis, worker)
    assert read_workers(redis) == sorted(told, key=lambda worker: worker.name)
    forget_worker(redis, told[0].id)
    assert [worker.name for worker in read_workers(redis)] == ["a"]


def test_a_worker_that_misses_its_beats_is_lost_and_says_what_it_was_at(redis):
    write_worker(redis, record(redis, "quick", ago_s=25))
    write_worker(redis, record(redis, "silent", ago_s=35, state=WorkerState.BUSY))
    assert states(redis) == {"quick": "ready", "silent": "lost"}
    assert read_workers(redis)[1].reason == "not heard of for 35 s, was busy"


def test_an_unhealthy_worker_has_left_and_stays_unhealthy(redis):
    write_worker(redis, record(redis, state=WorkerState.UNHEALTHY, reason="rank 0: bad card", ago_s=5000))
    assert [(w.state, w.reason) for w in read_workers(redis)] == [(WorkerState.UNHEALTHY, "rank 0: bad card")]


def test_records_that_cannot_be_read_are_left_out_and_what_a_newer_worker_adds_is_passed_over(redis):
    redis.hset(WORKERS_KEY, "broken", b"\xff{")
    redis.hset(WORKERS_KEY, "older", '{"id": "older"}')
    newer = record(redis, "newer").model_dump_json().replace("{", '{"colour": "red", ', 1)
    redis.hset(WORKERS_KEY, "newer", newer)
    assert states(redis) == {"newer": "ready"}


# --- who takes whose place


def replaced(redis, *others, pids=()):
    new = record(redis, "gpu-1", nonce="new", pid=5)
    return [worker.id for worker in find_replaced([new, *others], new, lambda pid: pid in pids)]


def test_a_new_worker_takes_the_place_of_a_dead_one_of_its_name_on_its_host(redis):
    dead = record(redis, "gpu-1", nonce="dead", pid=7)
    assert replaced(redis, dead, pids=()) == ["gpu-1-dead"]
    assert replaced(redis, dead, pids=(7,)) == []  # it lives: two of a name


def test_a_new_worker_takes_the_place_of_one_that_had_its_pid(redis):
    """As in a container that is started again under its host name."""
    assert replaced(redis, record(redis, "gpu-1", nonce="dead", pid=5), pids=(5,)) == ["gpu-1-dead"]


def test_a_new_worker_takes_the_place_of_a_lost_one_of_its_name_wherever_that_was(redis):
    there = record(redis, "gpu-1", nonce="there", host="other", pid=7)
    assert replaced(redis, there) == []
    assert replaced(redis, there.model_copy(update={"state": WorkerState.LOST})) == ["gpu-1-there"]
    assert replaced(redis, there.model_copy(update={"state": WorkerState.UNHEALTHY})) == ["gpu-1-there"]


def test_records_of_others_stay_for_a_day(redis):
    lately = record(redis, "gpu-2", state=WorkerState.LOST, ago_s=KEPT_S - 60)
    long_ago = record(redis, "gpu-3", state=WorkerState.LOST, ago_s=KEPT_S + 60)
    assert replaced(redis, lately, long_ago) == [long_ago.id]


# --- what a job waits for


def test_a_job_waits_for_a_reason_unless_somebody_can_serve_it(redis):
    able, unable = record(redis), record(redis, "gpu-2", offer=ULYSSES_ONLY)
    small = record(redis, "gpu-3", offer=Offer(most_pixels=1))
    assert explain_waiting(REQUEST, "default", []) == "waiting: no worker is alive"
    assert explain_waiting(TENSOR, "default", [unable, able]) == ""
    assert explain_waiting(TENSOR, "default", [unable]) == "waiting: no worker with mode tensor"
    both = "waiting: no worker with memory for 64x32, 39 frames or mode tensor"
    assert explain_waiting(TENSOR, "default", [unable, small]) == both


def test_a_worker_that_is_gone_can_serve_nothing(redis):
    gone = record(redis, state=WorkerState.LOST)
    assert explain_waiting(REQUEST, "default", [gone]) == "waiting: no worker is alive"


def test_a_job_says_that_those_who_could_take_it_do_not_now(redis):
    idle = [record(redis, state=WorkerState.PAUSED), record(redis, "gpu-2", state=WorkerState.STARTING)]
    told = "waiting: every worker that could take it is paused or starting"
    assert explain_waiting(REQUEST, "default", idle) == told
    assert explain_waiting(REQUEST, "default", [*idle, record(redis, "gpu-3", state=WorkerState.BUSY)]) == ""


# --- orders


@pytest.fixture
def orders(redis):
    leases = Leases(redis)

    def read(worker):
        return leases.read_orders((worker.name, worker.id), None)

    return read


def test_a_worker_is_paused_by_name_until_it_is_resumed_also_if_it_starts_over(redis, orders):
    old = record(redis, nonce="old")
    write_worker(redis, old)
    pause_worker(redis, "gpu-1")
    assert orders(old) == orders(record(redis, nonce="new")) == Orders(pause=True)
    assert orders(record(redis, "gpu-2")) == Orders()
    resume_worker(redis, "gpu-1")
    assert orders(old) == Orders()


def test_a_worker_is_drained_by_the_process(redis, orders):
    old = record(redis, nonce="old")
    write_worker(redis, old)
    drain_worker(redis, "gpu-1")
    assert orders(old) == Orders(leave=True)
    assert orders(record(redis, nonce="new")) == Orders()
    assert 0 < redis.ttl(f"h3:orders:{old.id}") <= KEPT_S


def test_one_process_of_a_name_can_be_meant_by_its_id(redis, orders):
    one, other = record(redis, nonce="one"), record(redis, nonce="other")
    for worker in (one, other):
        write_worker(redis, worker)
    pause_worker(redis, one.id)
    assert (orders(one).pause, orders(other).pause) == (True, False)


@pytest.mark.parametrize("act", [pause_worker, resume_worker, drain_worker])
def test_a_worker_that_nobody_knows_is_named_with_those_who_are_known(redis, act):
    write_worker(redis, record(redis, "gpu-2"))
    write_worker(redis, record(redis, "gpu-3", ago_s=100))
    with pytest.raises(WorkerNotFound, match="no worker 'gpu-3' is alive; known are: gpu-2"):
        act(redis, "gpu-3")


def test_a_paused_worker_that_has_gone_can_be_resumed(redis, orders):
    write_worker(redis, record(redis))
    pause_worker(redis, "gpu-1")
    forget_worker(redis, record(redis).id)
    resume_worker(redis, "gpu-1")
    assert orders(record(redis)) == Orders()
