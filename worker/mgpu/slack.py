"""Threads that only look around every few milliseconds may do so late, and all at once.

CUDA, NCCL's watchdog and Gloo's loop each wake up 10 to 100 times a second for as long as the process lives, in case
something has happened; what does happen wakes them by itself. On a virtual machine each of those wake-ups costs 50 to
90 microseconds. The kernel puts a thread's timers off by up to its slack, to serve several with one interrupt.
Source: prctl(2), PR_SET_TIMERSLACK; a new thread has its maker's slack.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

SLACK_NS = 250_000_000  # so much later, at most, a collective's time-out is noticed
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30
_prctl = ctypes.CDLL(None).prctl


@contextmanager
def late_timers() -> Iterator[None]:
    """Threads that are made meanwhile keep their slack; this thread has its own back afterwards."""
    before = _prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    _prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(SLACK_NS), 0, 0, 0)
    try:
        yield
    finally:
        _prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(before), 0, 0, 0)
