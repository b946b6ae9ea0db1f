"""A proxy before the test's S3 that fails as services and networks do, when and where a test says so.

It forwards the Host header as it came: SigV4 signs it, and SeaweedFS checks the signature against it.
"""

import math
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 16
ANSWER_TIMEOUT_S = 60.0
OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "expect"}
CODES = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}  # as S3 names them


class Kind(Enum):
    ANSWER = auto()  # an error in place of the store's answer; the store hears nothing
    RESET = auto()  # half of the body arrives: of a PUT's at the store, of a GET's at the client; else no answer
    LOSE_ANSWER = auto()  # the store does what it is asked, nobody hears of it
    STALL = auto()  # late, but well


@dataclass(slots=True)
class Fault:
    """What becomes of the next requests that it fits."""

    kind: Kind
    times: float
    containing: str
    method: str
    status: int = 0
    seconds: float = 0.0

    def fits(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method in ("", method) and self.containing in path


@dataclass(frozen=True, slots=True)
class Seen:
    """One request, as it came."""

    method: str
    path: str  # /bucket/key?query
    fault: Kind | None


class FaultyS3:
    """Give it any number of faults: the first that fits a request and is not used up decides it.

    containing  of the path with its query, such as "segment-00005" or "partNumber=2"; all if empty
    times       how many requests; without end if left out
    method      all if empty
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._seen: list[Seen] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def answer(self, status: int, *, times: float = math.inf, containing: str = "", method: str = "PUT") -> None:
        """Refuse requests with an error of S3: 403, 500 or 503."""
        self._faults.append(Fault(Kind.ANSWER, times, containing, method, status=status))

    def reset(self, *, times: float = math.inf, containing: str = "", method: str = "PUT") -> None:
        """Break connections in the middle of a body."""
        self._faults.append(Fault(Kind.RESET, times, containing, method))

    def lose_answer(self, *, times: float = math.inf, containing: str = "", method: str = "PUT") -> None:
        """Do what is asked, and break the connection in place of the answer."""
        self._faults.append(Fault(Kind.LOSE_ANSWER, times, containing, method))

    def stall(self, seconds: float, *, times: float = math.inf, containing: str = "", method: str = "PUT") -> None:
        """Let requests wait before they are forwarded."""
        self._faults.append(Fault(Kind.STALL, times, containing, method, seconds=seconds))

    def heal(self) -> None:
        """Let everything pass from now on."""
        with self._lock:
            self._faults.clear()

    def seen(self, method: str = "PUT", containing: str = "") -> list[Seen]:
        """The requests so far, oldest first."""
        with self._lock:
            return [seen for seen in self._seen if method in ("", seen.method) and containing in seen.path]

    def judge(self, method: str, path: str) -> Fault | None:
        """What becomes of this request. For the proxy."""
        with self._lock:
            fault = next((fault for fault in self._faults if fault.fits(method, path)), None)
            if fault is not None:
                fault.times -= 1
            self._seen.append(Seen(method, path, fault and fault.kind))
            return fault


@contextmanager
def running_faulty_s3(upstream: str) -> Iterator[FaultyS3]:
    """`upstream`: the endpoint of a real S3, over plain HTTP."""
    server = _Server(upstream)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.faulty
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 64

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Proxy)
        self.upstream = urlsplit(upstream).netloc
        self.faulty = FaultyS3(f"http://127.0.0.1:{self.server_port}")

    def handle_error(self, request, client_address) -> None:
        """A client that hangs up is none of our faults."""


class _Proxy(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def proxy(self) -> None:
        fault = self.server.faulty.judge(self.command, self.path)
        match fault and fault.kind:
            case Kind.ANSWER:
                self._refuse(fault.status)
            case Kind.RESET if self._body_bytes:
                with self._sent(self._body_bytes // 2):
                    self._cut()
            case Kind.RESET:
                with self._answered() as answer:
                    if answer.length:
                        self._pass_on(answer, share=0.5)
                self._cut()
            case Kind.LOSE_ANSWER:
                with self._answered():
                    self._cut()
            case _:
                time.sleep(fault.seconds if fault else 0.0)
                with self._answered() as answer:
                    self._pass_on(answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = proxy  # noqa: N815  http.server's names

    @property
    def _body_bytes(self) -> int:
        return int(self.headers.get("Content-Length", 0))

    @contextmanager
    def _sent(self, body_bytes: int) -> Iterator[HTTPConnection]:
        """A connection to the store that has got the request, with so much of its body."""
        with closing(HTTPConnection(self.server.upstream, timeout=ANSWER_TIMEOUT_S)) as upstream:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in OF_ONE_HOP:
                    upstream.putheader(name, value)
            upstream.endheaders()
            for chunk in self._body(body_bytes):
                upstream.send(chunk)
            yield upstream

    @contextmanager
    def _answered(self) -> Iterator[HTTPResponse]:
        with self._sent(self._body_bytes) as upstream, closing(upstream.getresponse()) as answer:
            yield answer

    def _body(self, size_bytes: int) -> Iterator[bytes]:
        while size_bytes > 0:
            chunk = self.rfile.read(min(size_bytes, CHUNK_BYTES))
            if not chunk:
                raise ConnectionError("the client hung up")
            yield chunk
            size_bytes -= len(chunk)

    def _pass_on(self, answer: HTTPResponse, share: float = 1.0) -> None:
        body = answer.read()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in OF_ONE_HOP:
                self.send_header(name, value)
        if answer.chunked:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: round(len(body) * share)])

    def _refuse(self, status: int) -> None:
        for _ in self._body(self._body_bytes):
            pass
        body = f"<Error><Code>{CODES[status]}</Code><Message>injected</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _cut(self) -> None:
        """Reset the client's connection, in place of an orderly end."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())
