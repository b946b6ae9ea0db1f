"""One attempt at a job on the fleet: the runner's items go out as they come, and its end is judged by class."""

import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jobs.events import Finished
from jobs.request import ResolvedRequest
from worker import items
from worker.errors import (
    TOLD_TO_STOP,
    AttemptLost,
    Interrupted,
    OutOfMemory,
    RequestRefused,
    Stalled,
    Superseded,
    WorkerError,
)
from worker.items import Item
from worker.mgpu import (
    AsymmetricRunnerError,
    ControllerDeadError,
    ControllerShutdownError,
    FatalFleetError,
    MGPUController,
    RankOutOfMemoryError,
    Stream,
    SymmetricRunnerError,
)
from worker.outputs import Outputs
from worker.stall import StallWatch

SETTLE_S = 5.0  # for what a lost attempt has under way; whoever told us to stop waits too


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an attempt stands."""

    phase: Literal["begin", "text", "denoise", "decode", "upload"] = "begin"
    step: int = 0
    steps: int = 0

    def after(self, item: Item) -> "Progress":
        match item:
            case items.TextEncoded():
                return Progress("denoise", self.step, self.steps)
            case items.StepDone(step, steps):
                return Progress("denoise" if step < steps else "decode", step, steps)
            case items.StreamHeader() | items.Segment():
                return Progress("decode", self.step, self.steps)
            case items.Finished():
                return Progress("upload", self.step, self.steps)
        return self


class Attempt:
    """Renders a request. `run` is for one thread; the others may look whether it stalls, and may end it."""

    def __init__(
        self, controller: MGPUController, request: ResolvedRequest, watch: StallWatch, spool: Path | None
    ) -> None:
        self._controller, self._request, self._watch, self._spool = controller, request, watch, spool
        self._stream: Stream | None = None
        self._verdict: WorkerError | None = None  # of another thread
        self._outputs: Outputs | None = None  # while they may hang
        self._is_over = False
        self._lock = threading.Lock()
        self.progress = Progress()  # for who looks from outside

    def run(self, outputs: Outputs) -> Finished:
        """The committed result. Raises a WorkerError that says what becomes of job and fleet."""
        self._outputs = outputs
        try:
            if (finished := outputs.find_result()) is not None:
                return finished
            outputs.begin()
            with work_folder(self._spool) as folder:
                return self._run_in(folder, outputs)
        finally:
            self._end(outputs)

    def _run_in(self, folder: Path, outputs: Outputs) -> Finished:
        try:
            return outputs.commit(self._render(outputs, folder))
        except WorkerError as exc:
            if not isinstance(exc, Superseded):  # whatever has been done need not be done again
                outputs.settle(SETTLE_S)
            raise
        finally:
            self._end(outputs)  # before the folder goes: an upload that misses its file is no failure of the fleet

    def _end(self, outputs: Outputs) -> None:
        self._outputs = None
        with self._lock:
            self._is_over = True
        self._watch.pause()
        outputs.close()

    def abort(self, verdict: WorkerError) -> None:
        """End it from another thread: between two steps, or at once if the fleet is not healthy. May be repeated."""
        with self._lock:
            if self._is_over or (self._verdict is not None and not self._verdict.fleet_is_healthy):
                return  # the fleet is the next attempt's by now, or is being ended already
            if self._verdict is None or not verdict.fleet_is_healthy:
                self._verdict = verdict
            stream = self._stream
        is_urgent = not verdict.fleet_is_healthy or not verdict.job_may_retry
        if is_urgent and stream is None and (outputs := self._outputs) is not None:
            outputs.give_up(verdict)  # the fleet is done: what is left is to wait for uploads
        if not verdict.fleet_is_healthy:
            if isinstance(verdict, Stalled) and stream is not None:
                stream.condemn(str(verdict))  # which finds out what the ranks are doing
            else:
                # In a thread: it waits for the ranks, and who calls has other things to watch.
                threading.Thread(target=self._controller.shutdown, kwargs={"graceful_timeout": 0}, daemon=True).start()
        elif stream is not None:
            stream.request_stop(type(verdict).__name__)

    def step_left_s(self) -> float | None:
        """What the step under way will still take; None if there is no telling."""
        return self._watch.step_left_s(time.monotonic())

    def is_stalled(self) -> bool:
        """Whether the fleet is silent for too long; then it is ended. An upload that hangs ends the attempt, too."""
        if (outputs := self._outputs) is not None:
            outputs.look()
        if reason := self._watch.overdue(time.monotonic()):
            self.abort(Stalled(f"the fleet stalled: {reason}"))
        return bool(reason)

    def _render(self, outputs: Outputs, folder: Path) -> items.Finished:
        outputs.fetch_pictures(folder)
        resume = outputs.fetch_resume(folder)
        shape = (self._request.width, self._request.height, self._request.frames)
        try:
            stream = self._controller.stream(request=self._request, work_dir=str(folder), resume=resume)
        except ControllerDeadError as exc:
            raise Interrupted("the fleet died before the job began") from exc
        except ControllerShutdownError as exc:
            raise Interrupted(TOLD_TO_STOP) from exc
        with self._lock:
            self._stream, verdict = stream, self._verdict
        if verdict is not None:
            stream.request_stop(type(verdict).__name__)
        self._watch.begin(shape, time.monotonic())
        self.progress = Progress("text", 0 if resume is None else resume.step, self._request.steps)
        try:
            finished = self._ship(stream, outputs)
        except (SymmetricRunnerError, AsymmetricRunnerError, ControllerShutdownError, FatalFleetError) as exc:
            raise self._judge(exc) from exc
        finally:
            with self._lock:
                self._stream = None
        if self._verdict is not None and (finished is None or not self._verdict.job_may_retry):
            raise self._verdict  # else it was told too late to stop: to publish what is finished is quicker
        if finished is None:
            raise AttemptLost("the runner ended without yielding Finished")
        return finished

    def _ship(self, stream: Stream, outputs: Outputs) -> items.Finished | None:
        finished: items.Finished | None = None
        try:
            for item in map(_checked, stream):
                self._watch.saw(item)
                self.progress = self.progress.after(item)
                if isinstance(item, items.Finished):
                    finished = item
                else:
                    outputs.publish(item)
                self._watch.expect(time.monotonic())
        except Exception as exc:
            # Whatever it is, nobody wants the rest of the render: let the ranks stop together, and keep them.
            stream.request_stop(type(exc).__name__)
            raise
        finally:
            self._watch.expect(time.monotonic())  # a fleet that does not stop stalls, too
            stream.drain()
            self._watch.pause()
        return finished

    def _judge(self, error: Exception) -> WorkerError:
        if isinstance(self._verdict, Stalled):
            return Stalled(str(error))  # what it has said to the controller, and what that has found out
        if self._verdict is not None and not isinstance(error, AsymmetricRunnerError):  # after that one the fleet goes
            return self._verdict
        match error:
            case SymmetricRunnerError():
                return RequestRefused(str(error))
            case ControllerShutdownError():
                return Interrupted(TOLD_TO_STOP)
            case RankOutOfMemoryError():
                return OutOfMemory(str(error))
        return AttemptLost(f"{type(error).__name__}: {error}")


@contextmanager
def work_folder(spool: Path | None) -> Iterator[Path]:
    """Where an attempt's files lie. Locked, so that `h3render gc` knows those that no process uses any more."""
    with tempfile.TemporaryDirectory(prefix="h3render-", dir=spool, ignore_cleanup_errors=True) as name:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # not every network file system can
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(descriptor)


def _checked(item: object) -> Item:
    if not isinstance(item, Item):
        raise AttemptLost(f"the runner yielded {type(item).__name__}, which is none of worker.items")
    return item
