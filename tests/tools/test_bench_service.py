"""`make bench-service`, shortened; and that its check finds what is wrong. How fast it was, a quiet machine says."""

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.waiting import eventually
from tools.bench_service.check import (
    GRACE_S,
    LONGEST_ANSWER_S,
    doubt_answer,
    doubt_following,
    doubt_list,
    doubt_refusal,
    doubt_times,
    doubt_video,
)
from tools.bench_service.measured import Answer, Asked, Following, Heard, Outage, Told
from tools.bench_service.service import find_error
from tools.bench_service.sse import read_told
from tools.bench_service.wire import Wire, WireBroken

REPOSITORY = Path(__file__).parents[2]
SHORT = ("--pollers", "20", "--streams", "10", "--seconds", "5", "--down-s", "1", "--job-s", "1.5", "--cut-every", "7")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_restart_of_redis_costs_the_clients_of_the_service_nothing_but_clear_refusals(need_redis, tmp_path, full):
    path = tmp_path / "report.json"
    command = [sys.executable, "tools/bench_service", str(path), *(() if full else SHORT)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False, timeout=200)
    assert path.exists(), done.stderr.decode()
    report = json.loads(path.read_text())
    assert report["findings"] == []
    missed = [goal for goal, is_met in report["goals"].items() if not is_met]
    assert [goal for goal in missed if "p95" not in goal] == []
    assert done.returncode == (1 if missed else 0)
    assert report["passed"] == (not missed)
    assert {"date", "devices", "command", "redis", "plan"} <= report.keys()
    assert report["restart"]["refused"] > 0
    assert report["streams"]["resumed_after_own_cut"] >= (50 if full else 10)
    assert report["streams"]["delay_ms"]["p50"] > 0
    assert report["service"]["redis_connections_peak"] > 0


def test_all_that_a_run_has_started_ends_with_it(need_redis):
    command = [sys.executable, "tools/bench_service", *SHORT]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL) as run:
        try:
            started = eventually(lambda: " serve " in str(found := children_of(run.pid)) and found, timeout_s=60)
        finally:
            run.send_signal(signal.SIGTERM)
    assert run.returncode == 1
    assert len(started) == 2  # with Redis
    eventually(lambda: not [pid for pid in started if command_of(pid) == started[pid]])


def children_of(pid: int) -> dict[str, str]:
    """With their commands."""
    lists = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return {child: command_of(child) for children in lists for child in children}


