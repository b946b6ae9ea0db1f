"""The store in a local folder (`file://`), and how any store reads and writes a local file."""

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from jobs.errors import StoreRefused, StoreUnavailable
from jobs.store import (
    CHUNK_BYTES,
    TEMPORARY_PREFIX,
    ListedObject,
    Store,
    StoredObject,
    UnfinishedWrite,
    check_key,
    check_link,
    check_prefix,
    measure,
    require_same,
)

_FOLDER_ATTEMPTS = 100  # to make a folder that others keep removing: only a lost race of microseconds fails each


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

    def find(self, key: str) -> ListedObject | None:
        path = self._path(key)
        with _file_errors(path):
            try:
                found = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return _listed(key, found) if stat.S_ISREG(found.st_mode) else None

    def read_part(self, key: str, first: int, size_bytes: int) -> Iterator[bytes]:
        path = self._path(key)
        with _file_errors(path), path.open("rb") as file:
            file.seek(first)
            while chunk := file.read(min(size_bytes, CHUNK_BYTES)):
                size_bytes -= len(chunk)
                yield chunk

    def scan(self, prefix: str = "") -> Iterator[ListedObject]:
        check_prefix(prefix)
        folder, _, beginning = prefix.rpartition("/")
        found = self._list_files(self._root / folder, beginning)
        return (file for file in found if not _is_temporary(file.key))

    def delete(self, key: str) -> None:
        self._remove(self._path(key))

    def scan_unfinished(self) -> Iterator[UnfinishedWrite]:
        found = self._list_files(self._root)
        return (
            UnfinishedWrite(file.key, file.size_bytes, file.modified_at) for file in found if _is_temporary(file.key)
        )

    def drop_unfinished(self, write: UnfinishedWrite) -> None:
        self._remove(self._root / write.key)

    def url(self, key: str) -> str:
        return str(self._path(key))

    def find_key(self, url: str) -> str | None:
        """From a path or a `file://` URL."""
        try:
            key = file_path(url).relative_to(self._root).as_posix()
            check_key(key)
        except ValueError:
            return None
        return key

    def link(self, key: str, expires_s: int) -> str:
        """A `file://` URL, which does not expire: whoever may read the folder reads it, and nobody else."""
        check_link(self.url(key), expires_s)
        return self._path(key).absolute().as_uri()

    def _chunks(self, key: str) -> Iterator[bytes]:
        path = self._path(key)
        with _file_errors(path), path.open("rb") as file:
            yield from iter(partial(file.read, CHUNK_BYTES), b"")

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    def _list_files(self, folder: Path, beginning: str = "") -> Iterator[ListedObject]:
        with _file_errors(folder):
            for entry in _files_under(folder, beginning):
                with suppress(FileNotFoundError):  # removed meanwhile
                    yield _listed(Path(entry.path).relative_to(self._root).as_posix(), entry.stat())

    def _remove(self, path: Path) -> None:
        """A file, and the folders that are empty then."""
        with _file_errors(path):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
            _sync_folder(path.parent)
            for folder in path.parents[: len(path.relative_to(self._root).parts) - 1]:
                if not _remove_empty(folder):
                    return

    @staticmethod
    def _copy(key: str, body: bytes | Path, temporary: Path) -> StoredObject:
        with opened(body) as source, _synced(temporary) as file:
            stored = measure(key, source)
            shutil.copyfileobj(source, file, CHUNK_BYTES)
        return stored


def _listed(key: str, found: os.stat_result) -> ListedObject:
    return ListedObject(key, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))


def file_path(url: str) -> Path:
    """The path that a `file://` URL names, and any other text as a path. Raises ValueError for another machine's."""
    if not url.startswith("file:"):
        return Path(url)
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"{url} names a file of another machine, {parts.netloc}")
    return Path(unquote(parts.path))


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


def _files_under(folder: Path, beginning: str = "") -> Iterator[os.DirEntry[str]]:
    """All files, those of one folder together; of the names in `folder` itself only those that begin so."""
    for entry in _entries(folder):
        if not entry.name.startswith(beginning):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files_under(Path(entry))
        elif entry.is_file():
            yield entry


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """By name; none if there is no such folder, or no longer."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_temporary(key: str) -> bool:
    return key.rpartition("/")[2].startswith(TEMPORARY_PREFIX)


def _remove_empty(folder: Path) -> bool:
    """Whether it was empty. Who is about to write there makes it again, see `_create`."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """A name for a file in the folder of `path`; the file is removed at the end, unless moved away."""
    temporary = path.parent / f"{TEMPORARY_PREFIX}{uuid4().hex}"
    try:
        yield temporary
    finally:
        with suppress(FileNotFoundError, NotADirectoryError):
            temporary.unlink()


@contextmanager
def _synced(path: Path) -> Iterator[BinaryIO]:
    """A new file, on the disk when the block ends: a rename may otherwise outlive its content."""
    with _create(path) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _create(path: Path) -> BinaryIO:
    """Open a new file in a folder that is made if need be, and that others may remove as long as it is empty."""
    for _ in range(_FOLDER_ATTEMPTS):
        with suppress(FileNotFoundError):
            _make_folder(path.parent)
            return path.open("xb")
    return path.open("xb")


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
    """See that what has changed in a folder is on the disk; nothing has if it was deleted meanwhile."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
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
