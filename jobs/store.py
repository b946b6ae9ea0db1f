"""Where the output lies: a local folder (`file://`) or an S3 bucket (`s3://`), by one interface.

Knows keys, bytes and checksums, and nothing of jobs. boto3 is imported when an S3 store is opened.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import time
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, TypedDict
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit
from uuid import uuid4

from jobs.errors import ObjectExists, StoreUnavailable

if TYPE_CHECKING:
    from botocore.exceptions import BotoCoreError, ClientError
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

ACCEPTED_FORMS = "file:///absolute/folder, s3://bucket/prefix or s3://bucket/prefix?endpoint=https://host:port"
MULTIPART_ABOVE_BYTES = 64 * 2**20
PART_BYTES = 16 * 2**20  # every part but the last: R2 wants equal sizes; S3's limit of 10 000 parts is 156 GiB
CHUNK_BYTES = 2**20
CONDITIONAL_ATTEMPTS = 5
SHA256_METADATA_KEY = "content-sha256"
TEMPORARY_PREFIX = ".h3render-"  # of a file that is being written


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object as the store has it."""

    key: str
    size_bytes: int
    sha256: str  # hex


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
    def stat(self, key: str) -> StoredObject | None:
        """Size and checksum, or None if there is no such object. A file, or a foreign object, is read whole."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[str]:
        """All keys that begin with these letters, sorted."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; none there is fine."""

    @abstractmethod
    def url(self, key: str) -> str:
        """Where a person finds the object: a path, or s3://bucket/prefix/key."""

    @abstractmethod
    def _chunks(self, key: str) -> Iterator[bytes]:
        """The object's bytes in pieces; raises StoreUnavailable at the end if they aren't what was written."""

    def get(self, key: str) -> bytes:
        return b"".join(self._chunks(key))

    def fetch(self, key: str, path: Path) -> None:
        """Download to a file, which appears only when complete."""
        with _file_errors(path), _temporary_beside(path) as temporary:
            with _synced(temporary) as file:
                file.writelines(self._chunks(key))
            _move(temporary, path)

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
        raise _wrong_url(url, str(error)) from error
    if parts.scheme == "file":
        if parts.netloc or not parts.path or parts.query or parts.fragment:
            raise _wrong_url(url, "a file URL has an absolute path and nothing else")
        return FileStore(Path(unquote(parts.path)))
    if parts.scheme == "s3":
        return _open_s3(url, parts)
    raise _wrong_url(url, f"unknown scheme {parts.scheme!r}")


def _open_s3(url: str, parts: SplitResult) -> S3Store:
    options = parse_qs(parts.query)
    prefix = parts.path.strip("/")
    if not parts.netloc:
        raise _wrong_url(url, "the bucket is missing")
    if set(options) - {"endpoint"} or parts.fragment:
        raise _wrong_url(url, "only ?endpoint= may follow the prefix")
    try:
        _check_prefix(prefix)
        client = _connect(url, *options.get("endpoint", [])[-1:])
    except ValueError as error:  # boto3 says "Invalid endpoint" with it
        raise _wrong_url(url, str(error)) from error
    return S3Store(client, parts.netloc, prefix)


def _connect(url: str, endpoint: str | None = None) -> S3Client:
    """A client that S3-compatible services understand too: boto3's defaults send checksums that R2 and B2 refuse."""
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise StoreUnavailable(f"{url} needs boto3, which is missing: pip install 'h3render[s3]'") from error
    with _s3_errors(url):
        session = boto3.session.Session()
        return session.client(
            "s3",
            endpoint_url=endpoint,
            region_name=os.environ.get("AWS_REGION") or session.region_name or "us-east-1",
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                retries={"mode": "standard"},
                connect_timeout=10,
                read_timeout=60,
                max_pool_connections=32,
            ),
        )


def _wrong_url(url: str, reason: str) -> StoreUnavailable:
    return StoreUnavailable(f"store URL {url!r}: {reason}; give one of {ACCEPTED_FORMS}")


