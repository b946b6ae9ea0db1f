"""Fixtures over a receiver, a service and the stream between them."""

import pytest
import structlog
from structlog.testing import capture_logs

from jobs.http.webhooks import delivery
from tests.jobs.http.webhooks.receiver import running_receiver
from tests.jobs.http.webhooks.service import describe, running_service, settings_for_loopback


@pytest.fixture
def receiver():
    with running_receiver() as receiver:
        yield receiver


@pytest.fixture
def note(redis):
    """Note the end of a job as lease.lua does; its entry."""
    return lambda url, job_id="job": redis.xadd(
        "h3:webhooks", {"job": job_id, "url": url, "outcome": "finished"}
    ).decode()


@pytest.fixture
def told(monkeypatch):
    """What goes into the log, as it comes."""
    with capture_logs() as lines:
        # Another test's process may have set structlog up so that loggers no longer look at this.
        monkeypatch.setattr(delivery, "log", structlog.wrap_logger(None, cache_logger_on_first_use=False))
        yield lines


@pytest.fixture
def serving(redis_url, told):
    """A service, as a context manager; what it is told can be changed."""

    def serving(describe=describe, lease_s=60.0, grace_s=5.0, **settings):
        return running_service(redis_url, settings_for_loopback(**settings), describe, lease_s=lease_s, grace_s=grace_s)

    return serving
