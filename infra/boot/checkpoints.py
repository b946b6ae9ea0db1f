"""Sees to it that every file of the manifest lies in the folder of models, whole and right."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx2
import structlog

from infra.boot.errors import CheckpointRefused, NoRoom
from infra.boot.fetch import fetch_parts, open_client
from infra.boot.manifest import CheckpointFile
from infra.boot.stored_file import StoredFile

SPARE_BYTES = 1 << 30  # that stay free

log = structlog.get_logger(__name__)


def provide_checkpoints(
    files: Sequence[CheckpointFile],
    folder: Path,
    *,
    owner: str,
    fetches: int,
    part_bytes: int,
    is_stopped: Callable[[], bool],
) -> None:
    """What is there and right is left alone. Raises Unfit, Stopped.

    owner       of the locks: the pod
    fetches     parts that are under way at a time
    part_bytes  of one: what a kill loses at most, times those
    """
    every = [StoredFile(folder, file, part_bytes) for file in files]
    lacking = [stored for stored in every if not stored.is_verified()]
    _require_room(folder, lacking)
    with open_client() as client:
        for stored in lacking:
            with stored.locked(owner, is_stopped):
                _provide(client, stored, fetches, is_stopped)


def _require_room(folder: Path, lacking: Sequence[StoredFile]) -> None:
    needed, free = sum(stored.missing_bytes for stored in lacking), shutil.disk_usage(folder).free
    if lacking and needed + SPARE_BYTES > free:
        raise NoRoom(
            f"{folder} has {free / 2**30:.1f} GiB free; {(needed + SPARE_BYTES) / 2**30:.1f} are needed for "
            f"{len(lacking)} checkpoints: order a larger disk"
        )


def _provide(client: httpx2.Client, stored: StoredFile, fetches: int, is_stopped: Callable[[], bool]) -> None:
    file = stored.file
    if stored.is_verified():  # by a pod that held the lock before
        return
    is_resumed = stored.take_up()
    log.info("a checkpoint is fetched", name=file.name, place=file.place, missing_bytes=stored.missing_bytes)
    fetch_parts(client, stored, fetches, is_stopped)
    is_right = stored.publish()
    if not is_right and is_resumed:
        log.warning("a checkpoint that was gone on with is not right, and is fetched anew", name=file.name)
        fetch_parts(client, stored, fetches, is_stopped)
        is_right = stored.publish()
    if not is_right:
        raise CheckpointRefused(
            f"{file.name}: what {file.place} gives has another SHA-256 than the manifest's {file.sha256}: correct the "
            "manifest or the URL; what was fetched is removed"
        )
    log.info("a checkpoint is there", name=file.name, size_bytes=file.size_bytes)