class FileStore(Store):
    """A folder: keys are the files' paths in it, and nothing else is kept. Made by the first write."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, body: bytes | Path, *, content_type: str, cache_control: str | None = None) -> StoredObject:
        path = self._path(key)
        with _file_errors(path), _temporary_beside(path) as temporary:
            stored = self._copy(key, body, temporary)
            _move(temporary, path)
        return stored

    def put_once(self, key: str, body: bytes | Path, *, content_type: str) -> StoredObject:
        path = self._path(key)
        with _file_errors(path), _temporary_beside(path) as temporary:
            stored = self._copy(key, body, temporary)
            try:
                path.hardlink_to(temporary)  # unlike a rename, refuses to replace
            except FileExistsError:
                _require_same(self.url(key), stored, self.stat(key))
            _sync_folder(path.parent)
        return stored

    def stat(self, key: str) -> StoredObject | None:
        path = self._path(key)
        with _file_errors(path):
            try:
                with path.open("rb") as file:
                    return _measure(key, file)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return None

    def list(self, prefix: str = "") -> Iterator[str]:
        _check_prefix(prefix)
        start = self._root / prefix.rpartition("/")[0]
        with _file_errors(start):
            keys = [path.relative_to(self._root).as_posix() for path in _files_under(start)]
        return iter(sorted(key for key in keys if key.startswith(prefix)))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _file_errors(path):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
            _sync_folder(path.parent)

    def url(self, key: str) -> str:
        return str(self._path(key))

    def _chunks(self, key: str) -> Iterator[bytes]:
        path = self._path(key)
        with _file_errors(path), path.open("rb") as file:
            yield from iter(partial(file.read, CHUNK_BYTES), b"")

    def _path(self, key: str) -> Path:
        _check_key(key)
        return self._root / key

    @staticmethod
    def _copy(key: str, body: bytes | Path, temporary: Path) -> StoredObject:
        with _opened(body) as source, _synced(temporary) as file:
            stored = _measure(key, source)
            shutil.copyfileobj(source, file, CHUNK_BYTES)
        return stored


class _Headers(TypedDict, total=False):
    ContentType: str
    CacheControl: str
    Metadata: Mapping[str, str]


class S3Store(Store):
    """A bucket, or a prefix in one. The sha256 travels as metadata, because an ETag is no checksum everywhere."""

    def __init__(self, client: S3Client, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    def put(self, key: str, body: bytes | Path, *, content_type: str, cache_control: str | None = None) -> StoredObject:
        with self._errors(key), _opened(body) as stream:
            stored = _measure(key, stream)
            headers = _headers(stored, content_type)
            if cache_control is not None:
                headers["CacheControl"] = cache_control
            if stored.size_bytes > MULTIPART_ABOVE_BYTES:
                self._put_parts(key, stream, headers)
            else:
                self._client.put_object(
                    Bucket=self._bucket, Key=self._name(key), Body=stream, ContentMD5=_md5(stream), **headers
                )
        return stored

    def put_once(self, key: str, body: bytes | Path, *, content_type: str) -> StoredObject:
        """One request, so at most 5 GiB."""
        with self._errors(key), _opened(body) as stream:
            stored = _measure(key, stream)
            headers = _headers(stored, content_type)
            for attempt in range(CONDITIONAL_ATTEMPTS):
                if self._put_if_absent(key, stream, headers):
                    return stored
                existing = self.stat(key)
                if existing is not None:
                    _require_same(self.url(key), stored, existing)
                    return existing
                time.sleep(0.1 * attempt)  # 409: another writer holds the key but has not written it yet
        raise StoreUnavailable(f"{self.url(key)} is refused as if it existed, but does not; try again later")

    def stat(self, key: str) -> StoredObject | None:
        with self._errors(key):
            try:
                head = self._client.head_object(Bucket=self._bucket, Key=self._name(key))
            except self._client.exceptions.ClientError as error:
                if _status(error) != 404:
                    raise
                return self._stat_missing(key)
            sha256 = _metadata_sha256(head["Metadata"]) or self._read_sha256(key)
        return StoredObject(key, head["ContentLength"], sha256)

    def list(self, prefix: str = "") -> Iterator[str]:
        _check_prefix(prefix)
        pages = self._client.get_paginator("list_objects_v2")
        with self._errors(prefix):
            found = pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix)
            names = [item["Key"] for page in found for item in page.get("Contents", [])]
        keys = [name.removeprefix(self._prefix) for name in names if not name.endswith("/")]
        return iter(sorted(keys))  # services differ in where they sort a slash

    def delete(self, key: str) -> None:
        with self._errors(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._name(key))

    def url(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._name(key)}"

    def _chunks(self, key: str) -> Iterator[bytes]:
        digest = hashlib.sha256()
        with self._errors(key):
            found = self._client.get_object(Bucket=self._bucket, Key=self._name(key))
            with closing(found["Body"]) as body:
                for chunk in body.iter_chunks(CHUNK_BYTES):
                    digest.update(chunk)
                    yield chunk
        written = _metadata_sha256(found["Metadata"])
        if written not in (None, digest.hexdigest()):
            raise StoreUnavailable(
                f"{self.url(key)} is damaged: sha256 {digest.hexdigest()}, but {written} was written; "
                "try again, and if it stays so, render the job again"
            )

    def _put_parts(self, key: str, stream: BinaryIO, headers: _Headers) -> None:
        bucket, name = self._bucket, self._name(key)
        upload_id = self._client.create_multipart_upload(Bucket=bucket, Key=name, **headers)["UploadId"]
        with ExitStack() as unless_complete:
            unless_complete.callback(self._client.abort_multipart_upload, Bucket=bucket, Key=name, UploadId=upload_id)
            chunks = iter(partial(stream.read, PART_BYTES), b"")
            parts = [self._put_part(key, upload_id, number, chunk) for number, chunk in enumerate(chunks, 1)]
            self._client.complete_multipart_upload(
                Bucket=bucket, Key=name, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )
            unless_complete.pop_all()

    def _put_part(self, key: str, upload_id: str, number: int, chunk: bytes) -> CompletedPartTypeDef:
        part = self._client.upload_part(
            Bucket=self._bucket,
            Key=self._name(key),
            UploadId=upload_id,
            PartNumber=number,
            Body=chunk,
            ContentMD5=_md5(io.BytesIO(chunk)),
        )
        return {"PartNumber": number, "ETag": part["ETag"]}

    def _put_if_absent(self, key: str, stream: BinaryIO, headers: _Headers) -> bool:
        bucket, name = self._bucket, self._name(key)
        try:
            self._client.put_object(
                Bucket=bucket, Key=name, Body=stream, ContentMD5=_md5(stream), IfNoneMatch="*", **headers
            )
        except self._client.exceptions.ClientError as error:
            if _status(error) in (409, 412):
                return False
            raise
        return True

    def _stat_missing(self, key: str) -> StoredObject | None:
        """A HEAD's 404 has no body: only a GET tells a missing object from a missing bucket."""
        try:
            self._client.get_object(Bucket=self._bucket, Key=self._name(key))["Body"].close()
        except self._client.exceptions.NoSuchKey:
            return None
        return self.stat(key)  # written between the two

    def _read_sha256(self, key: str) -> str:
        digest = hashlib.sha256()
        for chunk in self._chunks(key):
            digest.update(chunk)
        return digest.hexdigest()

    def _name(self, key: str) -> str:
        _check_key(key)
        return self._prefix + key

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        where = f"s3://{self._bucket}/{self._prefix}{key} at {self._client.meta.endpoint_url}"
        with _s3_errors(where):
            yield


