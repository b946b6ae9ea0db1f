"""What `h3render gc` looks at, and how it tells of it: each thing, or a table of how much of what goes, and why."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import typer
from redis import Redis

from jobs.errors import RedisUnavailable
from jobs.leftovers import find_in_redis, find_in_spool, find_in_store
from jobs.picture_retention import find_pictures
from jobs.retention import Ages, Deletion, Finding, JobCollector, RetentionScript, What
from jobs.store import Store
from jobs.workers import server_time


def find_all(redis: Redis, store: Store, spool: Path, ages: Ages) -> Iterator[Finding]:
    """Everything that may go. Raises RedisUnavailable, RedisError, StoreUnavailable."""
    require_farm(redis)
    script, now = RetentionScript(redis), earlier_now(redis)
    yield from JobCollector(store, script, ages, now).look()
    yield from find_pictures(redis, store, ages.results, now)
    yield from find_in_store(store, ages.pieces, now)
    yield from find_in_spool(spool, ages.pieces, now)
    yield from find_in_redis(redis, script)


def require_farm(redis: Redis) -> None:
    """Raises RedisUnavailable for a Redis in which all jobs of the store would look forgotten."""
    if not redis.exists("rq:queues", "h3:beacon"):
        raise RedisUnavailable(
            "this Redis has never seen a job or a worker, so it cannot tell whose pieces are still needed: "
            "name the one of the farm in REDIS_URL"
        )


def earlier_now(redis: Redis) -> datetime:
    """By Redis's clock or by ours: one that is fast must not make anything old."""
    return min(datetime.fromtimestamp(server_time(redis), UTC), datetime.now(UTC))


class Report:
    """Tells what goes, on stdout, and what is left alone, on stderr."""

    def __init__(self, *, deletes: bool, verbose: bool, as_json: bool) -> None:
        self._deletes, self._verbose, self._as_json = deletes, verbose, as_json
        self._count: Counter[tuple[What, str]] = Counter()
        self._bytes: Counter[tuple[What, str]] = Counter()

    def carry_out(self, findings: Iterable[Finding]) -> None:
        """Delete, if that is wanted, and tell; of what was deleted also if it breaks off."""
        try:
            for finding in findings:
                self._take(finding)
        finally:
            if self._count and not self._as_json:
                self._print_table()
        if not self._count and not self._as_json:
            typer.echo("nothing to delete")

    def _take(self, finding: Finding) -> None:
        if finding.left_alone:
            self._tell_left_alone(finding.left_alone)
        elif self._deletes and not finding.remove():
            self._tell_left_alone(f"{finding.deletions[0].name}: something has happened since the look at it")
        else:
            for deletion in finding.deletions:
                self._tell(deletion)

    def _tell(self, deletion: Deletion) -> None:
        kind = deletion.what, deletion.reason
        self._count[kind] += 1
        self._bytes[kind] += deletion.size_bytes
        if self._as_json:
            typer.echo(json.dumps(asdict(deletion) | {"deleted": self._deletes}))
        elif self._verbose:
            typer.echo(f"{ascii(deletion.name)[1:-1]}  {deletion.size_bytes:,}  {deletion.reason}")

    def _tell_left_alone(self, reason: str) -> None:
        if self._as_json:
            typer.echo(json.dumps({"left_alone": reason}))
        else:
            typer.echo(f"left alone: {reason}", err=True)

    def _print_table(self) -> None:
        typer.echo(f"{'what':<16} {'how many':>10} {'bytes':>19}  reason")
        for (what, reason), count in sorted(self._count.items()):
            typer.echo(f"{what:<16} {count:>10,} {self._bytes[what, reason]:>19,}  {reason}")
        typer.echo("deleted" if self._deletes else "a dry run: nothing was deleted; --yes deletes")
