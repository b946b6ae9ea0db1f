"""The pictures that a request names, its first and last frame: from where they are to where requests find them in the
store, and from there to a worker.

A picture's key says what it holds, so the same one lies there once, whoever needs it. Knows no decoder: what can be
seen without one is checked here, the rest where the picture is used.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from jobs.errors import PictureInvalid
from jobs.file_store import file_path
from jobs.request import INPUTS, PICTURE_KEY
from jobs.store import ListedObject, Store, check_key

MOST_BYTES = 64 << 20
_HEAD_BYTES = 16
_STAYS = "public, max-age=31536000, immutable"
REWRITTEN_AFTER = timedelta(days=1)
_URL = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*://")  # but of a file


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
        found = store.find(key)
        if found is None or found.size_bytes != len(self.body) or _is_aging(found):
            store.put(key, self.body, content_type=self.kind.content_type, cache_control=_STAYS)
        return key


def put_picture(store: Store, source: str | Path) -> str:
    """Put a picture where requests find it; the key for `first_frame` or `last_frame`.

    source  a file, or the URL of an object in this store

    Raises PictureInvalid for what cannot be one, and StoreUnavailable.
    """
    located = locate_picture(str(source), Path.cwd(), store)
    located.put(store)
    return located.key


def read_picture(path: Path) -> Picture:
    """Raises PictureInvalid, naming the file, what was found there, and the remedy."""
    return recognise_picture(str(path), _read(path))


def recognise_picture(where: str, body: bytes) -> Picture:
    """By its first bytes. Raises PictureInvalid, which begins with where it was found."""
    kind = next((kind for kind in KINDS if kind.head.match(body)), None)
    if kind is None:
        found = f"begins with {body[:_HEAD_BYTES]!r}" if body else "is empty"
        names = ", ".join(kind.name for kind in KINDS)
        raise PictureInvalid(f"{where} {found}, and so is none of {names}: convert it to one of these")
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


@dataclass(frozen=True, slots=True)
class LocatedPicture(ABC):
    """A picture that can be used, and where it lies. Its bytes are not kept: hundreds may wait to be put."""

    key: str  # what a request calls it, and where it lies once it is put

    @abstractmethod
    def put(self, store: Store) -> None:
        """See that it lies at its key, and stays for a while.

        Raises PictureInvalid if it has changed since it was located, and StoreUnavailable.
        """

    def _put_unchanged(self, store: Store, found: Picture, where: str) -> None:
        if found.key != self.key:  # which tells its hash
            raise PictureInvalid(f"{where} has changed since it was looked at: leave it as it is, and submit again")
        found.put(store)


@dataclass(frozen=True, slots=True)
class PictureInFile(LocatedPicture):
    """It is uploaded."""

    path: Path

    def put(self, store: Store) -> None:
        self._put_unchanged(store, read_picture(self.path), str(self.path))


@dataclass(frozen=True, slots=True)
class PictureInStore(LocatedPicture):
    """It lies somewhere in the store, say as a preview of an earlier render, and is copied."""

    source: str  # its key there

    def put(self, store: Store) -> None:
        self._put_unchanged(store, _read_object(store, self.source), store.url(self.source))


@dataclass(frozen=True, slots=True)
class PictureInPlace(LocatedPicture):
    """It lies among the pictures of requests already."""

    def put(self, store: Store) -> None:
        if _is_aging(_require_object(store, self.key)):
            picture = _read_object(store, self.key)
            store.put(self.key, picture.body, content_type=picture.kind.content_type, cache_control=_STAYS)


def locate_picture(text: str, folder: Path, store: Store) -> LocatedPicture:
    """The picture that a person means.

    text    a file's path, from `folder` on, or its `file://` URL; an object's key, or its URL as the store prints it.
            What is a file and a key is the file

    Raises PictureInvalid, naming what was found and what would do, and StoreUnavailable.
    """
    key = store.find_key(text)
    if key is not None:
        return _locate_object(store, key)
    if _URL.match(text):
        example = store.url(f"{INPUTS}/kite.png")
        raise PictureInvalid(
            f"{text.partition('?')[0]} is no object of this store, where a picture's URL is like {example}: "
            "download it, and give the file"
        )
    path = _find_path(text, folder)
    if _may_be_key(text) and not _exists(path):
        return _locate_named(store, text, path)
    return PictureInFile(read_picture(path).key, path)


def _locate_named(store: Store, key: str, path: Path) -> LocatedPicture:
    if store.find(key) is None:
        raise PictureInvalid(
            f"{path} does not exist, nor does {store.url(key)}: give the path of a picture, or the key of one"
        )
    return _locate_object(store, key)


def _locate_object(store: Store, key: str) -> LocatedPicture:
    if PICTURE_KEY.fullmatch(key):
        _require_object(store, key)
        return PictureInPlace(key)
    return PictureInStore(_read_object(store, key).key, key)


def _require_object(store: Store, key: str) -> ListedObject:
    found = store.find(key)
    if found is None:
        raise PictureInvalid(f"{store.url(key)} does not exist: give the path of a picture, or the key of one")
    _require_size(store, found)
    return found


def _read_object(store: Store, key: str) -> Picture:
    _require_object(store, key)
    return recognise_picture(store.url(key), store.get(key))


def _find_path(text: str, folder: Path) -> Path:
    try:
        return folder / file_path(text).expanduser()
    except (ValueError, RuntimeError) as exc:  # another machine's, or of a user that there is not
        raise PictureInvalid(f"{text} is no path here ({exc}): give the path of a picture") from exc


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # who reads it tells
        return True


def _may_be_key(text: str) -> bool:
    """A mistyped name of a file is not looked for in the store: all keys there have a folder."""
    with suppress(ValueError):
        check_key(text)
        return "/" in text and not text.startswith("~")
    return False


def fetch_picture(store: Store, key: str, path: Path) -> None:
    """Download it to a file. Raises PictureInvalid if it is not there or too large, and StoreUnavailable."""
    found = store.find(key)
    if found is None:
        raise PictureInvalid(
            f"{store.url(key)} does not exist: put the picture there and take the job up with `h3render dead retry`, "
            "or give `h3render submit` the file"
        )
    _require_size(store, found)
    store.fetch(key, path)


def _require_size(store: Store, found: ListedObject) -> None:
    if found.size_bytes > MOST_BYTES:
        raise PictureInvalid(f"{store.url(found.key)} {_too_large(found.size_bytes)}")


def _is_aging(found: ListedObject) -> bool:
    """Whether to write it again: `h3render gc` goes by the last write, and leaves alone what is younger than this."""
    return datetime.now(UTC) - found.modified_at > REWRITTEN_AFTER


def _too_large(size_bytes: int) -> str:
    return f"has {size_bytes:,} bytes, more than {MOST_BYTES >> 20} MiB: scale the picture down, or save it as JPEG"
