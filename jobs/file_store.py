"""The store in a local folder (`file://`), and how any store reads and writes a local file."""

import errno
import io
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn
from uuid import uuid4

from jobs.errors import StoreRefused, StoreUnavailable
from jobs.store import (
    CHUNK_BYTES,
    TEMPORARY_PREFIX,
    Store,
    StoredObject,
    check_key,
    check_prefix,
    measure,
    require_same,
)


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
                require_same(self.url(key), stored, self.stat(key))
            _sync_folder(path.parent)
        return stored

    def fetch(self, key: str, path: Path) -> None:
        write_whole(path, self._chunks(key))

    def stat(self, key: str) -> StoredObject | None:
        path = self._path(key)
        with _file_errors(path):
            try:
                with path.open("rb") as file:
                    return measure(key, file)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return None

    def list(self, prefix: str = "") -> Iterator[str]:
        check_prefix(prefix)
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
        check_key(key)
        return self._root / key

    @staticmethod
    def _copy(key: str, body: bytes | Path, temporary: Path) -> StoredObject:
        with opened(body) as source, _synced(temporary) as file:
            stored = measure(key, source)
            shutil.copyfileobj(source, file, CHUNK_BYTES)
        return stored


@contextmanager
def opened(body: bytes | Path) -> Iterator[BinaryIO]:
    if isinstance(body, bytes):
        yield io.BytesIO(body)
        return
    with _file_errors(body):
        file = body.open("rb")
    with file:  # outside of it: some of botocore's errors are OSErrors too
        yield file


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file, which appears, or replaces the old one, only when complete."""
    with _file_errors(path), _temporary_beside(path) as temporary:
        with _synced(temporary) as file:
            file.writelines(chunks)
        _move(temporary, path)


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
        kind = StoreRefused if isinstance(error, PermissionError | FileNotFoundError) else StoreUnavailable
        raise kind(f"{path}: {error.strerror or error}; {remedy}") from error