def _check_key(key: str) -> None:
    for part in key.split("/"):
        if part in ("", ".", "..") or not part.isprintable() or part.startswith(TEMPORARY_PREFIX):
            raise ValueError(
                f"key {key!r}: {part!r} can't be a part of it; give printable names joined by single slashes, "
                f"none of them '.' or '..' or beginning with {TEMPORARY_PREFIX}"
            )


def _check_prefix(prefix: str) -> None:
    if prefix:
        _check_key(prefix.removesuffix("/"))


@contextmanager
def _opened(body: bytes | Path) -> Iterator[BinaryIO]:
    if isinstance(body, bytes):
        yield io.BytesIO(body)
        return
    with _file_errors(body):
        file = body.open("rb")
    with file:  # outside of it: some of botocore's errors are OSErrors too
        yield file


def _measure(key: str, stream: BinaryIO) -> StoredObject:
    """Size and sha256 of a whole stream, which is left at its beginning."""
    sha256 = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]  # typeshed wants readable()
    size_bytes = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return StoredObject(key, size_bytes, sha256)


def _md5(stream: BinaryIO) -> str:
    """The Content-MD5 of a whole stream, which is left at its beginning: the check that all services make."""
    digest = hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False))  # type: ignore[arg-type]
    stream.seek(0)
    return b64encode(digest.digest()).decode()


