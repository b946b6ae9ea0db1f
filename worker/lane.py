"""Work that is done beside, in threads, so that nobody waits for the store or for the queue."""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Work:
    do: Callable[[], Any]
    then: Callable[[Any], object]
    size_bytes: int
    drop: Callable[[], None] | None  # for what may be left out
    is_first: bool
    answer: Any = None
    begun_at: float = 0.0  # time.monotonic()
    is_begun: bool = False
    is_done: bool = False
    has_failed: bool = False


class Lane:
    """Begins what it is given in that order, in so many threads, up to the first failure.

    `on_failure` hears of it, in that thread, and says what `drain` is to raise. What was begun before what failed goes
    on, and so does what follows it; `settle` waits for that.

    Holds work of at most `most_bytes`: beyond, the oldest that may be dropped is, the new one if there is no other;
    what may not be dropped waits in `add`.
    """

    def __init__(
        self, name: str, on_failure: Callable[[Exception], Exception], *, threads: int = 1, most_bytes: int = 0
    ) -> None:
        self._on_failure, self._most_bytes = on_failure, most_bytes
        self._work: deque[_Work] = deque()  # until it is over, `then` included
        self._bytes = 0
        self._is_closed = self._is_concluding = self._has_failed = False
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        for _ in range(threads):  # in copies of our context: their log lines name the same job
            threading.Thread(target=copy_context().run, args=[self._run], name=name, daemon=True).start()

    def add(
        self,
        do: Callable[[], Answer],
        then: Callable[[Answer], object] = lambda _: None,
        *,
        size_bytes: int = 0,
        drop: Callable[[], None] | None = None,
        first: bool = False,
    ) -> None:
        """Do this, unless something before has failed; `then` what needs its answer, in the order of the calls.

        first  nothing that is added later begins until it is done
        """
        with self._changed:
            has_room = self._make_room(size_bytes, may_wait=drop is None)
            if self._is_over:
                return
            if not has_room:
                if drop is not None:
                    drop()
                return
            self._work.append(_Work(do, then, size_bytes, drop, first))
            self._bytes += size_bytes
            self._changed.notify_all()

    def has_more(self) -> bool:
        """For a `then`: whether another follows it at once, so that nothing need be hurried."""
        with self._changed:
            return len(self._work) > 1 and self._work[1].is_done

    @property
    def size_bytes(self) -> int:
        """Of the work that is not over."""
        return self._bytes

    def longest_s(self) -> float:
        """For how long the oldest work that is neither over nor failed has been done, its `then` included."""
        with self._changed:
            begun = [work.begun_at for work in self._work if work.is_begun and not work.has_failed]
        return time.monotonic() - min(begun) if begun else 0.0

    def give_up(self, error: Exception) -> None:
        """Let nobody wait in `add` or `drain`, which raises this error. What is there is still done, up to `close`."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def settle(self, timeout_s: float) -> None:
        """Wait until nothing more will be done, with what follows it, or it has taken too long."""
        with self._changed:
            self._changed.wait_for(self._is_settled, timeout_s)

    def drain(self) -> None:
        """Wait until all is done. Raises what failed, without waiting for the rest."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._failure is not None or not self._work)
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """Do nothing more. What is being done now may go on for a while."""
        with self._changed:
            self._is_closed = True
            self._work.clear()
            self._bytes = 0
            self._changed.notify_all()

    def _is_settled(self) -> bool:
        if self._is_closed or not self._work:
            return True
        oldest = self._work[0]
        return self._is_over and (oldest.has_failed or not oldest.is_begun)

    @property
    def _is_over(self) -> bool:
        return self._is_closed or self._has_failed

    def _make_room(self, size_bytes: int, *, may_wait: bool) -> bool:
        while self._bytes and self._bytes + size_bytes > self._most_bytes and not self._is_over:
            if (oldest := next((w for w in self._work if w.drop is not None and not w.is_begun), None)) is not None:
                self._work.remove(oldest)
                self._bytes -= oldest.size_bytes
                assert oldest.drop is not None
                oldest.drop()
            elif may_wait and self._failure is None:
                self._changed.wait()
            else:
                return False
        return True

    def _run(self) -> None:
        while (work := self._begin()) is not None:
            try:
                work.answer = work.do()
                work.is_done = True
            except Exception as exc:  # whoever owns the lane names it
                self._fail(work, exc)
            self._conclude_what_is_done()

    def _conclude_what_is_done(self) -> None:
        while (oldest := self._begin_conclusion()) is not None:
            try:
                oldest.then(oldest.answer)
            except Exception as exc:
                self._fail(oldest, exc)
            self._end_conclusion(oldest)

    def _begin(self) -> _Work | None:
        """The next to do, once there is one; None when nothing more will be done."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._next_to_begin())
            if self._is_over or (work := self._next_to_begin()) is None:
                return None
            work.is_begun, work.begun_at = True, time.monotonic()
            return work

    def _next_to_begin(self) -> _Work | None:
        for work in self._work:
            if not work.is_begun:
                return work
            if work.is_first and not work.is_done:
                return None
        return None

    def _begin_conclusion(self) -> _Work | None:
        """The oldest work, if only its `then` is left and nobody is at one."""
        with self._changed:
            self._changed.notify_all()
            if self._is_concluding or self._is_closed or not self._work:
                return None
            oldest = self._work[0]
            if oldest.has_failed or not oldest.is_done:
                return None
            self._is_concluding = True
            return oldest

    def _end_conclusion(self, work: _Work) -> None:
        with self._changed:
            self._is_concluding = False
            if not self._is_closed and not work.has_failed:
                self._work.popleft()
                self._bytes -= work.size_bytes
            self._changed.notify_all()

    def _fail(self, work: _Work, error: Exception) -> None:
        with self._changed:
            work.has_failed = True
            if self._is_over:
                return
            self._has_failed = True
        try:
            judged = self._on_failure(error)
        except Exception as exc:  # or whoever drains would wait for ever
            judged = exc
        with self._changed:
            self._failure = self._failure or judged
            self._changed.notify_all()
