"""What a worker needs around it. No torch here: it takes a second to import, and what is missing is told without it."""

import os
from pathlib import Path

from jobs.connection import connect, require_usable
from jobs.store import open_store
from worker.errors import StartRefused
from worker.settings import WorkerSettings

ANSWER_TIMEOUT_S = 5  # of Redis: a worker asks for nothing that takes longer


def require_surroundings(settings: WorkerSettings) -> None:
    """Raises what tells that Redis, the store or the folder for outputs is of no use."""
    # Without tries of its own, as the worker has it.
    with connect(settings, answer_timeout_s=ANSWER_TIMEOUT_S, retries=0) as redis:
        require_usable(redis)
    open_store(settings.store_url).check()
    check_spool(settings.spool_dir)


def check_spool(folder: Path | None) -> None:
    """Raises StartRefused unless outputs can wait there."""
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        raise StartRefused(f"H3_SPOOL_DIR {folder} is no folder that this user can write: make it, or name another")
