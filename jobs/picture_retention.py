"""Which pictures of requests `h3render gc` removes: those that are old and that no job in Redis names.

A job's record stays as long as the job may run, also by a retry, so no job loses a picture that it needs. Somebody may
name an old one while we look: who puts it there anew, as `h3render submit` does, keeps it; who only names it may lose
it, and the job fails and says so. A submit that finds a young picture writes nothing and queues its job a moment later:
so none goes before it is `LEAST_AGE` old, whatever age is asked for.
"""

import json
import zlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import cast

from redis import Redis

from jobs.pictures import REWRITTEN_AFTER
from jobs.request import INPUTS, PICTURE_KEY
from jobs.retention import Deletion, Finding, What, say_age
from jobs.store import ListedObject, Store

LEAST_AGE = 2 * REWRITTEN_AFTER  # one more, for whoever has found it there to queue the job
_MOST_CALL_BYTES = 1 << 20  # decompressed; a worker reads no longer one
_RECORDS_AT_ONCE = 500


def find_pictures(redis: Redis, store: Store, age: timedelta, now: datetime) -> Iterator[Finding]:
    """Those of at least this age, and of at least LEAST_AGE. Raises StoreUnavailable and RedisError."""
    age = max(age, LEAST_AGE)
    old = [
        found
        for found in store.scan(f"{INPUTS}/")
        if PICTURE_KEY.fullmatch(found.key) and now - found.modified_at > age
    ]
    named = _named_by_jobs(redis) if old else set()
    for found in old:
        if found.key not in named:
            reason = f"older than {say_age(age)}, and no job names it"
            deletion = Deletion(What.PICTURE, found.key, found.size_bytes, reason)
            yield Finding([deletion], partial(_remove, store, found))


def _remove(store: Store, seen: ListedObject) -> bool:
    if store.find(seen.key) != seen:
        return False
    store.delete(seen.key)
    return True


def _named_by_jobs(redis: Redis) -> set[str]:
    """The keys in the requests of all jobs that have a record."""
    keys, named = redis.scan_iter(match="rq:job:*", count=_RECORDS_AT_ONCE, _type="hash"), set[str]()
    while some := list(islice(keys, _RECORDS_AT_ONCE)):
        with redis.pipeline(transaction=False) as pipeline:
            for key in some:
                pipeline.hget(key, "data")
            for call in cast("list[bytes | None]", pipeline.execute()):
                named |= _named_in(call or b"")
    return named


def _named_in(call: bytes) -> set[str]:
    """The keys in a call as RQ writes it, whatever their fields are called; none in what no worker would run."""
    try:
        keywords = json.loads(zlib.decompressobj().decompress(call, _MOST_CALL_BYTES))[3]
        values = [value for value in keywords["request"].values() if isinstance(value, str)]
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError, zlib.error):
        return set()
    return {value for value in values if PICTURE_KEY.fullmatch(value)}
