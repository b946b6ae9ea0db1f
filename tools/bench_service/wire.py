"""HTTP/1.1 on one connection of asyncio, at a tenth of what a client library costs: the bench shares the cores."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping

import httptools

CHUNK_BYTES = 64 * 1024
SILENCE_S = 30.0  # twice as long as between two signs of life of a stream


class WireBroken(Exception):
    """The connection could not be made, or ended within an answer, or brought nothing for long."""


class _Arriving:
    """One answer, as the parser finds it."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.is_headed = self.is_whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.is_headed = True

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.is_whole = True


class Wire:
    """A connection to the service, kept from one answer to the next. One request at a time."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._place = (host, port)
        self._head = f"Host: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._arriving, self._parser = _Arriving(), None
        self.status = 0
        self.headed_at = 0.0

    @property
    def headers(self) -> Mapping[str, str]:
        return self._arriving.headers

    async def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Return when the answer's status and headers are here. Raises WireBroken."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        try:
            if not self._is_open():
                self.cut()
                self._reader, self._writer = await asyncio.open_connection(*self._place)
            self._arriving = _Arriving()
            self._parser = httptools.HttpResponseParser(self._arriving)
            self._writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}{lines}{length}\r\n".encode() + body)
        except OSError as exc:
            raise WireBroken(f"no connection: {exc}") from exc
        while not self._arriving.is_headed:
            await self._receive()
        self.status, self.headed_at = self._parser.get_status_code(), time.time()

    def _is_open(self) -> bool:
        """Not closed between two answers, as any server may: only within one that is a fault."""
        reader = self._reader
        return reader is not None and not reader.at_eof() and reader.exception() is None

    async def read(self) -> bytes:
        """The whole body. Raises WireBroken."""
        while not self._arriving.is_whole:
            await self._receive()
        return b"".join(self._arriving.body)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises WireBroken."""
        while True:
            body, self._arriving.body = self._arriving.body, []
            if body:
                yield b"".join(body)
            elif self._arriving.is_whole:
                return
            else:
                await self._receive()

    async def _receive(self) -> None:
        try:
            async with asyncio.timeout(SILENCE_S):
                chunk = await self._reader.read(CHUNK_BYTES)
            if not chunk:
                raise WireBroken("the connection ended within an answer")
            self._parser.feed_data(chunk)
        except TimeoutError as exc:
            raise WireBroken(f"silence for {SILENCE_S:.0f} s") from exc
        except (OSError, httptools.HttpParserError) as exc:
            raise WireBroken(f"{type(exc).__name__}: {exc}") from exc

    def cut(self) -> None:
        """At once, as a client whose network goes away."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._reader = self._writer = None
