"""Log lines of a worker: each names the job and the attempt that ran when it was said, whoever said it."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.typing import EventDict, WrappedLogger

import jobs.logs
from jobs.logs import LogFormat

_running: dict[str, object] = {}  # what names the attempt that this process is at: it has one at a time

log = structlog.get_logger()


def configure_logs(log_format: LogFormat) -> None:
    """Of this process, its libraries and its ranks."""
    jobs.logs.configure_logs(log_format, _add_running)


@contextmanager
def name_job(job_id: str, attempt: int) -> Iterator[None]:
    """Every line that is logged meanwhile, by whatever thread, names this attempt, unless it names another job."""
    _running.update(job_id=job_id, attempt=attempt)
    try:
        # For what outlives this block: a thread that was begun in a copy of this context goes on to name this attempt.
        with structlog.contextvars.bound_contextvars(**_running):
            yield
    finally:
        _running.clear()


def tell_line(rank: int, line: str) -> None:
    """What a rank has printed."""
    log.info(line, rank=rank)


def _add_running(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    return line if "job_id" in line else {**line, **_running}
