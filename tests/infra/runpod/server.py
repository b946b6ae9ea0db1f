"""The HTTP side: real sockets on a loopback port, and what faults do to an answer on its way back.

`running_runpod` is what tests use; `tests.infra.runpod` tells how.
"""

import select
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR

from tests.infra.runpod.answers import Answer
from tests.infra.runpod.calls import place_pod
from tests.infra.runpod.clock import Clock, ManualClock
from tests.infra.runpod.faults import Fault, Plan
from tests.infra.runpod.machines import Machines, Start
from tests.infra.runpod.pods import Course, Pod, Status
from tests.infra.runpod.rates import RateLimit
from tests.infra.runpod.service import KEY, Request, Seen, Service, make_service
from tests.infra.runpod.world import World

INTERVAL_S = 0.01  # in which a log stream and the machines look for news
STOP_INTERVAL_S = 0.002  # in which the server looks whether to stop: each test waits for it


class RunPod:
    """One account behind one loopback port."""

    def __init__(self, service: Service, url: str, start: Start | None) -> None:
        self._service = service
        self._machines = None if start is None else Machines(start)
        self._machines_lock = threading.Lock()
        self.url = url
        self.world = service.world

    @property
    def key(self) -> str:
        return self._service.key

    @property
    def environment(self) -> dict[str, str]:
        """What a client in this process or a child needs to find this server, and no other."""
        return {"RUNPOD_API_URL": self.url, "RUNPOD_API_KEY": self.key}

    @property
    def now(self) -> float:
        return self._service.clock.now()

    @property
    def breaches(self) -> list[str]:
        """Where the server itself broke the contract. Not empty: the test fails at its end."""
        return self._service.breaches

    def advance(self, seconds: float) -> None:
        """Let time pass. Machines have begun and ended when this returns."""
        with self._service.lock:
            self._service.clock.advance(seconds)
        self.settle()

    def script(self, method: str, path: str, fault: Fault, **how: object) -> None:
        """See `faults.Script.add` for `times`, `skip`, `seconds`, `target` and `edit`."""
        with self._service.lock:
            self._service.script.add(method, path, fault, **how)

    def heal(self) -> None:
        """Nothing that was scripted goes wrong from now on."""
        with self._service.lock:
            self._service.script.heal()

    def unused_faults(self) -> list[Plan]:
        with self._service.lock:
            return self._service.script.unused()

    @contextmanager
    def changing(self) -> Iterator[World]:
        """The world, while no request is answered: to change it beside clients in other threads or processes."""
        with self._service.lock:
            yield self.world

    def next_pods(self, *courses: Course) -> None:
        """What becomes of the pods that are created next, one course each."""
        with self._service.lock:
            self.world.courses.extend(courses)

    def add_pod(self, body: Mapping[str, object], *, cluster: str | None = None) -> Pod:
        """One that was there already: no request, but the same rules."""
        with self._service.lock:
            return place_pod(self.world, dict(body), self.now, cluster=cluster)

    def end_pod(self, pod_id: str, status: Status = Status.TERMINATED) -> None:
        """Without a request: it dies (EXITED, ERROR), or vanishes."""
        with self._service.lock:
            self.world.end(pod_id, status, self.now)
        self.settle()

    def log_line(self, pod_id: str, text: str, source: str = "container") -> None:
        with self._service.lock:
            self.world.log(pod_id, text, self.now, source)

    def alive(self) -> list[Pod]:
        """Pods that cost money now, whoever knows of them."""
        with self._service.lock:
            return self.world.alive(self.now)

    def seen(self, method: str = "", path: str = "") -> list[Seen]:
        """The requests so far, oldest first; of one method, or whose path contains `path`."""
        with self._service.lock:
            return [seen for seen in self._service.log if method in ("", seen.method) and path in seen.path]

    def changes(self) -> list[Seen]:
        """The requests that could have changed something."""
        return [seen for seen in self.seen() if seen.method != "GET"]

    def outside(self) -> list[Seen]:
        """The requests that aren't, or not wholly, in the document."""
        return [seen for seen in self.seen() if seen.outside]

    def settle(self) -> None:
        """Let what the time brought come over the pods and their machines."""
        self._service.settle()
        if self._machines is None:
            return
        with self._machines_lock:
            for turn in self._taken_turns():
                self._machines.follow(turn)

    def end_machines(self) -> None:
        if self._machines is not None:
            with self._machines_lock:
                self._machines.end_all()

    def _taken_turns(self):
        with self._service.lock:
            turns, self._service.turns = self._service.turns, []
            return turns


