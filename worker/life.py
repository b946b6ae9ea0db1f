"""What a worker passes on to itself when it starts over: one process id, one life after the other."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn, Self
from uuid import uuid4

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

VARIABLE = "H3_LIFE"
MOST_FAILED_STARTS, WINDOW_S = 3, 600.0
SIGNALS = {signal.SIGTERM, signal.SIGINT}
PROD = signal.SIGURG  # which nobody else sends, and which does nothing by itself

log = structlog.get_logger()


class FailedStart(BaseModel):
    """A fleet that did not come up."""

    model_config = ConfigDict(frozen=True)

    began_at: float  # time.monotonic(), which goes on over an exec
    ended_at: float


class Count(BaseModel):
    """How far one of this worker's counters has come."""

    model_config = ConfigDict(frozen=True)

    metric: str
    labels: dict[str, str]
    value: float


class Life(BaseModel):
    """Of one worker, from its first start on."""

    model_config = ConfigDict(frozen=True)

    nonce: str = Field(default_factory=lambda: uuid4().hex[:8])
    restarts: int = 0
    failed_starts: tuple[FailedStart, ...] = ()  # in a row
    most_pixels: int | None = None  # more has run out of memory here
    counts: tuple[Count, ...] = ()

    @classmethod
    def take_up(cls) -> Self:
        """The one that this process was given by itself, or a new one."""
        try:
            return cls.model_validate_json(os.environ.pop(VARIABLE, "{}"))
        except ValidationError:
            return cls()

    def with_failed_start(self, failed: FailedStart) -> "Life":
        return self.model_copy(update={"failed_starts": (*self.failed_starts, failed)[-MOST_FAILED_STARTS:]})

    def with_started_fleet(self) -> "Life":
        return self.model_copy(update={"failed_starts": ()})

    def with_limit(self, most_pixels: int) -> "Life":
        return self.model_copy(update={"most_pixels": most_pixels})

    @property
    def is_hopeless(self) -> bool:
        """Whether the fleet has failed to start too often in too short a time. What the starts took does not count."""
        if len(self.failed_starts) < MOST_FAILED_STARTS:
            return False
        first, *later = self.failed_starts
        loading_s = sum(failed.ended_at - failed.began_at for failed in later)
        return later[-1].ended_at - first.ended_at - loading_s <= WINDOW_S


def reap_former_children() -> None:
    """Those of the life before, of which nobody else knows: multiprocessing's resource tracker above all."""
    with suppress(ChildProcessError):  # none is left
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def hold_signals() -> None:
    """Keep what comes from now on for the next life: an exec forgets handlers, and not what waits."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


@contextmanager
def hearing_signals() -> Iterator[None]:
    """Deliver them, and at once; from before any other process is started, which would not hear them either.

    The system gives a signal to whichever thread it likes, and Python runs its handler in the main thread: which may be
    in a wait that only a signal of its own ends. So each is passed on to it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    outer_writer, outer_handler = signal.set_wakeup_fd(writer), signal.signal(PROD, lambda *_: None)
    prodding = threading.Thread(target=_prod, args=(reader, threading.get_ident()), name="signals", daemon=True)
    prodding.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.set_wakeup_fd(outer_writer)
        os.close(writer)
        prodding.join()
        os.close(reader)
        signal.signal(PROD, outer_handler)


def _prod(reader: int, main_thread: int) -> None:
    while number := os.read(reader, 1):
        if number[0] != PROD:
            signal.pthread_kill(main_thread, PROD)


def start_over(life: Life, reason: str) -> NoReturn:
    """Become a fresh worker under the same pid."""
    log.warning("restarting", reason=reason, restarts=life.restarts + 1)
    passed_on = life.model_copy(update={"restarts": life.restarts + 1}).model_dump_json()
    command = [sys.executable, *sys.orig_argv[1:]]  # our own command line
    os.execve(sys.executable, command, {**os.environ, VARIABLE: passed_on})  # noqa: S606
