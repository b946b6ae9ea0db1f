"""Copies a committed result from the store to a folder of this machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from jobs.errors import StoreUnavailable
from jobs.job_calls import find_store_url
from jobs.operation import run
from jobs.result import NamedStore, Result, fetch_video, read_result, result_key
from jobs.store import Store


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A result, and the store that it is in."""

    store: Store
    result: Result

    def fetch_video(self, folder: Path) -> Path:
        """Where the video is then. Raises StoreUnavailable."""
        return fetch_video(self.store, self.result.job_id, folder)

    def fetch_others(self, folder: Path) -> Iterator[Path]:
        """Everything but the video, in the job's own folder and named as in the store. Raises StoreUnavailable."""
        home = f"{self.result.job_id}/"
        keys = {piece.key for piece in self.result.pieces} - {self.result.video_key}
        for key in (result_key(self.result.job_id), *sorted(keys)):
            if not key.startswith(home):
                raise StoreUnavailable(f"{self.store.url(home + 'result.json')} names {key!a}, which is not this job's")
            self.store.fetch(key, folder / key)
            yield folder / key


def find_result(redis: Redis, named: Store | None, job_id: str) -> StoredResult:
    """Raises JobNotFinished, JobFailed, JobNotFound and StoreUnavailable.

    named  else the store that the job's last event tells of
    """
    store = NamedStore(named).find(run(find_store_url(job_id), redis), job_id)
    return StoredResult(store, read_result(store, job_id))
