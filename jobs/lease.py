"""Who may run a job, until when. Each move of a job between queued, claimed and ended is one call of lease.lua.

A lease is held by an attempt, by its number: whatever an attempt writes about its job is refused once the lease is
somebody else's. Times are the Redis server's, so clocks of machines may differ.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from redis import Redis
from redis.exceptions import NoScriptError

from jobs.errors import LeaseLost
from jobs.events import Event
from jobs.operation import Call, Operation, pipeline
from jobs.pieces import KeptPieces

LEASE_S = 60.0
BEATS_A_LEASE = 6  # so that a few may be lost
MOST_CALL_BYTES = 256 * 1024  # of a queued job, compressed
MOST_REASON_LETTERS = 2000  # of what a loss, which stays with its job, is told with
WAKE_CHANNEL = "h3:wake"  # gets the id of each job that is queued
PAUSED_KEY = "h3:paused"  # names of queues of which nothing is taken
LEASES_KEY, DEAD_KEY, QUARANTINE_KEY, LOSSES_KEY = "h3:leases", "h3:dead", "h3:quarantine", "h3:losses:{job_id}"
_SCRIPT = Path(__file__).with_suffix(".lua").read_text()
_SHA1 = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()  # what Redis calls it

Argument = str | bytes | int


class Charge(StrEnum):
    """What an attempt without a result counts as."""

    FATAL = "fatal"  # the third ends the job
    INTERRUPTED = "interrupted"  # it had moved the job forward; the twentieth ends the job
    DRAINED = "drained"  # nothing: its worker was told to stop


class Place(StrEnum):
    """Where a job is after an attempt ended without a result."""

    QUEUED = "queued"
    DEAD = "dead"
    CANCELED = "canceled"  # somebody has asked for it meanwhile


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued job, as somebody has written it there: nothing in it is checked."""

    job_id: str
    queue: str
    problem: str  # why it cannot be read, or empty
    call: bytes
    waited_s: float


@dataclass(frozen=True, slots=True)
class Reaped:
    """What a look at all leases gave."""

    quiet_s: float  # nothing is taken back for so long, because nobody could have kept a lease
    queued: tuple[str, ...]
    dead: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Orders:
    """What is asked of a worker."""

    pause: bool = False  # to take no job
    leave: bool = False  # to end, as by SIGTERM
    cancel: bool = False  # to stop the attempt it runs


def run_script(*arguments: Argument) -> Operation[Any]:
    """Call lease.lua: a command and what it is given."""
    [answer] = yield from run_scripts([arguments])
    return answer


def run_scripts(calls: Sequence[Sequence[Argument]]) -> Operation[list[Any]]:
    """Call lease.lua several times on one way; may be repeated as a whole where each call may."""
    answers: list[Any]
    try:
        answers = yield _send(calls)
    except NoScriptError:  # first, so that nothing was done: the server has restarted, or never heard of it
        yield lambda redis: redis.script_load(_SCRIPT)
        answers = yield _send(calls)
    return answers


def _send(calls: Sequence[Sequence[Argument]]) -> Call:
    return pipeline(*(partial(_evaluate, arguments) for arguments in calls))


def _evaluate(arguments: Sequence[Argument], redis: Any) -> Any:
    return redis.evalsha(_SHA1, 0, *arguments)


class LeaseScript:
    """Calls lease.lua."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self._script = redis.register_script(_SCRIPT)

    def call(self, command: str, *arguments: str | bytes | int, client: Redis | None = None) -> Any:
        return self._script(args=[command, *arguments], client=client)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one attempt to run a job and to speak about it. Every method raises LeaseLost once it is over."""

    job_id: str
    queue: str
    attempt: int
    kept: KeptPieces  # by earlier attempts
    _script: LeaseScript
    _lease_s: float
    worker: str = ""
    nonce: str = ""  # of the claim: no other has it

    def beat(self, redis: Redis | None = None) -> None:
        """Keep it for another period. `redis`: a client of the calling thread's own."""
        self._require(self._call("beat", _ms(self._lease_s), client=redis))

    def seal(self) -> None:
        """The last beat before the result is committed: from here on, an attempt that dies has not been in vain."""
        self._require(self._call("seal", _ms(self._lease_s)))

    def tell(self, *events: Event) -> None:
        """Append news to the job's events."""
        self._require(self._call("tell", *(event.model_dump_json() for event in events)))

    def keep(self, kept: KeptPieces, event: Event) -> None:
        """Record what the next attempt need not do again, and tell of it."""
        self._require(self._call("keep", kept.mark, kept.model_dump_json(), event.model_dump_json()))

    def hand_back(self, charge: Charge, reason: str) -> Place:
        """Put the job back at the head of its queue, or away if it has used up its attempts."""
        place = self._decode(self._call("hand_back", charge, printable(reason)[:MOST_REASON_LETTERS]))
        self._require(place != "lost")
        return Place(place)

    def finish(self, event: Event, result: dict[str, str]) -> None:
        """The job has its result."""
        record = rq_record(self.job_id, "SUCCESSFUL", self.worker, return_value=result)
        self._conclude("finished", "finished", "finished", event, record)

    def fail(self, event: Event, text: str) -> None:
        """The job cannot be done, by anybody."""
        record = rq_record(self.job_id, "FAILED", self.worker, exc_string=printable(text))
        self._conclude("failed", "failed", "failed", event, record)

    def cancel(self, event: Event) -> None:
        """The job is no longer wanted."""
        self._conclude("canceled", "canceled", "canceled", event, [])

    def _conclude(self, outcome: str, status: str, registry: str, event: Event, record: Sequence[str]) -> None:
        reply = self._call("finish", outcome, status, registry, event.model_dump_json(), *record)
        self._require(self._decode(reply) == outcome)

    def _call(self, command: str, *arguments: str | bytes | int, client: Redis | None = None) -> Any:
        return self._script.call(command, self.job_id, self.attempt, *arguments, client=client)

    def _require(self, held: object) -> None:
        if not held:
            raise LeaseLost(f"attempt {self.attempt} of job {self.job_id} no longer holds the lease")

    @staticmethod
    def _decode(reply: bytes) -> str:
        return reply.decode()


