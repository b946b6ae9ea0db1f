"""Fetches the missing parts of one file, several at a time, over HTTP. It knows neither locks nor digests."""

import errno
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

import httpx2
import structlog

from infra.boot.errors import BootError, CheckpointRefused, NoRoom, PartLost, Stopped
from infra.boot.manifest import check_url
from infra.boot.stored_file import Part, StoredFile

TRIES = 15  # in a row without a byte: with the pauses between, about nine minutes
LONGEST_PAUSE_S = 60.0
CONNECT_S, READ_S = 10.0, 30.0
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
TRY_LATER = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

log = structlog.get_logger(__name__)


def open_client() -> httpx2.Client:
    """Follows redirects, as stores of large files answer by them, and no further than a manifest may point."""
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each URL whole, and the query may be a signature
    return httpx2.Client(
        trust_env=False,
        follow_redirects=True,
        timeout=httpx2.Timeout(READ_S, connect=CONNECT_S),
        limits=httpx2.Limits(max_connections=None),
        headers={"Accept-Encoding": "identity", "User-Agent": "h3render"},
        event_hooks={"request": [_refuse_unsafe]},
    )


def _refuse_unsafe(request: httpx2.Request) -> None:
    try:
        check_url(str(request.url))
    except ValueError as exc:
        raise CheckpointRefused(f"a checkpoint's server sends us to {request.url.host}, which is not {exc}") from None


def fetch_parts(client: httpx2.Client, stored: StoredFile, count: int, is_stopped: Callable[[], bool]) -> None:
    """Raises CheckpointRefused, NoRoom, Stopped; whole parts are kept."""
    descriptor = stored.open()
    try:
        Fetcher(client, stored, descriptor, is_stopped).fetch_all(count)
    finally:
        os.close(descriptor)


class Fetcher:
    """Threads that share the parts of one file."""

    def __init__(
        self, client: httpx2.Client, stored: StoredFile, descriptor: int, is_stopped: Callable[[], bool]
    ) -> None:
        self._client = client
        self._stored = stored
        self._file = stored.file
        self._descriptor = descriptor
        self._is_stopped = is_stopped
        self._parts = stored.missing
        self._problems: list[BootError] = []
        self._ended = threading.Event()

    def fetch_all(self, count: int) -> None:
        # Not a pool of the library's, which would keep a pod that leaves from ending before a slow server answers.
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(min(count, len(self._parts)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._problems:
            raise self._problems[0]

    def _work(self) -> None:
        try:
            while (part := self._take()) is not None:
                self._fetch(part)
                self._stored.note_whole(part)
        except BootError as exc:
            self._problems.append(exc)
            self._ended.set()

    def _take(self) -> Part | None:
        try:
            return None if self._ended.is_set() else self._parts.pop(0)
        except IndexError:
            return None

    def _fetch(self, part: Part) -> None:
        """Goes on from where an answer broke off, until there was nothing new for too long."""
        failures = 0
        while part.begin < part.end:
            try:
                self._receive(part)
            except PartLost as exc:
                failures = failures + 1 if exc.reached == part.begin else 0
                if failures == TRIES:
                    raise CheckpointRefused(f"{self._file.name}: nothing comes from {self._file.place}: {exc}") from exc
                log.info("a part of a checkpoint is asked for again", name=self._file.name, why=str(exc))
                part = Part(exc.reached, part.end)
            else:
                return
            self._pause(failures)

    def _pause(self, failures: int) -> None:
        if failures:
            self._ended.wait(min(2.0 ** (failures - 1), LONGEST_PAUSE_S))
        self._heed()

    def _heed(self) -> None:
        if self._ended.is_set() or self._is_stopped():
            raise Stopped("the pod leaves")

    def _receive(self, part: Part) -> None:
        at = part.begin
        headers = {"Range": f"bytes={part.begin}-{part.end - 1}"}
        try:
            with self._client.stream("GET", self._file.url, headers=headers) as response:
                self._check(response, part)
                for chunk in response.iter_raw():
                    self._heed()
                    at = self._write(chunk[: part.end - at], at)
        except httpx2.HTTPError as exc:
            raise PartLost(type(exc).__name__, reached=at) from None  # whose text may have the URL
        if at < part.end:
            raise PartLost("the answer was too short", reached=at)

    def _check(self, response: httpx2.Response, part: Part) -> None:
        status, place = response.status_code, f"{self._file.name}: {self._file.place}"
        if status in TRY_LATER or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise PartLost(f"the answer is {status}", reached=part.begin)
        found = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if status == HTTPStatus.OK:
            raise CheckpointRefused(f"{place} does not give parts of a file: use a server that heeds Range")
        if status != HTTPStatus.PARTIAL_CONTENT or found is None:
            raise CheckpointRefused(f"{place} answers {status}: is the URL right, and a signed one still good?")
        if int(found[3]) != self._file.size_bytes:
            raise CheckpointRefused(f"{place} has {found[3]} bytes where the manifest has {self._file.size_bytes}")
        if int(found[1]) != part.begin:
            raise PartLost("the answer is another part", reached=part.begin)

    def _write(self, chunk: bytes, at: int) -> int:
        """Returns where it ends."""
        with _disk_errors(self._file.name):
            while chunk:
                written = os.pwrite(self._descriptor, chunk, at)
                at, chunk = at + written, chunk[written:]
        return at


@contextmanager
def _disk_errors(name: str) -> Iterator[None]:
    """A network volume may tell of its end by this alone."""
    try:
        yield
    except OSError as exc:
        if exc.errno in NO_ROOM:
            raise NoRoom(f"{name}: the disk is full: order a larger one") from exc
        raise CheckpointRefused(f"{name}: it cannot be written: {exc.strerror}") from exc
