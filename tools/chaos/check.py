"""Looks at a farm that has come to rest: was any job lost, doubled or spoiled?

Reads Redis and store with plain clients, and shares no code with the farm: what keys and objects mean is written here
a second time, on purpose.

python tools/chaos/check.py LEDGER.json --redis redis://... --store s3://bucket/prefix

The ledger names each job, the request that it is for, and for each request a job that nothing disturbed. Prints JSON;
exit code 1 if anything is wrong.
"""

import hashlib
import json
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol, Self
from urllib.parse import unquote, urlsplit

import typer
from redis import Redis

JOB_PREFIX = "rq:job:"
LEASES, DEAD, QUARANTINE = "h3:leases", "h3:dead", "h3:quarantine"
SUBMITTED = b"h3:submitted"
RESULT_NAME, PLAYLIST_END = "result.json", "#EXT-X-ENDLIST"
SUCCESSFUL = b"1"  # of RQ's records of a job's end
ENDS = ("finished", "failed", "dead")  # kinds of a job's last event
NAMED = ("video_key", "report_key", "playlist_key")  # in a result
MOST_FATAL, MOST_INTERRUPTIONS = 3, 20


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was asked for."""

    requests: Mapping[str, Mapping[str, object]]  # by name
    undisturbed: Mapping[str, str]  # job id by name of the request
    jobs: Mapping[str, str]  # name of the request by job id

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    def all_jobs(self) -> dict[str, str]:
        return {**{job_id: name for name, job_id in self.undisturbed.items()}, **self.jobs}


class Kind(StrEnum):
    LOST = "lost"  # neither a result nor a dead letter
    DOUBLE = "double"  # two ends, two places, two runs at once
    WRONG = "wrong"  # something is not as it is told, or not as it was rendered undisturbed


Finding = tuple[Kind, str]


# --- the store


class Objects(Protocol):
    def all_keys(self) -> list[str]: ...
    def read(self, key: str) -> bytes | None:
        """None if there is no such object."""


class Folder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def all_keys(self) -> list[str]:
        return [path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file()]

    def read(self, key: str) -> bytes | None:
        path = self._root / key
        return path.read_bytes() if path.is_file() else None


class Bucket:
    def __init__(self, bucket: str, prefix: str) -> None:
        import boto3
        from botocore.config import Config

        config = Config(s3={"addressing_style": "path"}, retries={"mode": "standard"})
        self._s3 = boto3.client("s3", region_name="us-east-1", config=config)
        self._bucket, self._prefix = bucket, prefix

    def all_keys(self) -> list[str]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
        return [entry["Key"].removeprefix(self._prefix) for page in pages for entry in page.get("Contents", [])]

    def read(self, key: str) -> bytes | None:
        try:
            return self._s3.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"].read()
        except self._s3.exceptions.NoSuchKey:
            return None


def open_objects(url: str) -> Objects:
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return Bucket(parts.netloc, parts.path.strip("/") + "/")
    return Folder(Path(unquote(parts.path)))


# --- Redis


@dataclass(slots=True)
class Record:
    """What Redis says of one job."""

    fields: dict[str, str]
    places: list[str]  # each list that it is in, once for each time
    events: list[dict[str, Any]]
    losses: list[dict[str, Any]]
    successes: int  # RQ's records of one

    @property
    def outcome(self) -> str:
        return self.fields.get("h3_outcome", "")

    @property
    def attempts(self) -> int:
        return int(self.fields.get("h3_attempts", 0))

    @property
    def story(self) -> str:
        told = self.events[-1]["kind"] if self.events else "nothing"
        return f"status {self.fields.get('status')!r}, outcome {self.outcome!r}, last told: {told}, in {self.places}"


def read_records(redis: Redis, job_ids: Iterable[str]) -> dict[str, Record]:
    places = find_places(redis)
    return {job_id: read_record(redis, job_id, places[job_id]) for job_id in job_ids}


def find_jobs(redis: Redis) -> set[str]:
    return {key.decode().removeprefix(JOB_PREFIX) for key in redis.scan_iter(f"{JOB_PREFIX}*", count=1000)}


def read_record(redis: Redis, job_id: str, places: list[str]) -> Record:
    fields = redis.hgetall(JOB_PREFIX + job_id)
    return Record(
        {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()},
        places,
        [json.loads(entry[b"event"]) for _, entry in redis.xrange(f"h3:events:{job_id}")],
        [json.loads(loss) for loss in redis.lrange(f"h3:losses:{job_id}", 0, -1)],
        sum(entry[b"type"] == SUCCESSFUL for _, entry in redis.xrange(f"rq:results:{job_id}")),
    )


def find_places(redis: Redis) -> dict[str, list[str]]:
    """In which lists and registries each id is, whatever those are called, but the list of all submits."""
    found: dict[str, list[str]] = defaultdict(list)
    for key in sorted(set(redis.scan_iter(count=1000)) - {SUBMITTED}):
        for member in read_members(redis, key):
            found[member.decode("utf-8", "replace").partition(":")[0]].append(key.decode())  # or id:attempt
    return found


def read_members(redis: Redis, key: bytes) -> list[bytes]:
    match redis.type(key):
        case b"list":
            return list(redis.lrange(key, 0, -1))
        case b"zset":
            return list(redis.zrange(key, 0, -1))
        case b"set":
            return list(redis.smembers(key))
        case b"hash" if key == QUARANTINE.encode():
            return list(redis.hkeys(key))
    return []


# --- one job


def examine_end(job_id: str, record: Record, results: Sequence[str]) -> Iterator[Finding]:
    """Exactly one result.json, or one dead letter with reasons."""
    is_dead = DEAD in record.places or record.outcome == "dead"
    if not results and not is_dead:
        yield Kind.LOST, f"neither result nor dead letter: {record.story}"
    if results and is_dead:
        yield Kind.DOUBLE, f"a dead letter besides {results}"
    if len(results) > 1:
        yield Kind.DOUBLE, f"{len(results)} results: {results}"
    if results and results[0] != f"{job_id}/{RESULT_NAME}":
        yield Kind.WRONG, f"its result is {results[0]}"
    if results and not is_dead and record.outcome != "finished":
        yield Kind.WRONG, f"a result, but {record.story}"
    if is_dead:
        yield from examine_dead_letter(record)


def examine_dead_letter(record: Record) -> Iterator[Finding]:
    kinds = Counter(loss.get("kind") for loss in record.losses)
    if kinds["fatal"] != MOST_FATAL and kinds["interrupted"] != MOST_INTERRUPTIONS:
        yield Kind.WRONG, f"dead after {dict(kinds)}"
    if not all(loss.get("reason") for loss in record.losses):
        yield Kind.WRONG, f"dead without a reason: {record.losses}"


def examine_places(record: Record) -> Iterator[Finding]:
    """A job that has ended is in the registry of its end, once, and nowhere else."""
    queue = record.fields.get("origin")
    expected = {"finished": [f"rq:finished:{queue}"], "dead": [DEAD, f"rq:failed:{queue}"]}.get(record.outcome, [])
    if surplus := Counter(record.places) - Counter(expected):
        yield Kind.DOUBLE, f"ended as {record.outcome!r} and still in {sorted(surplus.elements())}"
    if missing := Counter(expected) - Counter(record.places):
        yield Kind.WRONG, f"ended as {record.outcome!r}, but not in {sorted(missing)}"


def examine_telling(record: Record) -> Iterator[Finding]:
    """Attempts one after the other, and one end, after which nothing comes."""
    kinds = [event["kind"] for event in record.events]
    started = [event["attempt"] for event in record.events if event["kind"] == "started"]
    ends = [kind for kind in kinds if kind in ENDS]
    if len(ends) > 1:
        yield Kind.DOUBLE, f"its end was told {len(ends)} times: {ends}"
    elif ends and kinds[-1] not in ENDS:
        yield Kind.DOUBLE, f"after its end came {kinds[kinds.index(ends[0]) + 1 :]}"
    elif record.outcome and ends != [record.outcome]:
        yield Kind.WRONG, f"outcome {record.outcome!r}, but told was {ends}"
    if len(set(started)) < len(started):
        yield Kind.DOUBLE, f"attempts {started} were started"
    elif started != list(range(1, record.attempts + 1)):
        yield Kind.WRONG, f"{record.attempts} attempts, but {started} were started"
    if record.successes != (record.outcome == "finished"):
        kind = Kind.DOUBLE if record.successes > 1 else Kind.WRONG
        yield kind, f"outcome {record.outcome!r}, and {record.successes} successes recorded"


# --- its result


@dataclass(frozen=True, slots=True)
class Published:
    """A result, and all that it names as it lies in the store."""

    job_id: str
    result: dict[str, Any]
    bodies: dict[str, bytes | None]  # by key

    @classmethod
    def read(cls, objects: Objects, job_id: str) -> Self:
        result = json.loads(objects.read(f"{job_id}/{RESULT_NAME}") or b"")
        keys = [piece["key"] for piece in result["pieces"]]
        keys += [result[name] for name in NAMED if result[name] not in keys]
        return cls(job_id, result, {key: objects.read(key) for key in keys})

    def report(self) -> dict[str, Any]:
        return dict(json.loads(self.bodies[self.result["report_key"]] or b""))

    def playlist(self) -> list[str]:
        return (self.bodies[self.result["playlist_key"]] or b"").decode().splitlines()

    def durations(self) -> list[str]:
        """Of the segments, in their order."""
        return [line for line in self.playlist() if line.startswith("#EXTINF")]


def examine_pieces(published: Published) -> Iterator[Finding]:
    """Each is there as it was written, and of this job."""
    for piece in published.result["pieces"]:
        body = published.bodies[piece["key"]]
        if body is None:
            yield Kind.WRONG, f"{piece['key']} is missing"
        elif (len(body), hashlib.sha256(body).hexdigest()) != (piece["size_bytes"], piece["sha256"]):
            yield Kind.WRONG, f"{piece['key']} differs: {len(body)} bytes, and the result says {piece}"
        if not piece["key"].startswith(f"{published.job_id}/attempts/"):
            yield Kind.WRONG, f"{piece['key']} is of another job"
    listed = {piece["key"] for piece in published.result["pieces"]}
    if unlisted := published.bodies.keys() - listed:
        yield Kind.WRONG, f"named, but with no checksum: {sorted(unlisted)}"


def examine_playlist(published: Published) -> Iterator[Finding]:
    lines = published.playlist()
    if PLAYLIST_END not in lines:
        yield Kind.WRONG, "its playlist has no end"
    folder = posixpath.dirname(published.result["playlist_key"])
    uris = re.findall(r'^(?:#EXT-X-MAP:URI="([^"]+)".*|([^#].*))$', "\n".join(lines), re.MULTILINE)
    keys = {posixpath.normpath(posixpath.join(folder, header or segment)) for header, segment in uris}
    if strange := keys - published.bodies.keys():
        yield Kind.WRONG, f"its playlist names {sorted(strange)}, which the result does not"


def examine_claims(published: Published, record: Record, request: Mapping[str, object]) -> Iterator[Finding]:
    """The result is of this job, this request, and the attempt that was told."""
    result = published.result
    if result["job_id"] != published.job_id:
        yield Kind.WRONG, f"its result is of job {result['job_id']}"
    if differing := {name for name, value in request.items() if result["request"].get(name) != value}:
        yield Kind.WRONG, f"its result is of another request: {sorted(differing)}"
    told = [event["attempt"] for event in record.events if event["kind"] == "finished"]
    if told not in ([], [result["attempt"]]):
        yield Kind.WRONG, f"its result is of attempt {result['attempt']}, and told was {told}"


def examine_render(published: Published, reference: Published) -> Iterator[Finding]:
    """Bit for bit what came out undisturbed."""
    ours, theirs = published.report()["latents_sha256"], reference.report()["latents_sha256"]
    if not (ours["video"] and ours["audio"] and ours == theirs):
        yield Kind.WRONG, f"its latents differ (resumed: {published.report()['resumed']}): {ours}, undisturbed {theirs}"
    if published.durations() != reference.durations():
        yield Kind.WRONG, f"its segments are {published.durations()}, undisturbed {reference.durations()}"


def examine_result(shelf: "Shelf", job_id: str, record: Record, ledger: Ledger, name: str) -> Iterator[Finding]:
    try:
        published = shelf.published(job_id)
        yield from examine_pieces(published)
        yield from examine_playlist(published)
        yield from examine_claims(published, record, ledger.requests[name])
        yield from examine_render(published, shelf.published(ledger.undisturbed[name]))
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        yield Kind.WRONG, f"its result, or the undisturbed one, cannot be followed: {exc!r}"


# --- all


class Shelf:
    """The results in a store, each read once."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._published: dict[str, Published] = {}

    def published(self, job_id: str) -> Published:
        if job_id not in self._published:
            self._published[job_id] = Published.read(self._objects, job_id)
        return self._published[job_id]

    def find_results(self) -> dict[str, list[str]]:
        """Keys of everything that is called a result, by job id."""
        found: dict[str, list[str]] = defaultdict(list)
        for key in self._objects.all_keys():
            if posixpath.basename(key) == RESULT_NAME:
                found[key.partition("/")[0]].append(key)
        return found

    def bodies(self) -> list[bytes]:
        return [body for each in self._published.values() for body in each.bodies.values() if body is not None]


