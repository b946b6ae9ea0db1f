"""Every state that workers and jobs can get into through lease.lua, reached by the script itself on a real Redis.

Beside Redis there is a model: what each worker knows, and for each job what an onlooker expects. A worker may die or
miss an answer between any two steps, leases run out at any time, and stale workers speak up whenever they like. The
model tells the reply to each call, and each state of Redis is compared with it.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis import Redis

from jobs import lease

NAMES = "AB"
SWAPPED = str.maketrans("AB", "BA")
QUEUE, WORKER = "default", "w"  # which worker it is decides nothing: only its attempt and its nonce do
LEASE_MS = str(round(lease.LEASE_S * 1000))
MOST_FATAL = 3


class Phase(StrEnum):
    """What a worker believes."""

    IDLE = "idle"
    ASKING = "asking"  # it has claimed a job and heard no answer
    RUNNING = "running"
    COMMITTED = "committed"  # the result is in the store
    UNSURE = "unsure"  # it has finished the job and heard no answer


class Worker(NamedTuple):
    phase: Phase = Phase.IDLE
    job: int = -1
    attempt: int = 0  # that it runs; while ASKING, that its claim has begun, if it has


IDLE = Worker()


class Place(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    FINISHED = "finished"
    FAILED = "failed"
    DEAD = "dead"
    CANCELED = "canceled"


TERMINAL = {Place.FINISHED, Place.FAILED, Place.DEAD, Place.CANCELED}


class Job(NamedTuple):
    """A job as it should be, and how often what is optional may still happen to it."""

    keeps_left: int
    drains_left: int
    strays_left: int
    retries_left: int = 0
    cancels_left: int = 0
    place: Place = Place.QUEUED
    attempts: int = 0  # the last of them runs while the job is claimed
    is_over: bool = False  # the lease has run out, and nobody has noticed
    has_moved: bool = False  # in the running attempt
    is_unwanted: bool = False  # somebody has asked for its end while it runs
    fatal: int = 0
    interrupted: int = 0
    has_result: bool = False  # in the store
    strays: int = 0  # copies of its id in the queue that nobody has looked at

    def is_held_by(self, worker: Worker) -> bool:
        return self.place is Place.CLAIMED and worker.attempt == self.attempts

    def claimed(self) -> "Job":
        return self._replace(place=Place.CLAIMED, attempts=self.attempts + 1, is_over=False, has_moved=False, strays=0)

    def lost(self, charge: str) -> "Job":
        if self.is_unwanted:
            return self.at(Place.CANCELED)
        fatal, interrupted = self.fatal + (charge == "fatal"), self.interrupted + (charge == "interrupted")
        place = Place.DEAD if fatal == MOST_FATAL else Place.QUEUED
        return self.at(place)._replace(fatal=fatal, interrupted=interrupted)

    def at(self, place: Place) -> "Job":
        return self._replace(place=place, is_over=False, has_moved=False, is_unwanted=False)


class State(NamedTuple):
    redis: str  # as explore.lua writes it down
    workers: tuple[Worker, ...]
    jobs: tuple[Job, ...]

    def with_worker(self, number: int, worker: Worker = IDLE) -> "State":
        return self._replace(workers=(*self.workers[:number], worker, *self.workers[number + 1 :]))

    def with_job(self, number: int, job: Job) -> "State":
        return self._replace(jobs=(*self.jobs[:number], job, *self.jobs[number + 1 :]))


Call = tuple[str, ...]


class Move(NamedTuple):
    """Something that can happen. `then` checks the reply and gives what the state may be afterwards."""

    name: str
    then: Callable[[State, Any], Iterator[State]]
    call: Call = ()  # of the script; none if it happens outside Redis


def moves(state: State) -> Iterator[Move]:
    for number, worker in enumerate(state.workers):
        if number == 0 or worker != state.workers[number - 1]:  # equal workers do equal things
            yield from worker_moves(state, number, worker)
    for number, job in enumerate(state.jobs):
        yield from job_moves(number, job)
    yield reap(state)
    yield sweep()


def worker_moves(state: State, number: int, worker: Worker) -> Iterator[Move]:
    if worker.phase is Phase.IDLE:
        yield from (claim(state, number, worker, job) for job in range(len(state.jobs)))
        return
    yield crash(number)
    job = state.jobs[worker.job]
    match worker.phase:
        case Phase.ASKING:
            yield claim(state, number, worker, worker.job)
        case Phase.RUNNING:
            yield commit(number, worker)
            yield from (end(number, worker, "failed"), beat(number, worker))
            yield from (hand_back(number, worker, charge) for charge in ("fatal", "drained") if may(job, charge))
            yield from [keep(number, worker)] if job.keeps_left else []
            yield from [end(number, worker, "canceled")] if job.is_unwanted else []
        case Phase.COMMITTED:
            yield from (end(number, worker, "finished"), beat(number, worker))
        case Phase.UNSURE:
            yield end(number, worker, "finished")


def may(job: Job, charge: str) -> bool:
    return charge == "fatal" or job.drains_left > 0


def job_moves(number: int, job: Job) -> Iterator[Move]:
    if job.place is Place.CLAIMED and not job.is_over:
        yield expire(number)
    if job.strays_left:
        yield push_stray(number)
    if job.retries_left:
        yield retry(number)
    if job.cancels_left:
        yield cancel(number)


def claim(state: State, number: int, worker: Worker, target: int) -> Move:
    """Also again with the same nonce, by a worker that has heard no answer."""
    job = state.jobs[target]
    is_ours = worker.attempt > 0 and job.is_held_by(worker)
    attempt = job.attempts if is_ours else job.attempts + 1
    # A nonce that Redis does not know is as good as any other: so one is made of the attempt that would record it.
    call = ("claim", QUEUE, NAMES[target], WORKER, f"n{attempt}", LEASE_MS)

    def then(after: State, reply: Any) -> Iterator[State]:
        is_claimed = is_ours or job.place is Place.QUEUED
        assert reply[:2] == (["claimed", str(attempt)] if is_claimed else ["gone"])
        now = job.claimed() if is_claimed and not is_ours else job._replace(strays=0)
        after = after.with_job(target, now)
        yield after.with_worker(number, Worker(Phase.RUNNING, target, attempt) if is_claimed else IDLE)
        yield after.with_worker(number, Worker(Phase.ASKING, target, attempt if is_claimed else 0))

    return Move(f"worker {number} claims {NAMES[target]}", then, call)


def crash(number: int) -> Move:
    return Move(f"worker {number} dies", lambda after, _: iter([after.with_worker(number)]))


def commit(number: int, worker: Worker) -> Move:
    """Who is second takes the first one's result for its own."""

    def then(after: State, _: Any) -> Iterator[State]:
        job = after.jobs[worker.job]._replace(has_result=True)
        yield after.with_job(worker.job, job).with_worker(number, worker._replace(phase=Phase.COMMITTED))

    return Move(f"worker {number} writes the result", then)


