"""The service in this process, under a real server and on a real port, and what asks it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import uvicorn

from jobs.http.app import build_app
from jobs.http.settings import ServeSettings
from jobs.settings import read_settings
from jobs.store import Store, open_store
from tests.waiting import eventually

ADA, BOB, OPERATOR = "ada-0123456789abcdefghij", "bob-0123456789abcdefghij", "ops-0123456789abcdefghij"
TOKENS = f"ada {ADA}\nbob {BOB} # a comment\nops {OPERATOR} operator\n"
WEBHOOK_SECRET = "whsec_" + "c2VjcmV0" * 4


@dataclass(frozen=True, slots=True)
class Service:
    """A running one."""

    url: str
    store: Store

    def client(self, token: str | None = ADA) -> httpx2.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=20)


@contextmanager
def serving(redis_url: str, folder: Path, *, tokens_text: str = TOKENS, **settings: object) -> Iterator[Service]:
    """With three tokens, unless others are given; a store in the folder."""
    tokens = folder / "tokens"
    tokens.write_text(tokens_text)
    store_url = (folder / "store").as_uri()
    given = {"redis_url": redis_url, "store_url": store_url, "tokens_file": tokens} | settings
    app = build_app(read_settings(ServeSettings, **given))
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive())
        [socket] = server.servers[0].sockets
        yield Service(f"http://127.0.0.1:{socket.getsockname()[1]}", open_store(store_url))
    finally:
        server.should_exit = True
        thread.join()


@dataclass(frozen=True, slots=True)
class Told:
    """One server-sent event."""

    id: str
    kind: str
    data: dict[str, object]


def read_told(lines: Iterator[str]) -> Iterator[Told]:
    """The events of a stream, without its comments."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif not line and "id" in fields:
            yield Told(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}
