"""The backends of docs/web-backends.md under uvicorn, and what a browser does with them."""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from tests.docs.pages import take
from tests.servers import DIES_WITH_PARENT, free_ports
from tests.waiting import eventually

PAGE = "web-backends.md"
APP, VIEWS, URLS = (take(PAGE, name) for name in ("app.py", "views.py", "urls.py"))
SERVE = take(PAGE, "serve").removeprefix("$ uvicorn app:app ").split()
SETTINGS = """
SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "renders.urls"
MIDDLEWARE = ["renders.views.FarmErrors"]
"""
KEEP_ALIVE_S = 0.2  # a page says 15


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Message
    body: bytes

    def json(self):
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Told:
    """One server-sent event."""

    id: str
    event: dict[str, object]


class Stream:
    """An open event stream."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._lines = response
        self.status = response.status
        self.headers = response.headers

    def lines(self) -> Iterator[str]:
        while line := self._lines.readline():
            yield line.decode().rstrip("\n")

    def __iter__(self) -> Iterator[Told]:
        fields: dict[str, str] = {}
        for line in self.lines():
            name, _, value = line.partition(": ")
            if line and name:
                fields[name] = value
            elif fields and not line:
                yield Told(fields.pop("id"), json.loads(fields.pop("data")))
                assert not fields

    def read(self, count: int) -> list[Told]:
        told = iter(self)
        return [next(told) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Backend:
    port: int

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            text = None if body is None else json.dumps(body)
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, text, {"Content-Type": "application/json"} | names)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())

    def submit(self, wish: object, **headers: str) -> str:
        """The job's id."""
        answer = self.ask("POST", "/renders", wish, **headers)
        assert answer.status == 202, answer
        return answer.json()["id"]

    @contextmanager
    def follow(self, job_id: str, since: str | None = None) -> Iterator[Stream]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            headers = {} if since is None else {"Last-Event-ID": since}
            connection.request("GET", f"/renders/{job_id}/events", headers=headers)
            yield Stream(connection.getresponse())


@contextmanager
def running_fastapi(folder: Path, environment: dict[str, str], python: str = sys.executable) -> Iterator[Backend]:
    (folder / "app.py").write_text(_hurried(APP))
    with _running_uvicorn(folder, environment, [python, "-m", "uvicorn", "app:app"]) as backend:
        yield backend


@contextmanager
def running_django(folder: Path, environment: dict[str, str]) -> Iterator[Backend]:
    (folder / "renders").mkdir()
    for name, text in (
        ("__init__.py", ""),
        ("views.py", _hurried(VIEWS)),
        ("urls.py", URLS),
        ("settings.py", SETTINGS),
    ):
        (folder / "renders" / name).write_text(text)
    environment = environment | {"DJANGO_SETTINGS_MODULE": "renders.settings"}
    command = [sys.executable, "-m", "uvicorn", "--factory", "django.core.asgi:get_asgi_application", "--lifespan=off"]
    with _running_uvicorn(folder, environment, command) as backend:
        yield backend


def _hurried(text: str) -> str:
    assert "KEEP_ALIVE_S = 15\n" in text
    return text.replace("KEEP_ALIVE_S = 15\n", f"KEEP_ALIVE_S = {KEEP_ALIVE_S}\n")


@contextmanager
def _running_uvicorn(folder: Path, environment: dict[str, str], command: list[str]) -> Iterator[Backend]:
    [port] = free_ports(1)
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*DIES_WITH_PARENT, *command, *SERVE, "--port", str(port)],
            cwd=folder,
            env=os.environ | {"PYTHONWARNINGS": "error"} | environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        eventually(lambda: _has_begun(process, log), timeout_s=20)
        yield Backend(port)
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()


def _has_begun(process: subprocess.Popen[bytes], log: Path) -> bool:
    told = log.read_text()
    assert process.poll() is None, told
    return "Uvicorn running on" in told
