"""The pages of a worker: what they say when, over real HTTP, with and without a real worker behind them."""

import json
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from structlog.testing import capture_logs

from jobs import events
from jobs.workers import WorkerState, read_workers
from tests.cases.conftest import Farm
from tests.cases.runners import Script
from tests.servers import free_ports
from tests.waiting import eventually
from tests.worker.views import WELL, view
from worker.errors import StartRefused
from worker.heartbeat import Heartbeat
from worker.life import SIGNALS
from worker.mgpu.state import State
from worker.monitor import pages
from worker.settings import WorkerSettings

START_S, DEADLINE_S = 90.0, 30.0
DEATH_SEEN_S = 10.0  # as the worker promises; on a busy machine, too


@pytest.fixture
def port():
    return free_ports(1)[0]


def settings_for(port, host="127.0.0.1"):
    return WorkerSettings(metrics_port=port, metrics_host=host)


def get(port, path, host="127.0.0.1"):
    """Status and body; status 0 if nobody answers."""
    try:
        with urlopen(f"http://{host}:{port}{path}", timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()
    except (URLError, ConnectionError):
        return 0, ""


def health(port):
    status, body = get(port, "/healthz")
    return status, json.loads(body) if status else {}


# --- what is well


@pytest.mark.parametrize("state", [state for state in WorkerState if state not in ("unhealthy", "lost")])
def test_a_worker_that_loads_works_pauses_or_leaves_is_well(state):
    fleet = {WorkerState.STARTING: State.STARTING, WorkerState.DRAINING: State.STOPPED}.get(state, State.IDLE)
    assert view(state=state, fleet=fleet).fault == ""


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"unanswered_s": 21.0}, "Redis has answered no beat for 21 s"),
        ({"unlooked_s": 31.0}, "the heartbeat hangs or has died: not heard of for 31 s"),
        ({"fleet": State.POISONED}, "the fleet is poisoned"),
        ({"fleet": State.STOPPED}, "the fleet is stopped"),
        ({"state": WorkerState.UNHEALTHY, "reason": "the fleet did not start"}, "the fleet did not start"),
    ],
    ids=str,
)
def test_what_is_not_well_is_named(changes, fault):
    assert view(**changes).fault == fault


@pytest.mark.parametrize("changes", [{"unanswered_s": 19.0}, {"unlooked_s": 29.0}], ids=str)
def test_a_moment_of_silence_is_no_fault(changes):
    assert view(**changes).fault == ""


def test_the_heartbeat_knows_for_how_long_redis_has_not_answered(redis_server):
    heartbeat = Heartbeat(
        redis_server.url, 0.05, beat=lambda redis: redis.ping(), look=lambda: None, ask=lambda redis: redis.ping()
    )
    with heartbeat, capture_logs():
        redis_server.stop()
        eventually(lambda: heartbeat.unanswered_s > 0.5)
        assert heartbeat.unlooked_s < heartbeat.unanswered_s
        redis_server.start()
        eventually(lambda: heartbeat.unanswered_s < 0.1)


def test_the_heartbeat_knows_for_how_long_it_hangs(redis_url):
    may_go = threading.Event()
    heartbeat = Heartbeat(redis_url, 0.05, beat=lambda _: None, look=may_go.wait, ask=lambda _: None)
    with heartbeat:
        eventually(lambda: heartbeat.unlooked_s > 0.5)
        may_go.set()
        eventually(lambda: heartbeat.unlooked_s < 0.1)


# --- the pages


def test_the_pages_are_metrics_and_health_and_nothing_else(port):
    with pages(settings_for(port), lambda: WELL):
        status, metrics = get(port, "/metrics")
        assert status == 200
        assert 'h3_worker_state{state="ready"} 1.0' in metrics
        assert "h3_jobs_total{" in metrics
        assert "process_open_fds" in metrics
        assert health(port) == (200, {"healthy": True, "state": "ready", "reason": ""})
        assert get(port, "/metrics?name=x")[0] == 200
        assert [get(port, path)[0] for path in ("/", "/metrics/", "/healthz/../etc/passwd")] == [404, 404, 404]
    assert get(port, "/metrics")[0] == 0


def test_health_says_why_a_worker_is_not_well_and_why_one_takes_no_job(port):
    shown = [view(reason="paused", state=WorkerState.PAUSED), view(fleet=State.POISONED)]
    with pages(settings_for(port), lambda: shown[0]):
        assert health(port) == (200, {"healthy": True, "state": "paused", "reason": "paused"})
        shown.pop(0)
        assert health(port) == (503, {"healthy": False, "state": "ready", "reason": "the fleet is poisoned"})


def test_without_a_port_nothing_is_served():
    before = threading.active_count()
    with pages(WorkerSettings(), lambda: WELL):
        assert threading.active_count() == before


