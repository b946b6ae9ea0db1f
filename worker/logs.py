"""Log lines of this program, of the libraries under it and of its ranks, in one form: text on a terminal, else JSON.

Each goes to stderr, and names the job and the attempt that ran when it was said.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from worker.settings import LogFormat

_running: dict[str, object] = {}  # what names the attempt that this process is at: it has one at a time

log = structlog.get_logger()


def configure_logs(log_format: LogFormat, level: int = logging.INFO) -> None:
    """Send structlog and the standard library (RQ, boto3, torch) through the same renderer."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _add_running,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    rendering = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(log_format)]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=rendering, foreign_pre_chain=shared))
    logging.basicConfig(handlers=[handler], level=level, force=True)


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


def _rendering(log_format: LogFormat) -> list[Processor]:
    if log_format is LogFormat.JSON or (log_format is LogFormat.AUTO and not sys.stderr.isatty()):
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