def beat(number: int, worker: Worker) -> Move:
    def then(after: State, reply: Any) -> Iterator[State]:
        job = after.jobs[worker.job]
        assert reply == job.is_held_by(worker)
        if reply:
            yield after.with_job(worker.job, job._replace(is_over=False))
        else:
            yield after.with_worker(number)

    return Move(f"worker {number} beats", then, ("beat", *_lease(worker), LEASE_MS))


def keep(number: int, worker: Worker) -> Move:
    def then(after: State, reply: Any) -> Iterator[State]:
        job = after.jobs[worker.job]
        assert reply == job.is_held_by(worker)
        if reply:
            yield after.with_job(worker.job, job._replace(has_moved=True, keeps_left=job.keeps_left - 1))
        else:
            yield after.with_worker(number)

    return Move(f"worker {number} keeps", then, ("keep", *_lease(worker), str(worker.attempt), "{}", ""))


def hand_back(number: int, worker: Worker, charge: str) -> Move:
    def then(after: State, reply: Any) -> Iterator[State]:
        job = after.jobs[worker.job]
        if job.is_held_by(worker):
            job = job.lost(charge)._replace(drains_left=max(0, job.drains_left - (charge == "drained")))
            assert reply == job.place
        else:
            assert reply == "lost"
        yield after.with_job(worker.job, job).with_worker(number)

    return Move(f"worker {number} hands back ({charge})", then, ("hand_back", *_lease(worker), charge, "r"))