def test_a_port_that_is_taken_is_refused_with_its_number(port):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(StartRefused, match=rf"127\.0\.0\.1, port {port} \(Address already in use\).*H3_METRICS_PORT"),
        pages(settings_for(port), lambda: WELL),
    ):
        pass


def test_the_next_life_gets_the_port_at_once(port):
    for _ in range(3):
        with pages(settings_for(port), lambda: WELL):
            assert health(port)[0] == 200


def test_a_client_that_says_nothing_keeps_nobody_waiting(port):
    with (
        pages(settings_for(port), lambda: WELL),
        socket.create_connection(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)) as half,
    ):
        half.sendall(b"GET /metr")
        assert health(port)[0] == 200


def test_a_page_that_fails_is_told_and_the_next_one_comes(port):
    def look():
        if failures:
            raise failures.pop()
        return WELL

    failures = [KeyError("state")]
    with pages(settings_for(port), look), capture_logs() as lines:
        assert health(port)[0] == 0
        assert health(port)[0] == 200
    assert [line["event"] for line in lines] == ["a page failed"]


def test_the_threads_of_the_pages_leave_signals_to_the_main_thread(port):
    """One that took a signal while the worker becomes a new process would lose it."""
    masks = []

    def look():
        masks.append(blocked_signals(threading.get_native_id()))
        return WELL

    with pages(settings_for(port), look):
        health(port)
    assert masks[0] >= SIGNALS


def blocked_signals(thread_id):
    status = Path(f"/proc/self/task/{thread_id}/status").read_text().splitlines()
    [mask] = [int(line.split()[1], 16) for line in status if line.startswith("SigBlk:")]
    return {number for number in signal.valid_signals() if mask >> (number - 1) & 1}


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_the_pages_may_be_served_on_ipv6(port):
    with pages(settings_for(port, "::1"), lambda: WELL):
        assert get(port, "/healthz", host="[::1]")[0] == 200


# --- of a real worker


@pytest.mark.slow
@pytest.mark.timeout(300)  # two starts of a fleet
def test_a_worker_is_seen_while_it_loads_through_a_lost_fleet_and_an_outage(
    redis_server, file_store_url, tmp_path, port, full
):
    last_rank = 1 if full else 0
    with ExitStack() as stack:
        farm = Farm(redis_server.url, file_store_url, tmp_path, stack, lease_s=6.0)
        worker = farm.start("--metrics-port", str(port), ranks=last_rank + 1)
        eventually(lambda: health(port)[0] == 200, timeout_s=START_S)
        assert health(port)[1]["state"] == "starting"
        eventually(worker.is_ready, timeout_s=START_S)
        farm.client.submit(Script(steps=3).request())
        await_metrics(port, {'h3_jobs_total{cause="",outcome="finished"}': 1, "h3_step_seconds_count": 3})

        job = farm.client.submit(Script(gate=str(tmp_path / "gate"), gate_step=2).request())
        farm.await_event(job.id, events.StepDone)
        assert health(port)[1]["state"] == "busy"
        os.kill(read_workers(farm.redis)[0].ranks[last_rank].pid, signal.SIGKILL)
        killed_at = time.monotonic()
        [lost] = farm.await_event(job.id, events.AttemptLost)
        assert time.monotonic() - killed_at < DEATH_SEEN_S
        assert f"rank {last_rank}" in lost.reason
        (tmp_path / "gate").touch()
        await_metrics(
            port,
            {
                'h3_jobs_total{cause="",outcome="finished"}': 2,
                'h3_attempts_lost_total{charge="fatal",error="AttemptLost"}': 1,
                "h3_worker_restarts_total": 1,
            },
        )

        redis_server.pause()
        eventually(lambda: health(port)[0] == 503, timeout_s=DEADLINE_S)
        assert "Redis has answered no beat for" in health(port)[1]["reason"]
        redis_server.resume()
        eventually(lambda: health(port)[0] == 200, timeout_s=DEADLINE_S)


def await_metrics(port, expected):
    """Until the metrics of these names are these, and zero by other labels."""
    names = tuple(name.partition("{")[0] for name in expected)

    def read():
        lines = [line.rpartition(" ") for line in get(port, "/metrics")[1].splitlines() if line.startswith(names)]
        return {name: float(value) for name, _, value in lines if float(value)}

    eventually(lambda: read() == expected, timeout_s=START_S)


def test_a_worker_whose_port_is_taken_ends_before_it_loads_anything(redis_url, file_store_url, tmp_path, port):
    with ExitStack() as stack, socket.create_server(("0.0.0.0", port)):
        worker = Farm(redis_url, file_store_url, tmp_path, stack).start("--metrics-port", str(port))
        assert worker.process.wait(START_S) == 2
        log = worker.log.read_text()
        assert f"port {port}" in log
        assert "starting the fleet" not in log
