"""Where one attempt's pieces lie in the store, and how patiently the store is asked. Knows no items and no events.

Everything lies under the attempt's own prefix, so that two attempts of a job never write the same object. The one
exception is the commit marker.
"""

import json
import posixpath
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
from pydantic import ValidationError

from jobs.errors import ObjectExists, StoreRefused, StoreUnavailable
from jobs.lease import Lease
from jobs.pictures import fetch_picture
from jobs.pieces import StoredPiece
from jobs.result import Result, result_key
from jobs.retention import ATTEMPT_MARKER
from jobs.store import Store, StoredObject
from worker import metrics

JSON = "application/json"
_CONFIRMATIONS = 8  # at once
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0

Answer = TypeVar("Answer")

log = structlog.get_logger()


class AttemptStore:
    """The store as one attempt sees it.

    Every method raises StoreUnavailable, once the store has refused or has not answered for `patience_s`.
    """

    def __init__(self, store: Store, lease: Lease, patience_s: float) -> None:
        self._store, self._lease, self._patience_s = store, lease, patience_s
        self._failure: Exception | None = None  # from outside
        self._is_given_up = threading.Event()
        self.prefix = f"{lease.job_id}/attempts/{lease.attempt}"
        self.result_key = result_key(lease.job_id)

    def owns(self, piece: StoredPiece) -> bool:
        """Whether it is of this job, by its key."""
        folder, _, name = piece.key.rpartition("/")
        return posixpath.dirname(folder) == posixpath.dirname(self.prefix) and name not in ("", ".", "..")

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def uri(self, piece: StoredPiece) -> str:
        """A piece as an object of this attempt names it; an earlier attempt may have written it."""
        return posixpath.relpath(piece.key, self.prefix)

    def take_prefix(self) -> None:
        """See that nobody else writes there, even if the queue has forgotten one of us. Raises ObjectExists."""
        claim = {"attempt": self._lease.attempt, "worker": self._lease.worker, "nonce": self._lease.nonce}
        body = json.dumps(claim).encode()
        self._patiently(lambda: self._store.put_once(self.key(ATTEMPT_MARKER), body, content_type=JSON))

    def put(self, name: str, body: bytes | Path, content_type: str, cache_control: str) -> StoredPiece:
        key = self.key(name)
        with metrics.UPLOAD_SECONDS.time():
            stored = self._patiently(
                lambda: self._store.put(key, body, content_type=content_type, cache_control=cache_control)
            )
        metrics.UPLOADED_BYTES.inc(stored.size_bytes)
        return _as_piece(stored)

    def fetch(self, piece: StoredPiece, path: Path) -> None:
        self._patiently(lambda: self._store.fetch(piece.key, path))

    def fetch_picture(self, key: str, path: Path) -> None:
        """One that the request names. Raises PictureInvalid, too."""
        self._patiently(lambda: fetch_picture(self._store, key, path))

    def confirm(self, pieces: Iterable[StoredPiece]) -> None:
        """Raises StoreUnavailable if anything is not there as it was written."""
        bind = partial(structlog.contextvars.bind_contextvars, **structlog.contextvars.get_contextvars())
        with ThreadPoolExecutor(_CONFIRMATIONS, initializer=bind) as pool:  # for log lines that name the job
            list(pool.map(self._confirm, pieces))

    def _confirm(self, piece: StoredPiece) -> None:
        found = self._patiently(lambda: self._store.stat(piece.key))
        if found is None or _as_piece(found) != piece:
            raise StoreUnavailable(f"{self._store.url(piece.key)} is not what was written: {found}; submit it again")

    def find_result(self) -> Result | None:
        """The job's result, if an attempt has committed one."""
        if self._patiently(lambda: self._store.stat(self.result_key)) is None:
            return None
        return self._read_result()

    def commit(self, result: Result) -> Result:
        """Write the marker; if another attempt was first, its result is the job's and ours is discarded."""
        body = result.model_dump_json(indent=2).encode()
        try:
            self._patiently(lambda: self._store.put_once(self.result_key, body, content_type=JSON))
        except ObjectExists:
            return self._read_result()
        return result

    def _read_result(self) -> Result:
        body = self._patiently(lambda: self._store.get(self.result_key))
        try:
            return Result.model_validate_json(body)
        except ValidationError as exc:
            raise StoreRefused(f"{self._store.url(self.result_key)} is no result that we can read: {exc}") from exc

    def give_up(self, error: Exception) -> None:
        """Have no more patience: whoever waits for the store gets this error."""
        self._failure = self._failure or error
        self._is_given_up.set()

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        deadline, pause_s = time.monotonic() + self._patience_s, _FIRST_PAUSE_S
        while True:
            try:
                return ask()
            except (StoreRefused, ObjectExists):
                raise
            except StoreUnavailable as exc:
                if time.monotonic() + pause_s > deadline:
                    raise
                log.warning("the store does not answer, trying again", reason=str(exc), pause_s=pause_s)
                metrics.STORE_RETRIES.inc()
            if self._is_given_up.wait(pause_s) and self._failure is not None:
                raise self._failure
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _as_piece(stored: StoredObject) -> StoredPiece:
    return StoredPiece(key=stored.key, size_bytes=stored.size_bytes, sha256=stored.sha256)
