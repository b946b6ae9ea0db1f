"""The pages of a worker: /metrics for Prometheus, /healthz for supervisors. They carry no secrets and no prompts."""

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from urllib.parse import urlsplit

import structlog
from prometheus_client import CollectorRegistry, generate_latest

from worker.errors import StartRefused
from worker.gauges import Gauges
from worker.life import hold_signals
from worker.metrics import REGISTRY
from worker.settings import WorkerSettings
from worker.view import View

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus's own text form
CLIENT_TIMEOUT_S = 5.0  # for one that connects and says nothing

log = structlog.get_logger()


@contextmanager
def pages(settings: WorkerSettings, look: Callable[[], View]) -> Iterator[None]:
    """Serve them meanwhile, if a port is set. Raises StartRefused if it cannot be had."""
    if settings.metrics_port is None:
        yield
        return
    with Pages(str(settings.metrics_host), settings.metrics_port, look) as server:
        log.info("pages are served", paths=["/metrics", "/healthz"], address=server.server_address)
        threading.Thread(target=server.serve, name="pages", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


class Pages(ThreadingMixIn, TCPServer):  # not HTTPServer: it asks the resolver for its own name, which may take long
    """Answers each request in a thread of its own."""

    allow_reuse_address = True  # by the next life
    daemon_threads = True

    def __init__(self, host: str, port: int, look: Callable[[], View]) -> None:
        self.look = look
        self.metrics = CollectorRegistry()
        self.metrics.register(Gauges(look))
        self.metrics.register(REGISTRY)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Request)
        except OSError as exc:
            raise StartRefused(
                f"the pages cannot be served on {host}, port {port} ({exc.strerror}): "
                "name another in H3_METRICS_PORT or H3_METRICS_HOST"
            ) from exc

    def serve(self) -> None:
        """Until `shutdown`."""
        hold_signals()  # they are the main thread's: one that came here would be lost in a restart
        self.serve_forever()

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), OSError):  # else the client is gone, or too slow
            log.exception("a page failed")


class _Request(BaseHTTPRequestHandler):
    server: Pages
    timeout = CLIENT_TIMEOUT_S

    def do_GET(self) -> None:
        match urlsplit(self.path).path:
            case "/metrics":
                self._answer(HTTPStatus.OK, EXPOSITION, generate_latest(self.server.metrics))
            case "/healthz":
                self._answer_health(self.server.look())
            case _:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there are /metrics and /healthz\n")

    def _answer_health(self, view: View) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE if view.fault else HTTPStatus.OK
        told = {"healthy": not view.fault, "state": view.record.state, "reason": view.fault or view.record.reason}
        self._answer(status, "application/json", json.dumps(told).encode() + b"\n")

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """A scrape is nothing to tell of."""
