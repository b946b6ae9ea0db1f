"""What processes that died have left beside the output of jobs: in the store, on a worker's disk, in Redis."""

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path

from redis import Redis

from jobs.lease import DEAD_KEY, QUARANTINE_KEY
from jobs.retention import PROBE, Deletion, Finding, RetentionScript, What, job_of, say_age
from jobs.store import TEMPORARY_PREFIX, Store

# As tempfile names them. One of digits alone may be an embedded Redis's, which is called by a user's number.
_SPOOL_FOLDER = re.compile(r"h3render-(?![0-9]+$)[a-z0-9_]{8}")
_NAMES_A_CALL = 500  # of a script, which blocks the server


def find_in_store(store: Store, age: timedelta, now: datetime) -> Iterator[Finding]:
    """Probes of a check that was cut off, and writes that were. Raises StoreUnavailable."""
    reason = f"older than {say_age(age)}"
    for probe in store.scan("probe-"):
        if PROBE.fullmatch(probe.key) and now - probe.modified_at > age:
            deletion = Deletion(What.PROBE, probe.key, probe.size_bytes, reason)
            yield Finding([deletion], partial(_carry_out, partial(store.delete, probe.key)))
    for write in store.scan_unfinished():
        if _is_ours(write.key) and now - write.modified_at > age:
            deletion = Deletion(What.UNFINISHED, write.key, write.size_bytes, reason)
            yield Finding([deletion], partial(_carry_out, partial(store.drop_unfinished, write)))


def _is_ours(key: str) -> bool:
    """Whether we would write there: a bucket may be shared with other programs."""
    name = key.rpartition("/")[2]
    return bool(job_of(key) or PROBE.fullmatch(key)) or name.startswith(TEMPORARY_PREFIX)


def _carry_out(act: Callable[[], None]) -> bool:
    act()
    return True


# --- on a worker's disk


def find_in_spool(spool: Path, age: timedelta, now: datetime) -> Iterator[Finding]:
    """Folders of attempts whose worker was killed: of this user, old, and locked by no process.

    A worker that lives is known by its lock on the folder, or else by what it has written there of late.
    """
    for folder in sorted(spool.glob("h3render-*")):
        if _SPOOL_FOLDER.fullmatch(folder.name) and (found := _look_into(folder, now - age)) is not None:
            deletion = Deletion(
                What.SPOOL, str(folder), found, f"silent for more than {say_age(age)}, locked by nobody"
            )
            yield Finding([deletion], partial(_remove_folder, folder, now - age))


def _look_into(folder: Path, before: datetime) -> int | None:
    """The bytes of an abandoned folder; None if it is none, or if that cannot be told."""
    try:
        with _locked(folder):
            return _measure(folder, before)
    except OSError:
        return None


def _remove_folder(folder: Path, before: datetime) -> bool:
    try:
        with _locked(folder):
            if _measure(folder, before) is None:
                return False
            shutil.rmtree(folder)
    except OSError:
        return False
    return True


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError if a living process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _measure(folder: Path, before: datetime) -> int | None:
    """The bytes of a folder of ours, of files and folders, to which nothing was written since `before`."""
    found = [path.lstat() for path in (folder, *folder.rglob("*"))]
    if found[0].st_uid != os.getuid() or any(entry.st_mtime >= before.timestamp() for entry in found):
        return None
    if not all(stat.S_ISREG(entry.st_mode) or stat.S_ISDIR(entry.st_mode) for entry in found):
        return None
    return sum(entry.st_size for entry in found if stat.S_ISREG(entry.st_mode))


# --- in Redis


def find_in_redis(redis: Redis, script: RetentionScript) -> Iterator[Finding]:
    """Records of jobs whose own record is gone, where nothing else will remove them. Raises RedisError."""
    keys = redis.scan_iter(match="h3:*", count=_NAMES_A_CALL)
    yield from _find_left(script, "keys", "{name}", keys, "its job has no record, and it would never expire")
    dead = (job_id for job_id, _ in redis.zscan_iter(DEAD_KEY))
    yield from _find_left(script, "jobs", f"{DEAD_KEY} {{name}}", dead, "the job has no record")
    put_away = (job_id for job_id, _ in redis.hscan_iter(QUARANTINE_KEY))
    yield from _find_left(script, "jobs", f"{QUARANTINE_KEY} {{name}}", put_away, "the job has no record")


def _find_left(script: RetentionScript, kind: str, form: str, names: Iterator[bytes], reason: str) -> Iterator[Finding]:
    while some := list(dict.fromkeys(islice(names, _NAMES_A_CALL))):
        left: list[bytes] = script.call(f"left_{kind}", *some)
        if left:
            deletions = [Deletion(What.RECORD, form.format(name=_text(name)), 0, reason) for name in left]
            yield Finding(deletions, partial(_remove_left, script, kind, left))


def _remove_left(script: RetentionScript, kind: str, names: Iterable[bytes]) -> bool:
    return bool(script.call(f"remove_{kind}", *names))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
