"""What a worker does besides the plain render. One, over TCP and S3 and as docs/operations.md starts it, serves all."""

import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from jobs import events
from jobs.client import Client
from jobs.queues import QueueName, open_queue
from jobs.store import open_store
from tests.conftest import replace_aws
from tests.docs.operations_page import typed
from tests.end_to_end.conftest import run, start_process
from tests.end_to_end.runners import FOLDER, NONSENSE, STORE, STREAM, Twisted
from tests.servers import free_ports, running_redis

REFUSALS = {
    "pickled": "job carries no readable call",
    "hostile": "job calls 'os.system'",
    "malformed": "width is missing",
}
SMALL = {"width": 64, "height": 64, "steps": 2, "seed": 1}


@dataclass(frozen=True)
class Lasting:
    """A worker with a queue and a store of its own."""

    redis: Redis
    url: str
    store_url: str
    folder: Path

    def submit(self, prompt, *, frames=22, queue=QueueName.DEFAULT):
        return Client(self.redis).submit({"prompt": prompt, "frames": frames, **SMALL}, queue=queue)


@pytest.fixture(scope="module")
def lasting(need_redis, s3_server, checkpoint, tmp_path_factory, full):
    folder, store_url = tmp_path_factory.mktemp("lasting"), f"s3://{s3_server.bucket}/lasting-{uuid4().hex}"
    port, metrics_port = free_ports(2)
    url = f"redis://127.0.0.1:{port}/0"
    ranks = "2" if full else "1"  # one decodes in rounds, too
    with running_redis() as server, Redis.from_url(server.url) as redis, ExitStack() as stack:
        replace_aws(s3_server.environment, stack.enter_context(pytest.MonkeyPatch.context()))
        redis.config_set("port", port)
        command, *arguments = typed(2, checkpoint, metrics_port)
        assert command == "worker"  # as which it is started
        arguments += ["--ranks", ranks, "--runner", f"{Twisted.__module__}:{Twisted.__name__}"]
        arguments += ["--url", url, "--store", store_url]
        start_process(stack, folder / "worker.log", *arguments, **{FOLDER: str(folder), STORE: store_url})
        yield Lasting(redis, url, store_url, folder)


def test_a_segment_is_in_the_store_before_the_last_clip_is_decoded(lasting):
    """The order is a cause, not a coincidence: the decoder waits for the stored segment."""
    job = lasting.submit(STREAM, frames=56)  # three clips: two or three rounds
    told = [event.kind for event in job.events(timeout_s=90)]
    assert told[-4:] == ["segment_ready", "segment_ready", "segment_ready", "finished"]
    assert (lasting.folder / STREAM).exists()  # there was a second round


def test_a_job_of_another_kind_is_refused_and_the_next_one_is_rendered(lasting):
    redis = lasting.redis
    queue = open_queue(QueueName.HIGH, redis)
    Queue("high", connection=redis).enqueue_call("os.system", args=["true"], job_id="pickled")
    queue.enqueue_call("os.system", args=["true"], job_id="hostile")
    queue.enqueue_call("worker.rq_worker.render", kwargs={"request": {"prompt": "x"}}, job_id="malformed")
    # Behind them: of another queue, it could be taken between two looks into this one.
    assert lasting.submit("a red kite", queue=QueueName.HIGH).wait(timeout_s=90)
    for job_id, reason in REFUSALS.items():
        job = Job.fetch(job_id, connection=redis, serializer=JSONSerializer)
        assert job.get_status().value == "failed"
        assert reason in job.latest_result().exc_string
        assert reason in Client(redis).job(job_id).news()[-1].reason
        assert redis.lrange("rq:queue:high:intermediate", 0, -1) == []


def test_a_fault_that_nobody_expected_gives_the_job_back_with_its_reason(lasting):
    told = list(lasting.submit(NONSENSE).events(timeout_s=100))
    [lost] = [event for event in told if isinstance(event, events.AttemptLost)]
    assert "TypeError" in lost.reason
    assert isinstance(told[-1], events.Finished)
    assert told[-1].attempt == 2
    assert "Traceback" in (lasting.folder / "worker.log").read_text()  # for whoever has to mend it


def test_a_result_whose_worker_died_before_it_could_say_so_is_the_jobs_result(lasting):
    redis, job = lasting.redis, lasting.submit("a red kite")
    first = job.wait(timeout_s=90)
    redis.delete(f"h3:events:{job.id}")
    redis.hdel(f"rq:job:{job.id}", "h3_outcome")
    redis.hset(f"rq:job:{job.id}", "status", "queued")
    redis.lpush("rq:queue:default", job.id)
    again = job.wait(timeout_s=60)
    assert (again.attempt, again.video_key) == (1, first.video_key)
    assert job.status().state == "finished"


def test_submit_and_worker_meet_over_redis_and_s3(lasting, tmp_path):
    where = ("--url", lasting.url, "--store", lasting.store_url)
    size = ("--width", "64", "--height", "64", "--frames", "22", "--steps", "2", "--seed", "1")
    submitted = run("submit", "a red kite", *size, "--watch", *where, timeout_s=100)
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.splitlines()[0]
    assert f"{lasting.store_url}/{job_id}/attempts/1/video.mp4" in submitted.stdout
    assert "denoise: 2/2" in submitted.stderr
    seen = run(*typed(3, Path()), "--url", lasting.url, COLUMNS="200").stdout
    assert re.search(r" (starting|busy|ready) ", seen), seen  # as of its last beat
    store = open_store(lasting.store_url)
    job = Client.open(lasting.url).job(job_id)  # the last event names the store
    assert job.fetch(tmp_path).stat().st_size > 0
    for piece in job.result().pieces:
        assert (stored := store.stat(piece.key)) is not None
        assert (stored.size_bytes, stored.sha256) == (piece.size_bytes, piece.sha256)
