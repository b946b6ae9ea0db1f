"""What log lines carry, whoever says them: this program, its threads, the libraries under it, the ranks."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
import structlog
from structlog.testing import capture_logs

from jobs.errors import StoreUnavailable
from tests.cases.conftest import Farm
from tests.worker.attempts import REQUEST, finished, publish_all
from tests.worker.runners import Light
from worker.logs import name_job

START_S = 90.0

PROGRAM = """
import logging, structlog
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from worker.lane import Lane
from jobs.logs import LogFormat
from worker.logs import configure_logs, name_job, tell_line

configure_logs(LogFormat.JSON)
log, others, is_over = structlog.get_logger(), ThreadPoolExecutor(1), Event()
with name_job("j1", 2):
    try:
        raise KeyError("boom")
    except KeyError:
        log.exception("attempt broken", step=3)
    logging.getLogger("rq.worker").warning("from a library")
    others.submit(logging.getLogger("urllib3").warning, "from a library in another thread").result()
    others.submit(log.info, "of another job", job_id="j0").result()
    others.submit(tell_line, 1, "loss is 100 %s").result()
    lane = Lane("uploads", lambda error: error)
    lane.add(lambda: (is_over.wait(30), log.info("of an upload that outlives its attempt")))
with name_job("j3", 1):
    is_over.set()
    lane.drain()
others.submit(tell_line, 0, "nothing to do").result()
"""


@pytest.fixture(scope="module")
def told():
    """The lines of the program, by what they say."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    return {line["event"]: line for line in lines}


def test_a_line_of_json_keeps_fields_and_tracebacks(told):
    line = told["attempt broken"]
    assert (line["step"], line["level"], line["job_id"], line["attempt"]) == (3, "error", "j1", 2)
    assert "KeyError: 'boom'" in line["exception"]


@pytest.mark.parametrize("event", ["from a library", "from a library in another thread"])
def test_what_libraries_say_has_the_same_form_and_names_the_running_job(told, event):
    line = told[event]
    assert (line["level"], line["job_id"], line["attempt"]) == ("warning", "j1", 2)


def test_what_a_rank_prints_is_left_as_it_is_and_names_rank_and_job(told):
    line = told["loss is 100 %s"]
    assert (line["rank"], line["job_id"], line["attempt"]) == (1, "j1", 2)


def test_a_line_about_another_job_does_not_get_the_number_of_the_running_attempt(told):
    assert told["of another job"]["job_id"] == "j0"
    assert "attempt" not in told["of another job"]


def test_an_upload_that_outlives_its_attempt_names_that_one(told):
    line = told["of an upload that outlives its attempt"]
    assert (line["job_id"], line["attempt"]) == ("j1", 2)


def test_between_jobs_no_job_is_named(told):
    line = told["nothing to do"]
    assert (line["rank"], "job_id" in line, "attempt" in line) == (0, False, False)


def test_the_threads_that_upload_and_confirm_name_their_job(store, job):
    failures = iter(2 * [StoreUnavailable("away")])

    def fail_once_each(method, name):
        if (method, name.rpartition("/")[2]) in awaited:
            awaited.remove((method, name.rpartition("/")[2]))
            raise next(failures)

    awaited = {("put", "video.mp4"), ("stat", "video.mp4")}
    store.before = fail_once_each
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines, name_job(job.id, 1):
        outputs = job.begin(store)
        publish_all(outputs, job)
        outputs.commit(finished(job))
    said = [(line["event"], line["job_id"], line["attempt"]) for line in lines]
    assert said == 2 * [("the store does not answer, trying again", job.id, 1)]


class Talking(Light):
    """Says when it is set up, and what it does, as native libraries do."""

    def setup(self, *, checkpoint):
        os.write(1, b"set up\n")

    def between_steps(self):
        os.write(2, b"rank %d goes on\n" % self.rank)


@pytest.mark.slow
def test_what_the_ranks_of_a_worker_print_names_rank_job_and_attempt(redis_url, file_store_url, tmp_path, full):
    number = 2 if full else 1
    with ExitStack() as stack:
        farm = Farm(redis_url, file_store_url, tmp_path, stack)
        options = ("--runner", "tests.worker.test_logs:Talking", "--burst")
        worker = farm.start(*options, ranks=number, H3_LOG_FORMAT="json")
        job = farm.client.submit(REQUEST)
        assert worker.process.wait(START_S) == 0
    lines = [json.loads(line) for line in worker.log.read_text().splitlines() if line.startswith("{")]
    said = {(line["event"], line["rank"], line.get("job_id"), line.get("attempt")) for line in lines if "rank" in line}
    assert said >= {(f"rank {rank} goes on", rank, job.id, 1) for rank in range(number)}
    assert said >= {("set up", rank, None, None) for rank in range(number)}