@dataclass(slots=True)
class Verdict:
    findings: dict[Kind, list[str]] = field(default_factory=lambda: {kind: [] for kind in Kind})
    counts: dict[str, int] = field(default_factory=dict)  # of what was looked at
    dead: dict[str, list[str]] = field(default_factory=dict)  # reasons by job id

    def is_clean(self) -> bool:
        return not any(self.findings.values())

    def add(self, job_id: str, findings: Iterable[Finding]) -> None:
        for kind, text in findings:
            self.findings[kind].append(f"{job_id}: {text}")


def check(redis: Redis, objects: Objects, ledger: Ledger) -> Verdict:
    verdict, jobs, shelf = Verdict(), ledger.all_jobs(), Shelf(objects)
    records, results = read_records(redis, jobs), shelf.find_results()
    for job_id, name in jobs.items():
        record = records[job_id]
        verdict.add(job_id, examine_end(job_id, record, results[job_id]))
        verdict.add(job_id, examine_places(record))
        verdict.add(job_id, examine_telling(record))
        if results[job_id]:
            verdict.add(job_id, examine_result(shelf, job_id, record, ledger, name))
        if job_id not in ledger.jobs and record.attempts != 1:
            verdict.add(job_id, [(Kind.WRONG, f"the undisturbed run of {name} was disturbed")])
    for job_id in (results.keys() | find_jobs(redis)) - jobs.keys():
        verdict.add(job_id, [(Kind.DOUBLE, "nobody has asked for it")])
    count(verdict, shelf, {job_id: records[job_id] for job_id in ledger.jobs})
    return verdict


