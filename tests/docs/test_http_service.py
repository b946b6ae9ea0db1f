"""The blocks of docs/http-service.md: against the service, or compared with it."""

import json
import os
import re
import shlex
import subprocess
import threading
import time
import tomllib

import pytest
from redis import Redis

from jobs.http.settings import ServeSettings
from jobs.http.tokens import read_tokens
from jobs.http.webhooks.notice import make_body
from jobs.http.webhooks.signature import parse_secret, sign
from tests.docs.pages import DOCS, section, take
from tests.jobs.commands import invoke
from tests.jobs.http.rendering import PNG, VIDEO, Render
from tests.jobs.http.serving import WEBHOOK_SECRET, serving
from tests.jobs.http.test_serve import running

PAGE = "http-service.md"
INSTALL, START, CLIENT, CURL = (take(PAGE, name) for name in ("install", "start", "openai.py", "curl"))
TOKENS = take(PAGE, "tokens")
WEBHOOK, RECEIVER, PROXY = (take(PAGE, name) for name in ("webhook", "receiver.py", "proxy"))


@pytest.fixture
def service(redis, redis_url, tmp_path):
    """As the page has it: with its tokens."""
    with serving(redis_url, tmp_path, tokens_text=TOKENS) as service:
        yield service


@pytest.fixture
def rendering(redis, redis_url, service):
    """Whoever submits gets a video."""
    over = threading.Event()

    def render():
        with Redis.from_url(redis_url) as mine:
            while not over.wait(0.01):
                for job_id in mine.lrange("rq:queue:default", 0, -1):
                    Render(mine, service.store, job_id.decode()).finish()

    thread = threading.Thread(target=render)
    thread.start()
    yield
    over.set()
    thread.join()


def test_what_is_installed_is_there():
    extras = re.search(r"\[(.*)\]", INSTALL)[1].split(",")
    known = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) <= set(known)
    assert "fastapi" in str(known["http"])


def test_the_commands_start_a_service(redis_url, file_store_url, tmp_path, monkeypatch):
    here, others = (shlex.split(line.removeprefix("$ "), comments=True)[2:] for line in START.splitlines())
    assert here == []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokens").write_text(TOKENS)
    with running(*others, REDIS_URL=redis_url, H3_STORE_URL=file_store_url) as (_, url):
        assert url.startswith("http://0.0.0.0:")
    (tmp_path / "tokens").unlink()
    assert "tokens cannot be read" in invoke("serve", *others, code=2).stderr


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
def test_openais_client_gets_a_video(service, rendering, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    token = TOKENS.split("ada")[1].split()[0]
    exec(CLIENT.replace("http://127.0.0.1:8000", service.url).replace("the token", token), {})
    assert (tmp_path / "kite.mp4").read_bytes() == VIDEO


def test_curl_gets_a_video(service, rendering, tmp_path):
    (tmp_path / "kite.png").write_bytes(PNG)
    create, status, events, content = CURL.splitlines()
    token = TOKENS.split("ada")[1].split()[0]

    def run(command, **environment):
        command += f' -H "Authorization: Bearer {token}"'
        return subprocess.run(
            ["bash", "-c", command],
            env=os.environ | {"H3": service.url} | environment,
            cwd=tmp_path,
            capture_output=True,
            check=True,
            timeout=30,
        ).stdout

    job_id = json.loads(run(create))["id"]
    assert b"event: finished" in run(events, ID=job_id)
    assert json.loads(run(status, ID=job_id))["status"] == "completed"
    run(content, ID=job_id)
    assert (tmp_path / "kite.mp4").read_bytes() == VIDEO


def test_the_tokens_are_a_file_of_tokens(tmp_path):
    (tmp_path / "tokens").write_text(TOKENS)
    tokens = read_tokens(tmp_path / "tokens")
    assert [(name, [token.sees_all for token in tokens.named(name)]) for name in ("ada", "bob", "ops")] == [
        ("ada", [False]),
        ("bob", [False]),
        ("ops", [True]),
    ]


def test_the_receiver_takes_what_the_service_sends_and_nothing_else(capsys):
    shown = json.loads(WEBHOOK)
    body = make_body("evt_1", shown["data"]["id"], "finished", shown["created_at"], shown["data"])
    assert json.loads(body) == shown | {"id": "evt_1"}
    names = {}
    exec(RECEIVER.replace("whsec_...", WEBHOOK_SECRET), names)
    headers = sign(parse_secret(WEBHOOK_SECRET), "evt_1", int(time.time()), body)
    names["receive"](body.decode(), headers)
    assert capsys.readouterr().out == f"video.completed {shown['data']['id']}\n"
    with pytest.raises(Exception, match="signature"):
        names["receive"](body.decode().replace("completed", "failed"), headers)


def test_the_settings_are_those_of_the_service():
    text = (DOCS / PAGE).read_text()
    settings = ServeSettings()
    assert f"| `H3_REQUEST_LIMIT` | {settings.request_limit.amount}/minute |" in text
    assert f"| `H3_SUBMIT_LIMIT` | {settings.submit_limit.amount}/minute |" in text
    assert f"| `H3_MOST_OPEN` | {settings.most_open} |" in text
    assert f"client_max_body_size {settings.most_body_bytes >> 20}m;" in PROXY
    assert f"({settings.most_body_bytes >> 20} MiB)" in section(PAGE, "For others than this machine")
