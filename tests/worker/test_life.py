"""What a worker knows of its earlier lives, and when it gives up."""

import subprocess
import sys

import pytest

from worker.life import MOST_FAILED_STARTS, VARIABLE, WINDOW_S, FailedStart, Life


def fail(*starts):
    """A life with failed starts, each given as seconds since the one before, and seconds that it took."""
    life, now = Life(), 0.0
    for pause_s, took_s in starts:
        began_at = now + pause_s
        now = began_at + took_s
        life = life.with_failed_start(FailedStart(began_at=began_at, ended_at=now))
    return life


def test_a_start_may_fail_and_so_may_the_second():
    assert not Life().is_hopeless
    assert not fail((0, 5)).is_hopeless
    assert not fail((0, 5), (1, 5)).is_hopeless


def test_the_third_failed_start_in_a_row_is_the_last():
    assert fail((0, 5), (1, 5), (2, 5)).is_hopeless


def test_what_the_starts_took_does_not_count():
    """Large models load for half an hour."""
    assert fail((0, 1800), (1, 1800), (2, 1800)).is_hopeless


@pytest.mark.parametrize(("pause_s", "is_hopeless"), [(WINDOW_S / 2, True), (WINDOW_S / 2 + 1, False)])
def test_failed_starts_that_lie_far_apart_say_nothing_about_the_next(pause_s, is_hopeless):
    assert fail((0, 5), (pause_s, 5), (pause_s, 5)).is_hopeless is is_hopeless


def test_only_the_last_three_count():
    assert fail((0, 5), (2 * WINDOW_S, 5), (1, 5)).is_hopeless is False
    assert fail((0, 5), (2 * WINDOW_S, 5), (1, 5), (2, 5)).is_hopeless
    assert len(fail(*9 * [(2 * WINDOW_S, 5)]).failed_starts) == MOST_FAILED_STARTS


def test_a_fleet_that_has_started_makes_good_for_those_that_have_not():
    life = fail((0, 5), (1, 5)).with_started_fleet()
    assert life.failed_starts == ()
    assert not life.with_failed_start(FailedStart(began_at=20, ended_at=25)).is_hopeless


def test_a_life_is_taken_up_as_it_was_passed_on_and_by_one_process_only(monkeypatch):
    passed_on = fail((0, 5)).with_limit(123)
    monkeypatch.setenv(VARIABLE, passed_on.model_dump_json())
    assert Life.take_up() == passed_on
    assert Life.take_up().nonce != passed_on.nonce  # a child of ours does not take itself for us


@pytest.mark.parametrize("rubbish", ["", "[]", "{", '{"restarts": "many"}'])
def test_rubbish_in_the_environment_is_no_life(monkeypatch, rubbish):
    monkeypatch.setenv(VARIABLE, rubbish)
    assert Life.take_up().restarts == 0


STARTS_OVER = """
import os, signal
from worker.life import Life, hearing_signals, hold_signals, start_over

life = Life.take_up()
print("life", os.getpid(), life.nonce, life.restarts, flush=True)
if life.restarts < 2:
    hold_signals()
    os.kill(os.getpid(), signal.SIGTERM)  # while nobody listens
    start_over(life, "a test")
signal.signal(signal.SIGTERM, lambda *_: print("life heard", flush=True))
with hearing_signals():
    pass
"""

WAITS_FOR_EVER = """
import signal, threading
from worker.life import hearing_signals

heard, go_on = threading.Event(), threading.Event()
thread = threading.Thread(target=go_on.wait, daemon=True)
thread.start()
signal.signal(signal.SIGTERM, lambda *_: heard.set())
with hearing_signals():
    threading.Timer(0.2, lambda: signal.pthread_kill(thread.ident, signal.SIGTERM)).start()
    heard.wait()
print("heard", signal.getsignal(signal.SIGURG) == signal.SIG_DFL)
"""


def run(script):
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout.splitlines()


def test_a_worker_starts_over_as_the_same_process_and_hears_a_signal_that_came_meanwhile():
    *lives, last = [line.split()[1:] for line in run(STARTS_OVER) if line.startswith("life ")]
    pids, nonces, restarts = zip(*lives, strict=True)
    assert (len(set(pids)), len(set(nonces)), restarts) == (1, 1, ("0", "1", "2"))
    assert last == ["heard"]


def test_a_signal_that_the_system_gives_to_another_thread_ends_a_wait_of_the_main_thread():
    assert run(WAITS_FOR_EVER) == ["heard True"]
