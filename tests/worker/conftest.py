"""Fixtures of the tests that need no ranks; those of the controller are in its own folder."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis import Redis

from tests.worker.attempts import Job, ScriptedStore


@pytest.fixture
def job(redis_url, tmp_path):
    with Redis.from_url(redis_url) as redis:
        job = Job(redis, tmp_path)
        yield job
        job.close()


@pytest.fixture
def store(file_store_url):
    return ScriptedStore(Path(urlsplit(file_store_url).path))
