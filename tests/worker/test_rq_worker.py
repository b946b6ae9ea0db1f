"""The worker's bookkeeping on a real Redis; the fleet is never started."""

import threading

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from structlog.testing import capture_logs

from jobs.client import Client
from jobs.events import Finished
from jobs.queues import QueueName
from jobs.store import open_store
from tests.waiting import eventually
from worker.errors import UploadFailed
from worker.mgpu import MGPUController, MGPURunner
from worker.rq_worker import RenderWorker
from worker.settings import WorkerSettings

FINISHED = Finished(attempt=1, store_url="file:///s", result_key="r", video_key="v", report_key="p", playlist_key="l")
ENDINGS = {
    "queued": lambda worker, job, queue: worker._hand_back(job, queue),
    "failed": lambda worker, job, queue: worker._fail(job, queue, 1, UploadFailed("the store is full")),
    "finished": lambda worker, job, queue: worker._succeed(job, queue, FINISHED),
}


class NoRunner(MGPURunner):
    def __call__(self):
        yield


@pytest.fixture
def worker(redis_server, file_store_url):
    once = Retry(NoBackoff(), 0)  # the library's own retries would hide ours
    with Redis(unix_socket_path=str(redis_server.socket), retry=once) as redis:
        yield RenderWorker(
            redis,
            redis_server.url,
            list(QueueName),
            MGPUController(NoRunner, num_gpus=2, backend="gloo"),
            open_store(file_store_url),
            WorkerSettings(store_url=file_store_url),
        )


@pytest.mark.parametrize("status", ENDINGS)
def test_an_outage_while_an_attempt_ends_leaves_no_record_of_it_behind(worker, redis_server, status):
    """A record left in RQ's registry of running jobs would later fail a job that waits or has finished."""
    handle = Client(worker.connection).submit({"prompt": "a red kite"})
    job, queue = worker._take()
    worker.prepare_execution(job)
    worker.prepare_job_execution(job, remove_from_intermediate_queue=True)
    job.started_at = job.enqueued_at
    assert queue.started_job_registry.get_job_ids(cleanup=False) == [job.id]

    redis_server.stop()
    ending = threading.Thread(target=ENDINGS[status], args=(worker, job, queue))
    with capture_logs() as lines:
        ending.start()
        eventually(lambda: [line for line in lines if line["event"].startswith("Redis does not answer")])
        redis_server.start()
        ending.join(30)
    assert not ending.is_alive()
    assert handle.status() == status
    assert queue.started_job_registry.get_job_ids(cleanup=False) == []
    assert worker.connection.keys("rq:execution*") == []