def end(number: int, worker: Worker, outcome: str) -> Move:
    def then(after: State, reply: Any) -> Iterator[State]:
        job = after.jobs[worker.job]
        if worker.phase is Phase.UNSURE:
            assert reply == "finished" == job.place
        elif job.is_held_by(worker):
            assert reply == outcome
            after = after.with_job(worker.job, job.at(Place(outcome)))
        else:
            assert reply == "lost"
        yield after.with_worker(number)
        if reply == "finished":
            yield after.with_worker(number, worker._replace(phase=Phase.UNSURE))

    return Move(f"worker {number}: {outcome}", then, ("finish", *_lease(worker), outcome, outcome, outcome, ""))


def expire(number: int) -> Move:
    def then(after: State, _: Any) -> Iterator[State]:
        yield after.with_job(number, after.jobs[number]._replace(is_over=True))

    return Move(f"the lease of {NAMES[number]} runs out", then, ("expire", NAMES[number]))


def push_stray(number: int) -> Move:
    def then(after: State, _: Any) -> Iterator[State]:
        job = after.jobs[number]
        yield after.with_job(number, job._replace(strays=job.strays + 1, strays_left=job.strays_left - 1))

    return Move(f"{NAMES[number]} is queued once more", then, ("push", QUEUE, NAMES[number]))


def retry(number: int) -> Move:
    """By a person, who may be wrong about it."""

    def then(after: State, reply: Any) -> Iterator[State]:
        job = after.jobs[number]
        assert reply == (job.place in {Place.FAILED, Place.DEAD})
        if reply:
            job = job.at(Place.QUEUED)._replace(fatal=0, interrupted=0, retries_left=job.retries_left - 1)
        yield after.with_job(number, job)

    return Move(f"{NAMES[number]} is retried", then, ("retry_dead", NAMES[number]))


def cancel(number: int) -> Move:
    """By a person, who may be too late."""

    def then(after: State, reply: Any) -> Iterator[State]:
        job = after.jobs[number]
        now = job._replace(cancels_left=job.cancels_left - 1)
        if job.place is Place.CLAIMED:
            assert reply == ["asked", str(job.attempts)]
            yield after.with_job(number, now._replace(is_unwanted=True))
        elif job.place is Place.QUEUED:
            assert reply == ["canceled", ""]
            yield after.with_job(number, now.at(Place.CANCELED)._replace(strays=0))
        else:
            assert reply == ["ended", job.place]
            yield after

    return Move(f"{NAMES[number]} is canceled", then, ("cancel", NAMES[number], ""))


def reap(state: State) -> Move:
    def then(after: State, reply: Any) -> Iterator[State]:
        quiet, queued, dead = reply
        taken = {number: job.lost("interrupted" if job.has_moved else "fatal") for number, job in over.items()}
        assert quiet == 0
        assert sorted(queued) == [NAMES[number] for number, job in taken.items() if job.place is Place.QUEUED]
        assert sorted(dead) == [NAMES[number] for number, job in taken.items() if job.place is Place.DEAD]
        for number, job in taken.items():
            after = after.with_job(number, job)
        yield after

    over = {number: job for number, job in enumerate(state.jobs) if job.is_over}
    return Move("leases are reaped", then, ("reap", LEASE_MS, "1000", "same"))


def sweep() -> Move:
    """The script's own moves leave nothing to mend."""

    def then(after: State, reply: Any) -> Iterator[State]:
        assert reply == 0
        yield after

    return Move("RQ's records are swept", then, ("sweep", QUEUE))


def _lease(worker: Worker) -> tuple[str, str]:
    return NAMES[worker.job], str(worker.attempt)


class Stored:
    """What Redis has."""

    def __init__(self, redis: str) -> None:
        self._rows = redis.splitlines()

    def field(self, name: str, field: str) -> str | None:
        prefix = f"hash rq:job:{name} {field} "
        return next((row.removeprefix(prefix) for row in self._rows if row.startswith(prefix)), None)

    def count(self, row: str) -> int:
        return self._rows.count(row)

    def starting(self, *prefixes: str) -> list[str]:
        return [row for row in self._rows if row.startswith(prefixes)]


