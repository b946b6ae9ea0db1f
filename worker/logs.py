"""Log lines of this program and of the libraries under it, in one form: text on a terminal, else JSON, on stderr."""

import logging
import sys

import structlog
from structlog.typing import Processor


def configure_logs(log_format: str, level: int = logging.INFO) -> None:
    """Send structlog and the standard library (RQ, boto3, torch) through the same renderer."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
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
    formatter = structlog.stdlib.ProcessorFormatter(processor=_renderer(log_format), foreign_pre_chain=shared)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=level, force=True)


def _renderer(log_format: str) -> Processor:
    if log_format == "json" or (log_format == "auto" and not sys.stderr.isatty()):
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
