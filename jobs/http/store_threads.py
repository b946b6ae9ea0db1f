"""The store for the service: in threads of its own, and never waited for beyond a limit.

A store is asked in blocking calls, and one that hangs answers none for a minute and more. Whoever waits for it is told
in time, and nobody else waits at all.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from threading import Lock
from typing import TypeVar

from jobs.errors import StoreUnavailable
from jobs.store import Store

THREADS = 32
LONGEST_CALL_S = 15.0

Answer = TypeVar("Answer")


class StoreThreads:
    """Calls a store."""

    def __init__(self, store: Store, threads: ThreadPoolExecutor) -> None:
        self._store, self._threads = store, threads

    async def ask(self, call: Callable[[Store], Answer]) -> Answer:
        """What a call of the store gives. Raises what it raises, and StoreUnavailable if it takes too long."""
        try:
            async with asyncio.timeout(LONGEST_CALL_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call, self._store)
        except TimeoutError as exc:
            raise StoreUnavailable(f"the store has not answered for {LONGEST_CALL_S:.0f} s") from exc

    def leave(self, call: Callable[[], object]) -> None:
        """Have it done, some time, whether or not it succeeds."""
        self._threads.submit(call)


@asynccontextmanager
async def store_threads(store: Store) -> AsyncIterator[StoreThreads]:
    """Whoever hangs in a store is left behind at the end."""
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store")
    try:
        yield StoreThreads(store, threads)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


class Chunks:
    """Pieces of an object, taken and closed by whatever threads: one at a time."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._lock = iter(chunks), Lock()

    def take(self) -> bytes:
        """The next one; nothing after the last."""
        with self._lock:
            return next(self._chunks, b"")

    def close(self) -> None:
        """Let go of the file or the connection, once nobody is in the middle of a piece."""
        with self._lock:
            if close := getattr(self._chunks, "close", None):
                close()