def check(state: State) -> None:
    stored = Stored(state.redis)
    for name, job in zip(NAMES, state.jobs, strict=False):
        check_place(name, job, stored)
        check_record(name, job, stored)
        check_history(job)


def check_place(name: str, job: Job, stored: Stored) -> None:
    copies = stored.count(f"list rq:queue:{QUEUE} {name}")
    assert copies - job.strays == (job.place is Place.QUEUED)
    lease = f"zset h3:leases {name} {'over' if job.is_over else 'live'}"
    assert stored.starting(f"zset h3:leases {name} ") == ([lease] if job.place is Place.CLAIMED else [])
    assert stored.field(name, "h3_outcome") == (job.place if job.place in TERMINAL else None)


def check_record(name: str, job: Job, stored: Stored) -> None:
    """RQ's tools see what is so, and nothing of an attempt outlives it."""
    is_claimed, is_ended = job.place is Place.CLAIMED, job.place in TERMINAL
    assert stored.field(name, "status") == {Place.CLAIMED: "started", Place.DEAD: "failed"}.get(job.place, job.place)
    run = f"{name}:{job.attempts}"
    assert stored.starting(f"zset rq:wip:{QUEUE} {name}:") == [f"zset rq:wip:{QUEUE} {run} "] * is_claimed
    assert len(stored.starting(f"hash rq:execution:{name}:", f"zset rq:executions:{name} ")) == 3 * is_claimed
    assert stored.count(f"ttl rq:job:{name} ") == is_ended
    assert stored.count(f"zset rq:finished:{QUEUE} {name} ") == (job.place is Place.FINISHED)
    assert stored.count(f"zset rq:failed:{QUEUE} {name} ") == (job.place in {Place.FAILED, Place.DEAD})
    assert stored.count(f"zset rq:canceled:{QUEUE} {name} ") == (job.place is Place.CANCELED)
    assert stored.count(f"zset h3:dead {name} ") == (job.place is Place.DEAD)
    assert stored.field(name, "h3_lease") == (str(job.attempts) if is_claimed else None)
    assert int(stored.field(name, "h3_attempts") or 0) == job.attempts
    assert int(stored.field(name, "h3_fatal") or 0) == job.fatal
    assert int(stored.field(name, "h3_interruptions") or 0) == job.interrupted


def check_history(job: Job) -> None:
    assert (job.place is Place.DEAD) == (job.fatal == MOST_FATAL)
    assert job.has_result or job.place is not Place.FINISHED


def canonical(state: State) -> State:
    """The one that stands for all states that differ in names alone."""
    swapped = [state]
    if len(state.jobs) == 2:
        workers = tuple(worker if worker.job < 0 else worker._replace(job=1 - worker.job) for worker in state.workers)
        swapped.append(State(_swapped(state.redis), workers, state.jobs[::-1]))
    return min(_sorted_workers(state) for state in swapped)


@cache
def _swapped(redis: str) -> str:
    return "".join(sorted(redis.translate(SWAPPED).splitlines(keepends=True)))


def _sorted_workers(state: State) -> State:
    known = (_without_stale_nonce(worker, state) for worker in state.workers)
    return state._replace(workers=tuple(sorted(known)))


def _without_stale_nonce(worker: Worker, state: State) -> Worker:
    is_stale = worker.phase is Phase.ASKING and not state.jobs[worker.job].is_held_by(worker)
    return worker._replace(attempt=0) if is_stale else worker


