"""A batch: many renders under one name, queued once however often they are submitted.

Its record in Redis says which rows it has and which job each became, so that it can be told of when the file is gone:
for sixty days after the last command that reads or writes it, and so longer than its jobs, whose records stay for
thirty. A row is known by its name, one without by what it asks for: another row may be put before it.

Rows are recorded before their jobs are queued, and their jobs after. If a submit is broken off in between, the jobs'
idempotency keys tell which rows have one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from pydantic import BaseModel, ConfigDict, ValidationError
from redis import Redis
from redis.client import Pipeline

from jobs.batch.chunks import ROWS_A_CALL, in_chunks
from jobs.client import Client
from jobs.connection import redis_errors
from jobs.errors import BatchInvalid, JobNotFound, KeyConflict, RedisUnavailable
from jobs.in_words import say_count
from jobs.shots.check import Shot
from jobs.submission import Outcome, Submission, digest_of, redis_key_of
from jobs.workers import server_time

BATCH_KEY = "h3:batch:{name}"  # identity of a row -> BatchRow
BATCHES_KEY = "h3:batches"  # name -> when it was last submitted, seconds since 1970
KEPT_S = 60 * 24 * 3600  # since the last command
MOST_SHOWN = 20  # rows in a message
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)  # also of a folder, so not `..`
_NEVER = datetime(2100, 1, 1, tzinfo=UTC).timestamp()


class BatchRow(BaseModel):
    """One row, and the job that renders it."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # a later version may say more

    order: int  # in the file, from 0
    line: int
    label: str
    job_id: str  # empty: it is not queued
    digest: str  # of its request and queue; empty if an earlier version has found another one's job in its place


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row of the file."""

    order: int
    identity: str
    submission: Submission
    digest: str  # of that
    shot: Shot
    known_job: str = ""  # that was queued for it before

    def record(self, job_id: str) -> BatchRow:
        return BatchRow(order=self.order, line=self.shot.line, label=self.shot.label, job_id=job_id, digest=self.digest)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a file comes to, before anything is queued."""

    rows: tuple[PlannedRow, ...]
    gone: int  # rows of the batch that the file no longer has; their jobs stay
    never_queued: tuple[str, ...] = ()  # identities of such rows without a job: forgotten by the next submit


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """What became of a row."""

    row: BatchRow
    outcome: Outcome  # in a conflict, the job is the one that stands in its place


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One batch of the list."""

    name: str
    submitted_at: datetime

    def to_dict(self) -> dict[str, object]:
        return {"batch": self.name, "submitted_at": self.submitted_at.isoformat(timespec="seconds")}


class Batch:
    """One batch of one Redis. Raises BatchInvalid for a wrong name."""

    def __init__(self, redis: Redis, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise BatchInvalid(
                f"{name!a} is not a batch's name: write 1 to 100 letters, digits and . _ -, "
                "the first one a letter, a digit or _"
            )
        self.name = name
        self._redis = redis
        self._key = BATCH_KEY.format(name=name)

    def rows(self) -> list[BatchRow]:
        """All that were ever submitted, in the order of the file; keeps their record for another sixty days.

        Raises JobNotFound for a batch that nobody knows.
        """
        found = self.peek()
        if not found:
            raise JobNotFound(
                f"no batch {self.name}: see `h3render batch list`; records stay {KEPT_S // 86400} days after the last "
                "command that reads them"
            )
        with redis_errors(), self._redis.pipeline() as pipeline:
            self._renew(pipeline)
            pipeline.execute()
        return found

    def peek(self) -> list[BatchRow]:
        """The same, and nothing is kept longer for it."""
        return sorted(self._read().values(), key=lambda row: (row.order, row.line))

    def count(self) -> int:
        """How many rows there are."""
        with redis_errors():
            return self._redis.hlen(self._key)

    def plan(self, shots: Iterable[Shot], *, may_add: bool = False) -> Plan:
        """What a file comes to. Raises KeyConflict for rows that have changed since they were queued.

        may_add  also if the file has no row of those that the batch has: else BatchInvalid, for then every row would
                 be rendered a second time, with another `--steps` perhaps that was only forgotten
        """
        recorded = self._read()
        rows = tuple(self._identify(shots, recorded))
        if changed := [row for row in rows if _has_changed(row, recorded)]:
            told = [row.record(recorded[row.identity].job_id) for row in changed]
            raise KeyConflict(f"nothing was queued: {explain_conflicts(self.name, told)}")
        gone = recorded.keys() - {row.identity for row in rows}
        never_queued = tuple(identity for identity in gone if not recorded[identity].job_id)
        queued = sum(bool(row.job_id) for row in recorded.values())
        plan = Plan(rows, len(gone) - len(never_queued), never_queued)
        if plan.gone and plan.gone == queued and not may_add:
            raise BatchInvalid(
                f"nothing was queued: of the {say_count(queued, 'row')} of batch {self.name} none is in this file, so "
                f"{say_count(len(rows), 'row')} would be rendered besides; give the options of the last time, or "
                "another --name, or --add if that is meant"
            )
        return plan

    def queue(self, plan: Plan, client: Client) -> Iterator[QueuedRow]:
        """Queue what is new and record all: what became of each row, as soon as that is recorded.

        Raises RedisUnavailable. Wherever it is broken off, the next time does the rest.
        """
        if plan.never_queued:
            with redis_errors():
                self._redis.hdel(self._key, *plan.never_queued)
        for chunk in in_chunks(plan.rows, ROWS_A_CALL):
            new = [row for row in chunk if not row.known_job]
            self._write({row.identity: row.record("") for row in new}, only_new=True)
            replies = client.submit_many([row.submission for row in new])
            queued = {row.identity: reply for row, reply in zip(new, replies, strict=True)}
            done = [
                QueuedRow(row.record(reply.job_id), reply.outcome)
                if (reply := queued.get(row.identity))
                else QueuedRow(row.record(row.known_job), Outcome.KNOWN)
                for row in chunk
            ]
            rows = zip(chunk, done, strict=True)
            # In a conflict the record is another's, or ours and still without a job: then the key tells whose it is.
            self._write({row.identity: each.row for row, each in rows if each.outcome is not Outcome.CONFLICT})
            yield from done

    def _identify(self, shots: Iterable[Shot], recorded: Mapping[str, BatchRow]) -> Iterator[PlannedRow]:
        seen: Counter[str] = Counter()
        for order, shot in enumerate(shots):
            digest = digest_of(Submission(shot.request, shot.queue))
            if shot.is_named:
                identity = f"name {shot.label}"
            else:
                seen[digest] += 1
                identity = f"content {digest} {seen[digest]}"
            before = recorded.get(identity)
            known_job = before.job_id if before is not None and before.digest else ""
            submission = Submission(shot.request, shot.queue, self._idempotency_key(identity))
            yield PlannedRow(order, identity, submission, digest, shot, known_job)

    def _idempotency_key(self, identity: str) -> str:
        return f"batch {self.name} {identity}"

    # --- in Redis

    def _write(self, rows: Mapping[str, BatchRow], *, only_new: bool = False) -> None:
        texts = {identity: row.model_dump_json() for identity, row in rows.items()}
        with redis_errors(), self._redis.pipeline() as pipeline:
            write = pipeline.hsetnx if only_new else pipeline.hset
            for identity, text in texts.items():
                write(self._key, identity, text)
            pipeline.zadd(BATCHES_KEY, {self.name: server_time(self._redis)})
            self._renew(pipeline)
            pipeline.execute()

    def _renew(self, pipeline: Pipeline) -> None:
        """Both keep each other company: a batch without its place in the list could not be found."""
        pipeline.expire(self._key, KEPT_S)
        pipeline.expire(BATCHES_KEY, KEPT_S)

    def _read(self) -> dict[str, BatchRow]:
        with redis_errors():
            told = cast(dict[bytes, bytes], self._redis.hgetall(self._key))
        rows = {identity.decode("utf-8", "replace"): self._parse(text) for identity, text in told.items()}
        open_ends = {identity: row for identity, row in rows.items() if not (row.job_id and row.digest)}
        return rows | self._find_jobs(open_ends)

    def _find_jobs(self, rows: Mapping[str, BatchRow]) -> dict[str, BatchRow]:
        """Rows whose jobs nobody has recorded, by these jobs' keys."""
        with redis_errors(), self._redis.pipeline(transaction=False) as pipeline:
            for identity in rows:
                pipeline.hmget(redis_key_of(self._idempotency_key(identity)), "job", "digest")
            answers = pipeline.execute()
        return {
            identity: row.model_copy(update={"job_id": job_id.decode(), "digest": digest.decode()})
            for (identity, row), (job_id, digest) in zip(rows.items(), answers, strict=True)
            if job_id and digest
        }

    def _parse(self, text: bytes) -> BatchRow:
        try:
            return BatchRow.model_validate_json(text)
        except ValidationError as exc:  # to leave it out would make every figure wrong
            raise RedisUnavailable(
                f"{self._key} has a row that cannot be read ({text[:100]!a}): a later version may have written it"
            ) from exc


