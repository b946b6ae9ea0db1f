"""The store in an S3 bucket (`s3://`), of AWS or a compatible service. boto3 is imported when one is opened."""

from __future__ import annotations

import hashlib
import io
import os
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypedDict
from urllib.parse import SplitResult, parse_qs

from jobs.errors import StoreRefused, StoreUnavailable
from jobs.file_store import opened, write_whole
from jobs.store import (
    CHUNK_BYTES,
    ListedObject,
    Store,
    StoredObject,
    UnfinishedWrite,
    check_key,
    check_link,
    check_prefix,
    measure,
    require_same,
    wrong_url,
)

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, HeadObjectOutputTypeDef

MULTIPART_ABOVE_BYTES = 64 * 2**20
PART_BYTES = 16 * 2**20  # every part but the last: R2 wants equal sizes; S3's limit of 10 000 parts is 156 GiB
CONDITIONAL_ATTEMPTS = 5
SHA256_METADATA_KEY = "content-sha256"


def open_s3_store(url: str, parts: SplitResult) -> S3Store:
    options = parse_qs(parts.query)
    prefix = parts.path.strip("/")
    if not parts.netloc:
        raise wrong_url(url, "the bucket is missing")
    if set(options) - {"endpoint"} or parts.fragment:
        raise wrong_url(url, "only ?endpoint= may follow the prefix")
    try:
        check_prefix(prefix)
        client = _connect(url, *options.get("endpoint", [])[-1:])
    except ValueError as error:  # boto3 says "Invalid endpoint" with it
        raise wrong_url(url, str(error)) from error
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
        with self._errors(key), opened(body) as stream:
            stored = measure(key, stream)
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
        with self._errors(key), opened(body) as stream:
            stored = measure(key, stream)
            headers = _headers(stored, content_type)
            for attempt in range(CONDITIONAL_ATTEMPTS):
                if self._put_if_absent(key, stream, headers):
                    return stored
                existing = self.stat(key)
                if existing is not None:
                    require_same(self.url(key), stored, existing)
                    return existing
                time.sleep(0.1 * attempt)  # 409: another writer holds the key but has not written it yet
        raise StoreUnavailable(f"{self.url(key)} is refused as if it existed, but does not; try again later")

    def fetch(self, key: str, path: Path) -> None:
        write_whole(path, self._chunks(key))

    def stat(self, key: str) -> StoredObject | None:
        with self._errors(key):
            if (head := self._head(key)) is None:
                return None
            sha256 = _metadata_sha256(head["Metadata"]) or self._read_sha256(key)
        return StoredObject(key, head["ContentLength"], sha256)

    def find(self, key: str) -> ListedObject | None:
        with self._errors(key):
            head = self._head(key)
        return head and ListedObject(key, head["ContentLength"], head["LastModified"].astimezone(UTC))

    def read_part(self, key: str, first: int, size_bytes: int) -> Iterator[bytes]:
        if size_bytes < 1:
            return
        part = f"bytes={first}-{first + size_bytes - 1}"
        with self._errors(key):
            found = self._client.get_object(Bucket=self._bucket, Key=self._name(key), Range=part)
            with closing(found["Body"]) as body:
                yield from body.iter_chunks(CHUNK_BYTES)

    def scan(self, prefix: str = "") -> Iterator[ListedObject]:
        check_prefix(prefix)
        return self._scan(prefix)

    def _scan(self, prefix: str) -> Iterator[ListedObject]:
        pages = self._client.get_paginator("list_objects_v2")
        with self._errors(prefix):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for item in page.get("Contents", []):
                    if not item["Key"].endswith("/"):  # what some programs write for a folder
                        key = item["Key"].removeprefix(self._prefix)
                        yield ListedObject(key, item["Size"], item["LastModified"].astimezone(UTC))

    def delete(self, key: str) -> None:
        with self._errors(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._name(key))

    def scan_unfinished(self) -> Iterator[UnfinishedWrite]:
        pages = self._client.get_paginator("list_multipart_uploads")
        with self._errors(""):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for upload in page.get("Uploads", []):
                    key, began_at = upload["Key"].removeprefix(self._prefix), upload["Initiated"].astimezone(UTC)
                    yield UnfinishedWrite(key, 0, began_at, upload["UploadId"])

    def drop_unfinished(self, write: UnfinishedWrite) -> None:
        name = self._prefix + write.key
        with self._errors(write.key), suppress(self._client.exceptions.NoSuchUpload):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=write.token)

    def url(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._name(key)}"

    def find_key(self, url: str) -> str | None:
        base = f"s3://{self._bucket}/{self._prefix}"
        key = url.removeprefix(base)
        try:
            check_key(key)
        except ValueError:
            return None
        return key if url.startswith(base) else None

    def link(self, key: str, expires_s: int) -> str:
        """Signed for the endpoint by our keys: if these are temporary ones, it ends with them."""
        check_link(self.url(key), expires_s)
        with self._errors(key):
            return self._client.generate_presigned_url(
                "get_object", Params={"Bucket": self._bucket, "Key": self._name(key)}, ExpiresIn=expires_s
            )

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
            unless_complete.callback(self._abort_parts, name, upload_id)
            chunks = iter(partial(stream.read, PART_BYTES), b"")
            parts = [self._put_part(key, upload_id, number, chunk) for number, chunk in enumerate(chunks, 1)]
            self._client.complete_multipart_upload(
                Bucket=bucket, Key=name, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )
            unless_complete.pop_all()

    def _abort_parts(self, name: str, upload_id: str) -> None:
        # What made us abort is the news; a lifecycle rule removes what stays.
        with suppress(StoreUnavailable), self._errors(name):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload_id)

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

    def _head(self, key: str) -> HeadObjectOutputTypeDef | None:
        """None if there is no such object."""
        name = self._name(key)
        try:
            return self._client.head_object(Bucket=self._bucket, Key=name)
        except self._client.exceptions.ClientError as error:
            if _status(error) != 404:
                raise
        try:  # a HEAD's 404 has no body: only a GET tells a missing object from a missing bucket
            self._client.get_object(Bucket=self._bucket, Key=name)["Body"].close()
        except self._client.exceptions.NoSuchKey:
            return None
        return self._head(key)  # written between the two

    def _read_sha256(self, key: str) -> str:
        digest = hashlib.sha256()
        for chunk in self._chunks(key):
            digest.update(chunk)
        return digest.hexdigest()

    def _name(self, key: str) -> str:
        check_key(key)
        return self._prefix + key

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        where = f"s3://{self._bucket}/{self._prefix}{key} at {self._client.meta.endpoint_url}"
        with _s3_errors(where):
            yield