def _require_same(url: str, ours: StoredObject, existing: StoredObject | None) -> None:
    if existing is not None and existing.sha256 == ours.sha256:
        return
    found = "gone since" if existing is None else f"sha256 {existing.sha256}"
    raise ObjectExists(
        f"{url} is written once and was there before ({found}; ours is {ours.sha256}); keep what is there, "
        "or delete it first"
    )


def _files_under(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for parent, _, names in os.walk(folder, onerror=_raise):  # without it a forbidden folder reads as empty
        yield from (Path(parent, name) for name in names if not name.startswith(TEMPORARY_PREFIX))


def _raise(error: OSError) -> NoReturn:
    raise error


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """A name for a file in the folder of `path`; the file is removed at the end, unless moved away."""
    _make_folder(path.parent)
    temporary = path.parent / f"{TEMPORARY_PREFIX}{uuid4().hex}"
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _synced(path: Path) -> Iterator[BinaryIO]:
    """A new file, on the disk when the block ends: a rename may otherwise outlive its content."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _move(temporary: Path, path: Path) -> None:
    temporary.replace(path)
    _sync_folder(path.parent)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_FILE_REMEDIES = {
    errno.ENOENT: "there is no such file: check its key and the folder",
    errno.ENOSPC: "free some space",
    errno.EACCES: "let this user read and write there, or choose another folder",
    errno.EROFS: "choose a folder that may be written",
    errno.EPERM: "choose a file system with hard links: what is written once needs them",
}


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = _FILE_REMEDIES.get(error.errno or 0, "see that every part of this path can be used")
        raise StoreUnavailable(f"{path}: {error.strerror or error}; {remedy}") from error


_KEYS_REMEDY = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) to keys that may list the bucket and "
    "read, write and delete in it"
)
_ENDPOINT_REMEDY = "see that the service runs and that AWS_ENDPOINT_URL_S3, or ?endpoint= in the store URL, names it"
_KEYS_REFUSED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "Unauthorized")
_KEYS_MISSING = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
_NO_ANSWER = ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError", "SSLError")
# By S3's error code, or by the name of botocore's class where no answer came. A refused HEAD has no code but 403.
_S3_REMEDIES = {
    **dict.fromkeys((*_KEYS_REFUSED, *_KEYS_MISSING, "403"), _KEYS_REMEDY),
    **dict.fromkeys(_NO_ANSWER, _ENDPOINT_REMEDY),
    **dict.fromkeys(("AuthorizationHeaderMalformed", "PermanentRedirect"), "set AWS_REGION to the bucket's region"),
    "NoSuchBucket": "create the bucket, or correct the store URL",
    "NoSuchKey": "there is no such object: check its key and the store URL",
    "NotImplemented": "use a service that has conditional writes and multipart uploads",
    "ParamValidationError": "correct the bucket in the store URL",
}


@contextmanager
def _s3_errors(where: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        remedy = _S3_REMEDIES.get(_code(error), "try again, and look at the service's status if it stays so")
        raise StoreUnavailable(f"{where}: {error}; {remedy}") from error


def _code(error: BotoCoreError | ClientError) -> str:
    answer = getattr(error, "response", {})
    return str(answer.get("Error", {}).get("Code", type(error).__name__))


def _status(error: ClientError) -> int:
    return error.response["ResponseMetadata"]["HTTPStatusCode"]


def _headers(stored: StoredObject, content_type: str) -> _Headers:
    return {"ContentType": content_type, "Metadata": {SHA256_METADATA_KEY: stored.sha256}}


def _metadata_sha256(metadata: Mapping[str, str]) -> str | None:
    lowered = {key.lower(): value for key, value in metadata.items()}  # some services change the case
    return lowered.get(SHA256_METADATA_KEY)