def count(verdict: Verdict, shelf: Shelf, records: Mapping[str, Record]) -> None:
    finished = [job_id for job_id, record in records.items() if record.outcome == "finished"]
    verdict.dead = {
        job_id: [str(loss.get("reason")) for loss in record.losses]
        for job_id, record in records.items()
        if record.outcome == "dead"
    }
    bodies = shelf.bodies()
    verdict.counts = {
        "jobs": len(records),
        "finished": len(finished),
        "dead": len(verdict.dead),
        "retried": sum(record.attempts > 1 for record in records.values()),
        "resumed": sum(is_resumed(shelf, job_id) for job_id in finished),
        "objects": len(bodies),
        "bytes": sum(map(len, bodies)),
    }


def is_resumed(shelf: Shelf, job_id: str) -> bool:
    with suppress(ValueError, LookupError):  # a result that is broken is told of already
        return shelf.published(job_id).report()["resumed"] is not None
    return False


def main(
    ledger: Annotated[Path, typer.Argument(help="What was asked for, as tools/chaos writes it.")],
    redis: Annotated[str, typer.Option(help="URL of the queue.")],
    store: Annotated[str, typer.Option(help="file:///folder or s3://bucket/prefix.")],
) -> None:
    """Say as JSON what was lost, doubled or spoiled. Exit code 1 if anything was."""
    with Redis.from_url(redis) as client:
        verdict = check(client, open_objects(store), Ledger.read(ledger))
    typer.echo(json.dumps({**verdict.findings, "counts": verdict.counts, "dead_letters": verdict.dead}, indent=1))
    raise typer.Exit(0 if verdict.is_clean() else 1)


if __name__ == "__main__":
    typer.run(main)