def list_batches(redis: Redis) -> list[BatchEntry]:
    """All that are known, the oldest first."""
    with redis_errors():
        listed = cast(list[tuple[bytes, float]], redis.zrange(BATCHES_KEY, 0, -1, withscores=True))
        with redis.pipeline(transaction=False) as pipeline:
            for name, _ in listed:
                pipeline.hlen(BATCH_KEY.format(name=name.decode("utf-8", "replace")))
            sizes = pipeline.execute()
        if expired := [name for (name, _), size in zip(listed, sizes, strict=True) if not size]:
            redis.zrem(BATCHES_KEY, *expired)
    return [
        BatchEntry(name.decode("utf-8", "replace"), datetime.fromtimestamp(min(max(at, 0.0), _NEVER), UTC))
        for (name, at), size in zip(listed, sizes, strict=True)
        if size and _NAME.fullmatch(name.decode("utf-8", "replace"))
    ]


def explain_conflicts(batch: str, rows: Sequence[BatchRow]) -> str:
    """Lines that name each row whose job was queued for something else, and the remedy."""
    lines = [f"line {row.line}, {row.label!r}: job {row.job_id}" for row in rows[:MOST_SHOWN]]
    if len(rows) > MOST_SHOWN:
        lines.append(f"and {len(rows) - MOST_SHOWN} more")
    head = f"{len(rows)} of the rows had the same name in batch {batch} before, and asked for something else"
    return "\n".join([head, *lines, "give a changed row another name, or submit the file as another batch"])


def _has_changed(row: PlannedRow, recorded: Mapping[str, BatchRow]) -> bool:
    """A row that is not queued may still change."""
    before = recorded.get(row.identity)
    return before is not None and bool(before.job_id and before.digest) and before.digest != row.digest