class Leases:
    """What a worker or a reaper does with the jobs of one Redis. Safe to share between threads."""

    def __init__(self, redis: Redis, *, lease_s: float = LEASE_S) -> None:
        self._script = LeaseScript(redis)
        self._lease_s = lease_s
        self.beat_s = lease_s / BEATS_A_LEASE

    def peek(self, queues: Sequence[str], first: int, most: int, redis: Redis | None = None) -> list[list[Waiting]]:
        """What waits in each queue, from its head, without taking it."""
        found = self._script.call("peek", first, most, MOST_CALL_BYTES, *queues, client=redis)
        return [
            [
                Waiting(job_id.decode("utf-8", "surrogateescape"), queue, problem.decode(), call, waited_ms / 1000)
                for job_id, problem, call, waited_ms in entries
            ]
            for queue, entries in zip(queues, found, strict=True)
        ]

    def claim(self, waiting: Waiting, worker: str, nonce: str | None = None) -> Lease | None:
        """Take a job and count the attempt; None if somebody else was first, or it is over.

        nonce  of this try: a call whose answer was lost may be repeated with it, and is given what the first one took
        """
        nonce = nonce or uuid4().hex
        outcome, *claimed = self._script.call(
            "claim", waiting.queue, _raw(waiting.job_id), worker, nonce, _ms(self._lease_s)
        )
        if outcome != b"claimed":
            return None
        attempt, kept = claimed
        return Lease(
            waiting.job_id,
            waiting.queue,
            int(attempt),
            KeptPieces.parse(kept),
            self._script,
            self._lease_s,
            worker,
            nonce,
        )

    def read_orders(self, names: Iterable[str], lease: Lease | None, redis: Redis | None = None) -> Orders:
        """What is asked of a worker that goes by these names and runs this."""
        running = ("", "") if lease is None else (lease.job_id, lease.attempt)
        pause, leave, cancel = self._script.call("orders", *running, *names, client=redis)
        return Orders(bool(pause), bool(leave), bool(cancel))

    def make_way(self, job_id: str, worker: str, redis: Redis | None = None) -> bool:
        """Whether this worker is the one to put its job back for a waiting one; it is asked of one only."""
        return bool(self._script.call("make_way", job_id, worker, client=redis))

    def give_up(self, waiting: Waiting, event: Event, text: str, worker: str) -> bool:
        """End a queued job that nobody wants any more; whether it was still queued."""
        record = rq_record(waiting.job_id, "FAILED", worker, exc_string=text)
        return bool(self._script.call("give_up", waiting.queue, waiting.job_id, event.model_dump_json(), *record))

    def quarantine(self, waiting: Waiting, reason: str, event: Event, worker: str) -> None:
        """Put away what is no job of ours."""
        record = rq_record(waiting.job_id, "FAILED", worker, exc_string=reason)
        self._script.call(
            "quarantine",
            waiting.queue,
            _raw(waiting.job_id),
            reason[:MOST_REASON_LETTERS],
            event.model_dump_json(),
            *record,
        )

    def reap(self, redis: Redis | None = None) -> Reaped:
        """Take back every job whose lease has run out. Raises RedisError."""
        client = redis or self._script.redis
        run_id = client.info("server")["run_id"]  # another one: the server has restarted
        quiet_ms, queued, dead = self._script.call(
            "reap", _ms(self._lease_s), _ms(2 * self.beat_s), run_id, client=redis
        )
        return Reaped(quiet_ms / 1000, tuple(_texts(queued)), tuple(_texts(dead)))

    def sweep(self, queues: Iterable[str], redis: Redis | None = None) -> int:
        """Remove RQ's records of runs that are over; how many there were."""
        return int(self._script.call("sweep", *queues, client=redis))

    def retry_dead(self, job_id: str) -> bool:
        """Queue a dead or failed job again with all its attempts; whether there was one."""
        return bool(self._script.call("retry_dead", job_id))

    def drop_dead(self, job_id: str) -> bool:
        """Forget a dead or quarantined job; whether there was one."""
        return bool(self._script.call("drop_dead", job_id))


def rq_record(job_id: str, kind: Literal["SUCCESSFUL", "FAILED"], worker: str, **content: Any) -> list[str]:
    """RQ's record of a job's end, as fields and values of its stream."""
    from rq.results import Result  # here, because clients import this file and end no job
    from rq.serializers import JSONSerializer

    record = Result(job_id, Result.Type[kind], None, worker_name=worker, serializer=JSONSerializer, **content)  # type: ignore[arg-type]  # no connection is needed
    return [str(part) for pair in record.serialize().items() for part in pair]


def printable(text: str) -> str:
    """With half characters, which a file name or JSON may hold and nothing can write, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _raw(job_id: str) -> bytes:
    """An id as it is in Redis: whoever pushes rubbish there need not keep to UTF-8."""
    return job_id.encode("utf-8", "surrogateescape")


def _texts(replies: Iterable[bytes]) -> Iterable[str]:
    return (reply.decode("utf-8", "surrogateescape") for reply in replies)
