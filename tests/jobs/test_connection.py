"""Which Redis is refused, with what remedy, and what an outage of a good one looks like."""

import os
import subprocess
from contextlib import ExitStack

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from jobs.client import Client
from jobs.connection import RIGHTS, connect, judge_version, require_usable
from jobs.dead import list_dead
from jobs.errors import RedisUnavailable
from jobs.events import Finished, StepDone
from jobs.lease import Charge, Leases
from jobs.pieces import KeptPieces
from jobs.queues import QueueName
from jobs.settings import ClientSettings
from jobs.workers import read_workers
from tests.end_to_end.conftest import COMMAND, end, run
from tests.jobs.leasing import without_ids
from tests.servers import DIES_WITH_PARENT
from tests.waiting import eventually

REQUEST = {"prompt": "a red kite", "width": 64, "height": 64, "frames": 22, "steps": 2}
FINISHED = Finished(
    attempt=1, store_url="file:///store", result_key="r", video_key="v", report_key="p", playlist_key="l"
)
GIVEN = [word for word in RIGHTS.split() if word[0] in "~&+"]
WITHIN_S = 60.0  # an operator hears of an outage, and a worker is back after it


@pytest.fixture
def redis(redis_server):
    """The administrator's view of a server of this test's own."""
    with Redis.from_url(redis_server.url) as redis:
        yield redis


@pytest.fixture
def url_of_user(redis, redis_server):
    """Make a user as an administrator would, with nothing but these rights."""

    def make(rights: str) -> str:
        redis.execute_command("ACL", "SETUSER", "farm", "reset", "on", ">secret", *rights.split())
        return redis_server.url.replace("unix://", "unix://farm:secret@")

    return make


@pytest.fixture
def start_worker(tmp_path, file_store_url):
    """Start `h3render worker` without a model; its log is the fixture's second value."""
    with ExitStack() as stack:
        log = tmp_path / "worker.log"

        def start(url: str) -> None:
            command = [*DIES_WITH_PARENT, *COMMAND, "worker", "--checkpoint", str(tmp_path), "--ranks", "1"]
            command += ["--backend", "gloo", "--runner", "tests.jobs.runners:Instant", "--store", file_store_url]
            file = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(command, env=os.environ | {"REDIS_URL": url}, stdout=file, stderr=file)
            stack.callback(end, process)

        yield start, log


def test_a_fresh_redis_will_do_and_keeps_nothing_of_the_check(redis):
    require_usable(redis)
    assert redis.keys() == []


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_redis_that_drops_keys_when_full_is_refused(redis, policy):
    redis.config_set("maxmemory-policy", policy)
    with pytest.raises(RedisUnavailable, match=rf"{policy}.*CONFIG SET maxmemory-policy noeviction"):
        require_usable(redis)


@pytest.mark.parametrize("version", ["5.0.14", "6.0.16"])
def test_a_redis_that_is_too_old_is_refused(version):
    assert judge_version(version) == f"Redis speaks version {version}: use 6.2 or newer, or Valkey"


@pytest.mark.parametrize("version", ["6.2.0", "7.0.15", "7.2.4", "9.1.2", "10.0.0-rc1"])
def test_any_newer_redis_will_do(version):
    assert judge_version(version) == ""


@pytest.mark.parametrize("missing", GIVEN)
def test_a_user_that_lacks_one_of_the_rights_is_refused_and_told_all_of_them(url_of_user, missing):
    url = url_of_user(" ".join(word for word in RIGHTS.split() if word != missing))
    with Redis.from_url(url) as limited, pytest.raises(RedisUnavailable) as refused:
        require_usable(limited)
    assert f"ACL SETUSER NAME {RIGHTS}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("rights", ["", "~* &* +@all -info", "~* &* +@read"])
def test_what_is_told_mends_any_user(redis, url_of_user, rights):
    with Redis.from_url(url_of_user(rights)) as limited:
        with pytest.raises(RedisUnavailable) as refused:
            require_usable(limited)
        _, _, told = str(refused.value).partition("ACL SETUSER NAME ")
        redis.execute_command("ACL", "SETUSER", "farm", *told.split())
        require_usable(limited)


def test_a_user_with_the_rights_that_are_told_can_do_all_that_clients_and_workers_do(url_of_user):
    with connect(ClientSettings(REDIS_URL=url_of_user(RIGHTS))) as redis:
        require_usable(redis)
        client, leases = Client(redis), Leases(redis)
        job = client.submit(REQUEST, idempotency_key="key")
        [[waiting]] = leases.peek([QueueName.DEFAULT], 0, 10)
        leases.claim(waiting, "worker").hand_back(Charge.FATAL, "a rank died")
        lease = leases.claim(waiting, "worker")
        lease.beat()
        lease.tell(StepDone(step=1, steps=2, sigma=1.0, seconds=0.1))
        lease.keep(KeptPieces(), StepDone(step=2, steps=2, sigma=0.5, seconds=0.1))
        leases.reap()
        leases.sweep(QueueName)
        lease.finish(FINISHED, {"result_key": "r"})
        assert without_ids([job.wait(timeout_s=5)]) == [FINISHED]
        assert (list_dead(redis), read_workers(redis)) == ([], [])


def test_a_user_with_the_rights_that_are_told_can_do_no_harm_to_others(url_of_user):
    with Redis.from_url(url_of_user(RIGHTS)) as redis:
        for forbidden in (redis.flushall, redis.keys, redis.config_get, redis.acl_list, redis.client_list):
            with pytest.raises(NoPermissionError):
                forbidden()
        with pytest.raises(NoPermissionError):
            redis.get("somebody-elses")


def test_a_wrong_password_is_told_without_showing_it(url_of_user):
    url = url_of_user(RIGHTS).replace("secret", "guessed")
    with pytest.raises(RedisUnavailable, match="correct user and password in REDIS_URL") as refused:
        connect(ClientSettings(REDIS_URL=url))
    assert "guessed" not in str(refused.value)


def test_a_worker_is_refused_before_it_loads_anything(redis, redis_server, file_store_url, tmp_path):
    redis.config_set("maxmemory-policy", "allkeys-lru")
    command = ["worker", "--checkpoint", str(tmp_path), "--runner", "not.there:Runner"]
    done = run(*command, "--url", redis_server.url, "--store", file_store_url)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "CONFIG SET maxmemory-policy noeviction" in line


@pytest.mark.timeout(240)
def test_a_worker_with_the_rights_that_are_told_serves_and_tells_of_a_frozen_redis_and_works_on_after_it(
    url_of_user, redis_server, start_worker
):
    start, log = start_worker
    url = url_of_user(RIGHTS)
    start(url)
    with Client.open(url) as client:
        assert client.submit(REQUEST).wait(timeout_s=90)
    eventually(lambda: "ready for jobs" in log.read_text(), timeout_s=60)
    redis_server.pause()
    eventually(lambda: "unhealthy: Redis does not answer" in log.read_text(), timeout_s=WITHIN_S)
    redis_server.resume()
    with Client.open(url) as client:
        assert client.submit(REQUEST).wait(timeout_s=WITHIN_S)
    assert "permission" not in log.read_text()


def test_with_appendfsync_always_an_acknowledged_submit_survives_the_servers_death(redis, redis_server):
    redis.config_set("appendfsync", "always")
    job = Client(redis).submit(REQUEST)
    redis_server.restart()
    assert job.status().state.is_queued
    [[waiting]] = Leases(redis).peek([QueueName.DEFAULT], 0, 10)
    assert waiting.job_id == job.id