class Exploration:
    """Breadth first, so that what fails comes with a shortest way to it.

    States that differ in names alone are one: in such a way, two workers or two jobs may change names between moves.
    """

    def __init__(self, redis: Redis, jobs: tuple[Job, ...], workers: int) -> None:
        self._script = redis.register_script(_source())
        self._known: dict[str, dict[Call, tuple[Any, str]]] = {}
        self._texts: dict[str, str] = {}  # of Redis: many states have the same
        self._checked: set[tuple[str, tuple[Job, ...]]] = set()
        self._came_from: dict[State, tuple[State, str] | None] = {}
        self._open: deque[State] = deque()
        self._add(State(self._submit(len(jobs)), (IDLE,) * workers, jobs), None)

    def run(self) -> Iterator[State]:
        """Every state that can be reached."""
        while self._open:
            state = self._open.popleft()
            yield state
            possible = list(moves(state))
            known = self._ask(state.redis, {move.call for move in possible if move.call})
            for move in possible:
                self._follow(state, move, *known[move.call])

    def _submit(self, count: int) -> str:
        redis = ""
        for name in NAMES[:count]:
            call = ("submit", name, QUEUE, "", "", "", "0", "", "data", "call")
            _, redis = self._ask(redis, {call})[call]
        return redis

    def _ask(self, redis: str, calls: set[Call]) -> dict[Call, tuple[Any, str]]:
        """What the script replies to each call in this state of Redis, and which state it leaves."""
        known = self._known.setdefault(redis, {(): (None, redis)})
        if new := [call for call in calls if call not in known]:
            for call, (reply, after) in zip(new, json.loads(self._script(args=[redis, json.dumps(new)])), strict=True):
                known[call] = reply, self._texts.setdefault(after, after)
        return known

    def _follow(self, state: State, move: Move, reply: Any, redis: str) -> None:
        try:
            for after in move.then(state._replace(redis=redis), reply):
                self._add(canonical(after), (state, move.name))
        except AssertionError as error:
            way = "\n".join([*self._way_to(state), f"{move.name}: {reply}", redis])
            raise AssertionError(f"{error}\nafter these moves:\n{way}") from error

    def _add(self, state: State, came_from: tuple[State, str] | None) -> None:
        if state in self._came_from:
            return
        if (state.redis, state.jobs) not in self._checked:
            check(state)
            self._checked.add((state.redis, state.jobs))
        self._came_from[state] = came_from
        self._open.append(state)

    def _way_to(self, state: State) -> list[str]:
        steps: list[str] = []
        while (step := self._came_from[state]) is not None:
            state, move = step
            steps.append(move)
        return steps[::-1]


def _source() -> str:
    script = Path(lease.__file__).with_suffix(".lua").read_text()
    return Path(__file__).with_name("explore.lua").read_text().replace("--[[lease.lua]]", script)


@dataclass(frozen=True)
class Bounds:
    workers: int
    jobs: tuple[Job, ...]
    states: int  # fewer: something that happens is no longer tried


PLAIN = Job(keeps_left=0, drains_left=0, strays_left=0)
QUICK = {
    "one job": Bounds(2, (Job(keeps_left=1, drains_left=0, strays_left=0, retries_left=1),), 17_000),
    "one unwanted job": Bounds(2, (Job(keeps_left=1, drains_left=1, strays_left=1, cancels_left=1),), 33_000),
    "two jobs": Bounds(2, (PLAIN, PLAIN), 12_300),
}
FULL = {  # 1, 4 and 3 minutes
    "one unwanted job": Bounds(
        2, (Job(keeps_left=2, drains_left=1, strays_left=1, cancels_left=2, retries_left=1),), 2_072_000
    ),
    "one job": Bounds(2, (Job(keeps_left=2, drains_left=1, strays_left=1, retries_left=1),), 474_000),
    "two jobs": Bounds(2, (PLAIN, Job(keeps_left=1, drains_left=1, strays_left=1)), 1_121_000),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bounds", QUICK)
def test_in_every_state_a_job_is_in_one_place_and_runs_at_most_once(redis_url: str, full: bool, bounds: str) -> None:
    limits = (FULL if full else QUICK)[bounds]
    states = 0
    phases: set[Phase] = set()
    places: set[Place] = set()
    with Redis.from_url(redis_url) as redis:
        for state in Exploration(redis, limits.jobs, limits.workers).run():
            states += 1
            phases.update(worker.phase for worker in state.workers)
            places.update(job.place for job in state.jobs)
    assert phases == set(Phase)
    assert places | {Place.CANCELED} == set(Place)
    assert (Place.CANCELED in places) == any(job.cancels_left for job in limits.jobs)
    assert states >= limits.states
