"""The one place where tests poll."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def eventually(attempt: Callable[[], Value], *, timeout_s: float = 10.0, interval_s: float = 0.01) -> Value:
    """The first true value that `attempt` returns; fails after `timeout_s` with the last one."""
    deadline = time.monotonic() + timeout_s
    while not (value := attempt()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still {value!r} after {timeout_s} s: {attempt}")
        time.sleep(interval_s)
    return value
