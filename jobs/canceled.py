"""Makes sure that tasks end when they are canceled.

redis-py sends by `asyncio.wait_for`, which in Python 3.11 forgets that its task is canceled if what it waits for ends
at that moment (https://github.com/python/cpython/issues/86296): with a short command, one time in ten.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heeding_cancel() -> Iterator[None]:
    """If the task is canceled meanwhile, it is by the end of this. What cleans up after a cancel may use it, too."""
    before = _count_cancels()
    try:
        yield
    finally:
        if _count_cancels() > before:
            raise asyncio.CancelledError


def _count_cancels() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
