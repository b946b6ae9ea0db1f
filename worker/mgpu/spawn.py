"""A process that is tied to this one before it imports anything.

multiprocessing's spawned child first imports the caller's main module and then ours, torch among it: seconds in which
a controller that is killed would leave orphans. So the line of Python that it is started with begins with ours.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing import popen_spawn_posix, reduction, resource_tracker, spawn, util
from multiprocessing.context import SpawnProcess, set_spawning_popen
from multiprocessing.process import BaseProcess

from worker.mgpu.lifeline import tie_by_kernel

# The collector looks through what is imported, again and again: without it torch takes a tenth less time to import.
# `rank_main` turns it on.
_UNCOLLECTED = "import gc; gc.disable(); "


class TiedProcess(SpawnProcess):
    def __init__(self, target: Callable[..., None], arguments: tuple[object, ...], name: str) -> None:
        super().__init__(target=target, args=arguments, name=name)
        self._maker_pid = os.getpid()

    def join(self, timeout: float | None = None) -> None:
        # multiprocessing joins every child when a program ends: in a fork of that program too, where it is an error.
        if os.getpid() == self._maker_pid:
            super().join(timeout)

    @staticmethod
    def _Popen(process: BaseProcess) -> popen_spawn_posix.Popen:  # noqa: N802  # multiprocessing's name for it
        return _TiedPopen(process)


class _TiedPopen(popen_spawn_posix.Popen):
    _fds: list[int]  # that what was pickled needs in the child

    def _launch(self, process: BaseProcess) -> None:
        """As multiprocessing does it (Lib/multiprocessing/popen_spawn_posix.py), but for what the child runs first."""
        payload = self._pickle(process)
        sentinel, childs_sentinel = os.pipe()
        childs_input, output = os.pipe()
        self.finalizer = util.Finalize(self, _close, (sentinel, output))
        with ExitStack() as childs_ends:
            for end in (childs_sentinel, childs_input):
                childs_ends.callback(os.close, end)
            tracker = resource_tracker.getfd()
            assert tracker is not None
            command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=childs_input)
            passed = [*self._fds, tracker, childs_input, childs_sentinel]
            self.pid = util.spawnv_passfds(os.fsencode(spawn.get_executable()), _tied(command), passed)
        self.sentinel = sentinel
        # In a thread: more than a pipe holds waits until the child has imported the caller's main module, and the
        # thread that spawns has deadlines to keep.
        threading.Thread(target=_write, args=(os.dup(output), payload), name="mgpu-spawn", daemon=True).start()

    def _pickle(self, process: BaseProcess) -> memoryview:
        stream = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process.name), stream)
            reduction.dump(process, stream)
        finally:
            set_spawning_popen(None)
        return stream.getbuffer()


def _write(descriptor: int, payload: memoryview) -> None:
    with os.fdopen(descriptor, "wb") as stream, contextlib.suppress(BrokenPipeError):  # its death is told elsewhere
        stream.write(payload)
        stream.flush()


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _tied(command: Sequence[str]) -> list[str]:
    """`python ... -c SOURCE ...` with our line before SOURCE. A frozen program has none and stays as it is."""
    tied = list(command)
    if "-c" in tied:
        index = tied.index("-c") + 1
        tied[index] = tie_by_kernel(os.getpid()) + _UNCOLLECTED + tied[index]
    return tied