@contextmanager
def running_runpod(
    *,
    later: bool = False,
    clock: Clock | None = None,
    world: World | None = None,
    rate_limit: RateLimit | None = None,
    key: str = KEY,
    start: Start | None = None,
) -> Iterator[RunPod]:
    """A server, until the block ends. Fails there if an answer of its own wasn't in the document.

    later  the document's later version
    clock  a ManualClock if left out
    start  begins something real for each pod that runs
    """
    service = make_service(
        later=later,
        clock=clock or ManualClock(),
        world=world or World(),
        rate_limit=rate_limit or RateLimit(),
        key=key,
    )
    server = _Server(service)
    runpod = RunPod(service, f"http://127.0.0.1:{server.server_port}", start)
    threads = [threading.Thread(target=server.serve_forever, kwargs={"poll_interval": STOP_INTERVAL_S})]
    if start is not None:
        threads.append(threading.Thread(target=_settle_until, args=(runpod, server.stopping)))
    for thread in threads:
        thread.start()
    try:
        yield runpod
    finally:
        server.stop()
        for thread in threads:
            thread.join()
        server.server_close()
        runpod.end_machines()
    assert not runpod.breaches, "\n".join(["the test server broke the contract:", *runpod.breaches])


def _settle_until(runpod: RunPod, stopping: threading.Event) -> None:
    while not stopping.wait(INTERVAL_S):
        try:
            runpod.settle()
        except Exception:
            runpod.breaches.append(f"a machine did not start or end:\n{traceback.format_exc()}")


class _Server(ThreadingHTTPServer):
    request_queue_size = 64

    def __init__(self, service: Service) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.service = service
        self.stopping = threading.Event()
        self._sockets = set()

    def stop(self) -> None:
        """Clients may keep connections open: they are closed."""
        self.stopping.set()
        self.shutdown()
        for connection in list(self._sockets):
            with suppress(OSError):
                connection.shutdown(SHUT_RDWR)

    def process_request(self, request, client_address) -> None:
        self._sockets.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request) -> None:
        self._sockets.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request, client_address) -> None:
        """A client that hangs up is no news; all else is."""
        if not isinstance(sys.exception(), ConnectionError):
            self.service.breaches.append(traceback.format_exc())


class _Connection(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a small answer waits 40 ms for the client's acknowledgement
    server: _Server

    def converse(self) -> None:
        reply = self.server.service.respond(self._request())
        if reply.answer is None:
            self.close_connection = True
            return
        if _has(reply.plan, Fault.STALL):
            self.server.stopping.wait(reply.plan.seconds)
        if reply.answer.stream is not None:
            self._stream(reply.answer, reply.plan)
        else:
            self._send(reply.answer, reply.plan)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = converse  # noqa: N815  http.server's names

    def log_message(self, *_: object) -> None:
        """Nothing: see `RunPod.seen`."""

    def _request(self) -> Request:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        return Request(self.command, self.path, headers, body)

    def _send(self, answer: Answer, plan: Plan | None) -> None:
        body = answer.encoded()
        self._begin(answer, {} if answer.body is None else {"Content-Length": str(len(body))})
        if _has(plan, Fault.HALF_BODY):
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif _has(plan, Fault.SLOW_DRIP):
            self._drip(body, plan.seconds)
        else:
            self.wfile.write(body)

    def _drip(self, body: bytes, pause_s: float) -> None:
        for offset in range(len(body)):
            self.wfile.write(body[offset : offset + 1])
            if self.server.stopping.wait(pause_s):
                self.close_connection = True
                return

    def _stream(self, answer: Answer, plan: Plan | None) -> None:
        """In chunks, until the client hangs up or the server stops. `HALF_BODY` breaks it after the first event."""
        self._begin(answer, {"Transfer-Encoding": "chunked"})
        self.close_connection = True
        pieces = answer.stream()
        while not self.server.stopping.wait(INTERVAL_S):
            with self.server.service.lock:
                self.server.service.settle()
                piece = next(pieces)
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            if self._client_left() or (_has(plan, Fault.HALF_BODY) and piece.startswith(b"id:")):
                return

    def _client_left(self) -> bool:
        """A stream without news would notice only at its next line."""
        return bool(select.select([self.connection], [], [], 0)[0])

    def _begin(self, answer: Answer, headers: Mapping[str, str]) -> None:
        self.send_response_only(answer.status)
        for name, value in {"Content-Type": answer.content_type, **answer.headers, **headers}.items():
            if answer.body is not None or answer.stream is not None or name != "Content-Type":
                self.send_header(name, value)
        self.end_headers()


def _has(plan: Plan | None, fault: Fault) -> bool:
    return plan is not None and plan.fault is fault
