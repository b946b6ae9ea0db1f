"""Serves files over HTTP as stores of large ones do: by ranges. It can break off, hold back, and refuse."""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer(ThreadingHTTPServer):
    """Faults are set by a test, each for the parts that begin there."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files = {}
        self.asked = []  # where each part that was asked for begins
        self.cuts = {}  # begin -> bytes after which the answer breaks off, once
        self.statuses = {}  # begin -> the answer, once
        self.redirects = {}  # name -> where to
        self.held = set()  # begins that are not answered
        self.ignores_ranges = False

    def put(self, name, content):
        """As the manifest has it."""
        self.files[name] = content
        return {
            "name": name,
            "url": f"{self.url}/{name}?signature=canary",
            "size_bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: FileServer

    def do_GET(self):
        name = self.path.partition("?")[0].removeprefix("/")
        if (target := self.server.redirects.get(name)) is not None:
            self._answer(302, b"", Location=target)
            return
        content = self.server.files.get(name)
        begin, end = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        self.server.asked.append(begin)
        if begin in self.server.held:
            self.close_connection = True
            threading.Event().wait()
        if content is None:
            self._answer(403, b"expired")
        elif (status := self.server.statuses.pop(begin, None)) is not None:
            self._answer(status, b"")
        elif self.server.ignores_ranges:
            self._answer(200, content)
        else:
            content_range = f"bytes {begin}-{min(end + 1, len(content)) - 1}/{len(content)}"
            self._answer(
                206, content[begin : end + 1], self.server.cuts.pop(begin, None), **{"Content-Range": content_range}
            )

    def _answer(self, status, body, cut=None, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body[:cut])
        self.close_connection = cut is not None

    def log_message(self, *_):
        pass


@contextmanager
def serving_files() -> Iterator[FileServer]:
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