def _md5(stream: BinaryIO) -> str:
    """The Content-MD5 of a whole stream, which is left at its beginning: the check that all services make."""
    digest = hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False))  # type: ignore[arg-type]
    stream.seek(0)
    return b64encode(digest.digest()).decode()


def _headers(stored: StoredObject, content_type: str) -> _Headers:
    return {"ContentType": content_type, "Metadata": {SHA256_METADATA_KEY: stored.sha256}}


def _metadata_sha256(metadata: Mapping[str, str]) -> str | None:
    lowered = {key.lower(): value for key, value in metadata.items()}  # some services change the case
    return lowered.get(SHA256_METADATA_KEY)


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
    from urllib3.exceptions import HTTPError  # which botocore lets through where an answer breaks off

    try:
        yield
    except (BotoCoreError, ClientError, HTTPError) as error:
        remedy = _S3_REMEDIES.get(_code(error), "try again, and look at the service's status if it stays so")
        kind = StoreRefused if isinstance(error, ClientError) and _is_final(error) else StoreUnavailable
        raise kind(f"{where}: {error}; {remedy}") from error


def _is_final(error: ClientError) -> bool:
    """Whether the same request will get the same answer: the client's fault, but not one of time or of a race."""
    if _code(error) == "NoSuchUpload":
        return False  # it may be complete, and the answer that said so was lost
    return 400 <= _status(error) < 500 and _status(error) not in (408, 409, 412, 425, 429)


def _code(error: Exception) -> str:
    answer = getattr(error, "response", None) or {}  # None where the connection broke
    return str(answer.get("Error", {}).get("Code", type(error).__name__))


def _status(error: ClientError) -> int:
    return error.response["ResponseMetadata"]["HTTPStatusCode"]
