"""The commands of docs/operations.md, as whoever starts a machine types them: the worker is a real one."""

import json
import shlex
from contextlib import ExitStack

import pytest

from h3.tiny import write_tiny
from jobs.workers import read_workers
from tests.docs.pages import take
from tests.end_to_end.conftest import run, start_process
from tests.servers import free_ports
from tests.waiting import eventually

START = [shlex.split(line, comments=True) for line in take("operations.md", "start").splitlines()]


@pytest.fixture
def words(tmp_path):
    """What the page says instead of."""
    model = tmp_path / "model"
    write_tiny(model, seed=0)
    return {"/models/MiniMax-H3": str(model), "9464": str(free_ports(1)[0])}


def test_a_machine_is_looked_at_and_its_worker_started_and_seen(redis, redis_url, file_store_url, words, tmp_path):
    environment = {"REDIS_URL": redis_url, "H3_STORE_URL": file_store_url}
    programs, commands = zip(*((line[0], [words.get(word, word) for word in line[1:]]) for line in START), strict=True)
    assert set(programs) == {"h3render"}
    doctor, doctor_of_model, worker, workers = commands
    with ExitStack() as stack:
        assert worker[0] == "worker"
        start_process(stack, tmp_path / "log", *worker[1:], "--ranks", "1", "--backend", "gloo", **environment)
        for command in (doctor, doctor_of_model):
            done = run(*command, **environment)
            assert done.returncode == 0, done.stdout + done.stderr
        assert "can be served by 2 ranks" in done.stdout
        eventually(lambda: any(found.is_alive for found in read_workers(redis)), timeout_s=60)
        [seen] = json.loads(run(*workers, "--json", **environment).stdout)
        assert seen["state"] in ("starting", "ready")
