"""A receiver of webhooks that answers as a test says, on a loopback address."""

import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ENDLESS_BYTES = 1 << 30
_PIECE = b"x" * 65536


@dataclass(frozen=True)
class Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    is_endless: bool = False  # its body, which is sent as long as somebody reads


@dataclass(frozen=True)
class Call:
    path: str
    headers: Message
    body: bytes


class Receiver:
    """What has called, and what they are told: the answers one after the other, the last one from then on."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self.calls: list[Call] = []
        self.answers: Sequence[Answer] = (Answer(),)
        self.sent_bytes = 0  # of an endless answer, until nobody read any more
        self.has_sent = threading.Event()
        self.is_open = threading.Event()  # else calls are kept waiting
        self.is_open.set()
        self._lock = threading.Lock()
        self.server = _Server((host, port), _handler_of(self))
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.url = f"http://{host}:{self.port}"

    def take(self, call: Call) -> Answer:
        with self._lock:
            answer = self.answers[min(len(self.calls), len(self.answers) - 1)]
            self.calls.append(call)
        self.is_open.wait(30)
        return answer

    @property
    def paths(self) -> list[str]:
        return [call.path for call in self.calls]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Callers that go away are what some tests are about."""


def _handler_of(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self._tell(receiver.take(Call(self.path, self.headers, body)))

        def _tell(self, answer: Answer) -> None:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(ENDLESS_BYTES if answer.is_endless else 0))
            self.end_headers()
            if answer.is_endless:
                self._send_endless()

        def _send_endless(self) -> None:
            with suppress(OSError):
                while receiver.sent_bytes < ENDLESS_BYTES:
                    self.wfile.write(_PIECE)
                    receiver.sent_bytes += len(_PIECE)
            receiver.has_sent.set()
            self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler


@contextmanager
def running_receiver(host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver(host, port, tls)
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.is_open.set()
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()
