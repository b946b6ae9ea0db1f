"""Log lines of a program and of its libraries, in one form, on stderr: text on a terminal, else JSON."""

import logging
import sys
from enum import StrEnum

import structlog
from structlog.typing import Processor


class LogFormat(StrEnum):
    """How log lines look."""

    AUTO = "auto"  # text on a terminal, else JSON
    TEXT = "text"
    JSON = "json"


def configure_logs(log_format: LogFormat, *processors: Processor, level: int = logging.INFO) -> None:
    """Send structlog and the standard library (RQ, boto3, torch, uvicorn) through the same renderer.

    processors  that see each line of either first
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        *processors,
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


def _rendering(log_format: LogFormat) -> list[Processor]:
    if log_format is LogFormat.JSON or (log_format is LogFormat.AUTO and not sys.stderr.isatty()):
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
