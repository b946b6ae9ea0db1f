"""The pictures that a request names, its first and last frame: from a file into the store, and from there to a worker.

A picture's key says what it holds, so the same one lies there once, whoever needs it. Knows no decoder: what can be
seen without one is checked here, the rest where the picture is used.
"""

import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from jobs.errors import PictureInvalid
from jobs.request import INPUTS
from jobs.store import ListedObject, Store

MOST_BYTES = 64 << 20
_HEAD_BYTES = 16
_STAYS = "public, max-age=31536000, immutable"
REWRITTEN_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Kind:
    """A form of pictures that the model can be given."""

    name: str
    suffix: str
    content_type: str
    head: re.Pattern[bytes]  # how every such file begins


KINDS = (
    Kind("JPEG", "jpg", "image/jpeg", re.compile(rb"\xff\xd8\xff")),
    Kind("PNG", "png", "image/png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    Kind("WEBP", "webp", "image/webp", re.compile(rb"RIFF.{4}WEBP", re.DOTALL)),
    Kind("GIF", "gif", "image/gif", re.compile(rb"GIF8[79]a")),
    Kind("BMP", "bmp", "image/bmp", re.compile(rb"BM")),
    Kind("TIFF", "tif", "image/tiff", re.compile(rb"II[*+]\0|MM\0[*+]")),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """What a file holds."""

    kind: Kind
    body: bytes = field(repr=False)

    @property
    def key(self) -> str:
        """Where it lies in every store, and what a request calls it."""
        return f"{INPUTS}/{hashlib.sha256(self.body).hexdigest()}.{self.kind.suffix}"

    def put(self, store: Store) -> str:
        """Upload it, unless it is there; its key. Raises StoreUnavailable."""
        key = self.key
        found = find_picture(store, key)
        if found is None or found.size_bytes != len(self.body) or _is_aging(found):
            store.put(key, self.body, content_type=self.kind.content_type, cache_control=_STAYS)
        return key


def put_picture(store: Store, path: Path) -> str:
    """Upload a picture, unless it is there; the key for `first_frame` or `last_frame` of a request.

    Raises PictureInvalid for a file that cannot be one, and StoreUnavailable.
    """
    return read_picture(path).put(store)


def read_picture(path: Path) -> Picture:
    """Raises PictureInvalid, naming the file, what was found there, and the remedy."""
    body = _read(path)
    kind = next((kind for kind in KINDS if kind.head.match(body)), None)
    if kind is None:
        found = f"begins with {body[:_HEAD_BYTES]!r}" if body else "is empty"
        names = ", ".join(kind.name for kind in KINDS)
        raise PictureInvalid(f"{path} {found}, and so is none of {names}: convert it to one of these")
    return Picture(kind, body)


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():
            found = "is not a file" if path.exists() else "does not exist"
            raise PictureInvalid(f"{path} {found}: give the path of a picture")
        with path.open("rb") as file:
            body = file.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise PictureInvalid(f"{path} {_too_large(path.stat().st_size)}")
    except OSError as exc:
        raise PictureInvalid(f"{path} cannot be read ({exc.strerror}): let this user read it") from exc
    return body


def fetch_picture(store: Store, key: str, path: Path) -> None:
    """Download it to a file. Raises PictureInvalid if it is not there or too large, and StoreUnavailable."""
    found = find_picture(store, key)
    if found is None:
        raise PictureInvalid(
            f"{store.url(key)} does not exist: put the picture there and take the job up with `h3render dead retry`, "
            "or give `h3render submit` the file"
        )
    if found.size_bytes > MOST_BYTES:
        raise PictureInvalid(f"{store.url(key)} {_too_large(found.size_bytes)}")
    store.fetch(key, path)


def find_picture(store: Store, key: str) -> ListedObject | None:
    """By a look at the list: to ask for its checksum could read all of it."""
    return next((found for found in store.scan(key) if found.key == key), None)


def _is_aging(found: ListedObject) -> bool:
    """Whether to write it again: `h3render gc` goes by the last write, and leaves alone what is younger than this."""
    return datetime.now(UTC) - found.modified_at > REWRITTEN_AFTER


def _too_large(size_bytes: int) -> str:
    return f"has {size_bytes:,} bytes, more than {MOST_BYTES >> 20} MiB: scale the picture down, or save it as JPEG"
