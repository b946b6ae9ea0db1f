"""The real command `h3render serve`."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx2
import pytest
from redis import Redis

from jobs import embedded
from jobs.client import Client
from jobs.lease import LEASES_KEY, Leases, Waiting
from tests.jobs.commands import invoke
from tests.jobs.http.serving import ADA, TOKENS, read_told
from tests.servers import DIES_WITH_PARENT, free_ports
from tests.waiting import eventually

REQUEST = {"prompt": "a red kite", "frames": 22}


@contextmanager
def running(*arguments, **environment):
    """The command, and where it serves."""
    command = [*DIES_WITH_PARENT, sys.executable, "-m", "h3render", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_it_serves_until_it_is_told_to_stop_and_streams_end_with_it(redis_url, redis, file_store_url, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS)
    with (
        running("--tokens", str(tokens), REDIS_URL=redis_url, H3_STORE_URL=file_store_url) as (process, url),
        httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {ADA}"}, timeout=20) as client,
    ):
        eventually(lambda: answers(client))
        job_id = client.post("/v1/videos", json=REQUEST).json()["id"]
        with client.stream("GET", f"/v1/videos/{job_id}/events") as answer:
            told = read_told(answer.iter_lines())
            assert next(told).kind == "queued"
            process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx2.TransportError):
                list(told)  # which a client takes up again with the next service
        assert process.wait(20) == 0
        assert ADA not in process.stderr.read()


def answers(client):
    try:
        return client.get("/healthz").status_code == 200
    except httpx2.TransportError:
        return False


def test_it_takes_jobs_back_whose_worker_is_gone(redis_server, file_store_url):
    with Redis.from_url(redis_server.url) as redis:
        job = Client(redis).submit(REQUEST)
        assert Leases(redis, lease_s=0.3).claim(Waiting(job.id, "default", "", b"", 0.0), "gone")
        with running(REDIS_URL=redis_server.url, H3_STORE_URL=file_store_url, H3_LEASE_S="0.3"):
            eventually(lambda: not redis.zcard(LEASES_KEY))
        assert job.status().attempt == 1
        assert redis.lrange("rq:queue:default", 0, -1) == [job.id.encode()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "there are no tokens: name a file of them"),
        (["--host", "192.0.2.1", "--tokens", "TOKENS"], "cannot be listened on"),
        (["--tokens", "gone"], "H3_TOKENS_FILE gone cannot be read"),
        (["--port", "70000"], "H3_SERVE_PORT 70000"),
        (["--store", "ftp://host"], "unknown scheme 'ftp'"),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(arguments, words, tmp_path, monkeypatch, redis_url):
    monkeypatch.setenv("REDIS_URL", redis_url)
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS)
    told = invoke("serve", *(str(tokens) if word == "TOKENS" else word for word in arguments), code=2)
    assert words in told.stderr


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("H3_REQUEST_LIMIT", "often", "H3_REQUEST_LIMIT 'often'"),
        ("H3_MOST_OPEN", "0", "H3_MOST_OPEN '0'"),
        ("H3_WEBHOOK_SECRET", "hush", "whsec_"),
    ],
)
def test_a_wrong_setting_is_named(name, value, words, monkeypatch, redis_url):
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv(name, value)
    assert words in invoke("serve", code=2).stderr


def test_a_supervisor_is_told_to_try_again_while_redis_is_away(file_store_url, monkeypatch):
    [port] = free_ports(1)
    monkeypatch.setenv("H3_STORE_URL", file_store_url)
    assert "does not answer" in invoke("serve", "--url", f"redis://127.0.0.1:{port}", code=75).stderr


def test_the_embedded_redis_is_used_where_none_is_named(private_folder, file_store_url):
    folders = {"H3_STATE_DIR": str(private_folder / "state"), "H3_RUNTIME_DIR": str(private_folder / "run")}
    try:
        with (
            running(H3_STORE_URL=file_store_url, REDIS_URL="", **folders) as (_, url),
            httpx2.Client(base_url=url) as client,
        ):
            eventually(lambda: answers(client))
            assert client.get("/v1/videos").json()["data"] == []
    finally:
        embedded.stop(state_folder=private_folder / "state", runtime_folder=private_folder / "run")
