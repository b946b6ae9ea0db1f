"""Which jobs there are: noted by the threads that play workers and by the clients' event loop."""

import random
import threading
from collections import Counter


class Board:
    """Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, set[str]] = {}  # jobs that have not ended, by owner
        self._running: set[str] = set()
        self._ended: set[str] = set()
        self._followers: Counter[str] = Counter()
        self._is_closed = False

    def note_submitted(self, owner: str, job_id: str) -> None:
        """A job may have begun, and even ended, before its submitter knows of it."""
        with self._lock:
            if job_id not in self._ended:
                self._open.setdefault(owner, set()).add(job_id)

    def note_begun(self, job_id: str) -> None:
        with self._lock:
            self._running.add(job_id)

    def note_ended(self, job_id: str) -> None:
        with self._lock:
            self._running.discard(job_id)
            self._ended.add(job_id)
            for jobs in self._open.values():
                jobs.discard(job_id)

    def count_open(self, owner: str) -> int:
        with self._lock:
            return len(self._open.get(owner, ()))

    def count_ended(self) -> int:
        with self._lock:
            return len(self._ended)

    def pick_open(self, owner: str) -> str | None:
        """Any of theirs."""
        with self._lock:
            jobs = self._open.get(owner)
            return random.choice(sorted(jobs)) if jobs else None  # noqa: S311  no secret

    def pick_running(self, owner: str, known: set[str]) -> str | None:
        """Of theirs the one that is followed by the fewest; none that is known."""
        with self._lock:
            jobs = (self._running & self._open.get(owner, set())) - known
            if not jobs:
                return None
            job_id = min(jobs, key=lambda job_id: self._followers[job_id])
            self._followers[job_id] += 1
            return job_id

    def close(self) -> None:
        """Nothing more is begun."""
        with self._lock:
            self._is_closed = True

    @property
    def is_closed(self) -> bool:
        return self._is_closed
