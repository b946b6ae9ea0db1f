"""Where the output lies: the interface of every store, and `open_store`, which picks one by its URL.

Knows keys, bytes and checksums, and nothing of jobs, files or S3.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from jobs.errors import ObjectExists, StoreRefused, StoreUnavailable

ACCEPTED_FORMS = "file:///absolute/folder, s3://bucket/prefix or s3://bucket/prefix?endpoint=https://host:port"
CHUNK_BYTES = 2**20
LONGEST_LINK_S = 7 * 24 * 3600  # S3 signs for no longer
TEMPORARY_PREFIX = ".h3render-"  # of a file that is being written


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object as the store has it."""

    key: str
    size_bytes: int
    sha256: str  # hex


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One object as a look at many tells of it."""

    key: str
    size_bytes: int
    modified_at: datetime  # UTC, by the store's clock


@dataclass(frozen=True, slots=True)
class UnfinishedWrite:
    """An object that is being written, or whose writer died; no reader sees it."""

    key: str  # where it would appear; of a file: where it lies
    size_bytes: int  # 0 where the store does not tell
    modified_at: datetime  # UTC; where the store does not tell: when it began
    token: str = ""  # what the store calls it


class Store(ABC):
    """Objects under keys such as `job/attempts/1/video.mp4`: relative, with slashes; a wrong key is a ValueError.

    Every method raises StoreUnavailable. Threads may share a store; a forked child opens its own.
    """

    @abstractmethod
    def put(self, key: str, body: bytes | Path, *, content_type: str, cache_control: str | None = None) -> StoredObject:
        """Write or replace an object; a reader sees the old one or the new one. A file must stay as it is meanwhile."""

    @abstractmethod
    def put_once(self, key: str, body: bytes | Path, *, content_type: str) -> StoredObject:
        """Write an object that must not be there yet: of several writers exactly one wins.

        Raises ObjectExists if the key holds other content. The same content is a success, because a
        conditional write that is tried again can lose to its own first try.
        """

    @abstractmethod
    def fetch(self, key: str, path: Path) -> None:
        """Download to a file, which appears only when complete."""

    @abstractmethod
    def stat(self, key: str) -> StoredObject | None:
        """Size and checksum, or None if there is no such object. A file, or a foreign object, is read whole."""

    @abstractmethod
    def find(self, key: str) -> ListedObject | None:
        """Size and time without a look at the content, or None if there is no such object."""

    @abstractmethod
    def read_part(self, key: str, first: int, size_bytes: int) -> Iterator[bytes]:
        """Some bytes of an object, in pieces, as many as there are. Compared with no checksum."""

    @abstractmethod
    def scan(self, prefix: str = "") -> Iterator[ListedObject]:
        """All objects whose keys begin with these letters, as the store gives them: never held all at once.

        Keys that are the same up to a slash follow each other; stores differ in the rest of the order.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; none there is fine."""

    @abstractmethod
    def scan_unfinished(self) -> Iterator[UnfinishedWrite]:
        """What is being written, and what a dead writer has left."""

    @abstractmethod
    def drop_unfinished(self, write: UnfinishedWrite) -> None:
        """Let it come to nothing; one that is over is fine."""

    @abstractmethod
    def url(self, key: str) -> str:
        """Where a person finds the object: a path, or s3://bucket/prefix/key."""

    @abstractmethod
    def find_key(self, url: str) -> str | None:
        """Of the object that `url` leads to as `url()` prints it, there or not; None if it is none of this store's."""

    @abstractmethod
    def link(self, key: str, expires_s: int) -> str:
        """A URL by which anyone may read the object, by GET, for that long: a secret until then.

        It is made here, without asking whether the object is there. Raises StoreRefused unless it is for a second to
        seven days.
        """

    @abstractmethod
    def _chunks(self, key: str) -> Iterator[bytes]:
        """The object's bytes in pieces; raises StoreUnavailable at the end if they aren't what was written."""

    def list(self, prefix: str = "") -> Iterator[str]:
        """All keys that begin with these letters, sorted."""
        return iter(sorted(found.key for found in self.scan(prefix)))

    def get(self, key: str) -> bytes:
        return b"".join(self._chunks(key))

    def check(self) -> None:
        """Write, read, list and delete a probe, and see that a write-once object can't be replaced."""
        key = f"probe-{uuid4().hex}"
        self.put_once(key, b"first", content_type="text/plain")
        try:
            if self.get(key) != b"first" or [*self.list(key)] != [key]:
                raise StoreUnavailable(f"{self.url(key)} was written but does not read back; use another store")
            self._check_written_once(key)
        finally:
            self.delete(key)

    def _check_written_once(self, key: str) -> None:
        try:
            self.put_once(key, b"second", content_type="text/plain")
        except ObjectExists:
            return
        raise StoreUnavailable(
            f"{self.url(key)} was replaced by a second conditional write, so two workers could publish one job; "
            "use a store that honours If-None-Match (AWS S3, R2, MinIO, SeaweedFS)"
        )


def open_store(url: str) -> Store:
    """The store that `url` names; nothing is read or written yet, `check()` does that."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise wrong_url(url, str(error)) from error
    if parts.scheme == "file":
        if parts.netloc or not parts.path or parts.query or parts.fragment:
            raise wrong_url(url, "a file URL has an absolute path and nothing else")
        from jobs.file_store import FileStore  # here, because it builds on this file

        return FileStore(Path(unquote(parts.path)))
    if parts.scheme == "s3":
        from jobs.s3_store import open_s3_store  # likewise

        return open_s3_store(url, parts)
    raise wrong_url(url, f"unknown scheme {parts.scheme!r}")


def wrong_url(url: str, reason: str) -> StoreRefused:
    return StoreRefused(f"store URL {url!r}: {reason}; give one of {ACCEPTED_FORMS}")


def check_key(key: str) -> None:
    for part in key.split("/"):
        if part in ("", ".", "..") or not part.isprintable() or part.startswith(TEMPORARY_PREFIX):
            raise ValueError(
                f"key {key!r}: {part!r} can't be a part of it; give printable names joined by single slashes, "
                f"none of them '.' or '..' or beginning with {TEMPORARY_PREFIX}"
            )


def check_prefix(prefix: str) -> None:
    if prefix:
        check_key(prefix.removesuffix("/"))


def check_link(url: str, expires_s: int) -> None:
    if not 1 <= expires_s <= LONGEST_LINK_S:
        nearest = 1 if expires_s < 1 else LONGEST_LINK_S
        raise StoreRefused(
            f"a link to {url} cannot be good for {expires_s} s: from 1 s to 7 days; nearest: {nearest}. "
            "For longer, make a new link when it is wanted"
        )


def measure(key: str, stream: BinaryIO) -> StoredObject:
    """Size and sha256 of a whole stream, which is left at its beginning."""
    sha256 = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]  # typeshed wants readable()
    size_bytes = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return StoredObject(key, size_bytes, sha256)


def require_same(url: str, ours: StoredObject, existing: StoredObject | None) -> None:
    if existing is not None and existing.sha256 == ours.sha256:
        return
    found = "gone since" if existing is None else f"sha256 {existing.sha256}"
    raise ObjectExists(
        f"{url} is written once and was there before ({found}; ours is {ours.sha256}); keep what is there, "
        "or delete it first"
    )
