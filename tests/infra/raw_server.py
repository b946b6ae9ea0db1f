"""A loopback port that keeps what it is sent, byte for byte, and answers each connection with the same bytes."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class RawServer:
    """What came so far, a request each, as far as its first part."""

    def __init__(self, listener: socket.socket, answer: bytes, tls: ssl.SSLContext | None) -> None:
        self.port = listener.getsockname()[1]
        self.requests: list[bytes] = []
        self._listener = listener
        self._answer = answer
        self._tls = tls

    def serve(self) -> None:
        with suppress(OSError):  # of the listener, which is closed at the end
            while True:
                self._take(self._listener.accept()[0])

    def _take(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self.requests.append(connection.recv(1 << 16))
            connection.sendall(self._answer)
            connection.close()


@contextmanager
def running_raw(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[RawServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = RawServer(listener, answer, tls)
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def write_answer(status: int, body: bytes = b"{}", **headers: str) -> bytes:
    """An answer that is whole."""
    lines = [
        f"HTTP/1.1 {status} x",
        f"Content-Length: {len(body)}",
        *(f"{name}: {text}" for name, text in headers.items()),
    ]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body