def command_of(pid: str) -> str:
    """Empty when it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


# --- streams

LOG = [Told("1000-0", "queued"), Told("1000-1", "started"), Told("2000-0", "step_done"), Told("3000-0", "finished")]
SPOILED = {
    "a lost one": ([*LOG[:2], LOG[3]], "event 2000-0 (step_done) is lost"),
    "none at all": ([], "event 1000-0 (queued) is lost"),
    "a doubled one": ([*LOG[:3], LOG[2], LOG[3]], "event 2000-0 (step_done) came 2 times"),
    "two that are swapped": ([LOG[0], LOG[2], LOG[1], LOG[3]], "events came out of order"),
    "one that nobody told": ([*LOG[:3], Told("2500-0", "step_done"), LOG[3]], "event 2500-0 (step_done) was never"),
    "one of another kind": ([*LOG[:2], Told("2000-0", "failed"), LOG[3]], "event 2000-0 (step_done) is lost"),
}


def follow(*told: Told, is_over: bool = True) -> Following:
    return Following("a", [Heard(one, one.at, 0.0) for one in told], is_over=is_over)


def test_a_whole_stream_is_passed_and_one_without_its_end_is_not():
    assert list(doubt_following(follow(*LOG), LOG)) == []
    assert list(doubt_following(follow(*LOG, is_over=False), LOG)) == ["the last event never came"]


@pytest.mark.parametrize(("heard", "doubt"), SPOILED.values(), ids=SPOILED)
def test_whatever_is_wrong_in_a_stream_is_found(heard, doubt):
    assert any(doubt in found for found in doubt_following(follow(*heard), LOG))


def test_events_are_read_from_pieces_of_any_size_and_their_data_must_agree():
    stream = b'retry: 1000\n\nid: 1-0\nevent: queued\ndata: {"id": "1-0", "kind": "queued"}\n\n: nothing new\n\n'
    stream += b'id: 2-0\nevent: started\ndata: {"id": "1-0", "kind": "started"}\n\n'

    async def read(size: int) -> list[Told]:
        async def pieces():
            for first in range(0, len(stream), size):
                yield stream[first : first + size]

        return [told async for told in read_told(pieces())]

    for size in (1, 7, len(stream)):
        assert asyncio.run(read(size)) == [Told("1-0", "queued"), Told("2-0", "started, with other data")]


def test_a_server_may_close_its_connection_between_two_answers_and_not_within_one():
    async def answer(reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        size = 3 if b"/short" in request else 2
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\nok".encode())
        await writer.drain()
        writer.close()

    async def ask():
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            wire = Wire(*server.sockets[0].getsockname(), "token")
            for path in ("/a", "/b"):
                await wire.ask("GET", path)
                assert (wire.status, await wire.read()) == (200, b"ok")
                await asyncio.sleep(0.05)
            await wire.ask("GET", "/short")
            with pytest.raises(WireBroken, match="ended within an answer"):
                await wire.read()
            wire.cut()
            await asyncio.sleep(0)  # for the loop to close it

    asyncio.run(ask())


def test_an_error_in_the_log_of_the_service_is_told_in_a_line():
    assert find_error('{"event": "service unavailable", "reason": "Redis does not answer"}') == ""
    traceback = "Traceback (most recent call last):\n  File x\nRuntimeError: <T 0x7fe3>; closed"
    assert find_error(json.dumps({"event": "x", "exception": traceback})) == "RuntimeError: <T 0x..>; closed"
    assert find_error("Traceback (most recent call last):")
    assert find_error("  what follows it") == ""


# --- answers

AWAY = Outage(stopped_at=100.0, back_at=102.0)
RIGHT = Answer(Asked.POLL, sent_at=50.0, took_s=0.1, status=200)
LATE = AWAY.back_at + GRACE_S
WRONG = {
    "an error": (replace(RIGHT, status=500), "status 500"),
    "an error while Redis is away": (replace(RIGHT, status=500, sent_at=101.0), "status 500"),
    "a refusal of a known render": (replace(RIGHT, status=404), "status 404"),
    "no answer": (replace(RIGHT, status=0, flaw="no connection"), "no connection"),
    "503 before the restart": (replace(RIGHT, status=503, sent_at=99.0), "503 while Redis was there"),
    "503 long after": (replace(RIGHT, status=503, sent_at=LATE + 0.1), "503 while Redis was there"),
    "a flaw of a 200": (replace(RIGHT, flaw="another video"), "another video"),
    "a flaw of a 503": (replace(RIGHT, status=503, sent_at=101.0, flaw="503 without Retry-After"), "503 without"),
    "nothing where a stream should be": (replace(RIGHT, asked=Asked.STREAM, status=204), "status 204"),
    "a stream where nothing should be": (replace(RIGHT, asked=Asked.END), "status 200"),
}


def test_right_answers_are_passed():
    right = [RIGHT, replace(RIGHT, asked=Asked.END, status=204)]
    right += [replace(RIGHT, status=503, sent_at=at) for at in (AWAY.stopped_at - 0.05, 101.0, LATE - 0.1)]
    assert [doubt for answer in right for doubt in doubt_answer(answer, AWAY)] == []


@pytest.mark.parametrize(("answer", "doubt"), WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_found(answer, doubt):
    [found] = doubt_answer(answer, AWAY)
    assert found.startswith(doubt)


def test_an_answer_that_takes_too_long_is_found():
    assert list(doubt_times([RIGHT, replace(RIGHT, took_s=LONGEST_ANSWER_S + 1)])) == ["poll: took longer than 5 s"]


def test_a_refusal_must_say_why_and_when_to_come_again():
    right = {"error": {"message": "try again", "type": "server_error", "param": None, "code": "unavailable"}}
    after = {"retry-after": "2"}
    assert doubt_refusal(after, json.dumps(right).encode()) == ""
    assert doubt_refusal({}, json.dumps(right).encode()) == "503 without Retry-After"
    other = {"error": {**right["error"], "code": "http"}}
    for body in (b"", b"Service Unavailable", b'{"detail": "no"}', b"[]", json.dumps(other).encode()):
        assert doubt_refusal(after, body)


def test_a_video_or_list_must_be_the_one_that_was_asked_for():
    video = {"object": "video", "id": "a", "status": "queued"}
    assert doubt_video(json.dumps(video).encode(), "a") == doubt_video(json.dumps(video).encode()) == ""
    for other in ({**video, "id": "b"}, {**video, "status": "lost"}, {}, []):
        assert doubt_video(json.dumps(other).encode(), "a")
    assert doubt_list(json.dumps({"object": "list", "data": [video]}).encode()) == ""
    for page in ({"object": "list", "data": [{}]}, {"object": "list"}, {"data": []}, []):
        assert doubt_list(json.dumps(page).encode())
