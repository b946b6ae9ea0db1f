"""Runners that do what a test tells them. Importable, so that they travel by name."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import worker.mgpu.rank
from worker.mgpu import MGPURunner, RunnerError


@dataclass(frozen=True, slots=True)
class Piece:
    """Like a render item: frozen, with slots and a path."""

    index: int
    path: Path
    picture: torch.Tensor | None = None


class TwoArgumentError(RunnerError):
    """Pickles, but does not unpickle: its constructor wants more than its args."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")


class CommandRunner(MGPURunner):
    """Each job names one of the generator methods below."""

    def setup(self, **kwargs: Any) -> None:
        self.kwargs = kwargs
        self.probe: weakref.ref[torch.Tensor] | None = None
        # Groups are usable here.
        self.sum_of_ranks = [_sum(self.rank, group) for group in (self.groups.transformer_group, self.groups.vae_group)]

    def __call__(self, *, command: str, **kwargs: Any) -> Iterator[Any]:
        return (yield from getattr(self, command)(**kwargs))

    def describe(self) -> Iterator[Any]:
        yield {
            "rank": self.rank,
            "world_size": self.world_size,
            "device": str(self.device),
            "devices": [str(device) for device in self.devices],
            "same_group": self.groups.gemma_group is self.groups.text_group,
            "sums": self.sum_of_ranks,
            "pid": os.getpid(),
            "environment": {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")},
            "threads": torch.get_num_threads(),
            "inference": torch.is_inference_mode_enabled(),
            "kwargs": self.kwargs,
        }

    def sum_up(self) -> Iterator[Any]:
        yield _sum(self.rank, self.groups.transformer_group)

    def echo(self, **kwargs: Any) -> Iterator[Any]:
        yield self.rank, kwargs

    def first_rank_yields(self, values: list[Any]) -> Iterator[Any]:
        if self.rank == 0:
            yield from values

    def count(self, upto: int) -> Iterator[Any]:
        for number in range(upto):
            yield self.rank, number
        return self.rank * 10

    def collects_garbage(self) -> Iterator[Any]:
        yield self.rank, gc.isenabled()

    def nothing(self) -> Iterator[Any]:
        return
        yield

    def exceptions_as_values(self) -> Iterator[Any]:
        yield RunnerError("only a value")
        yield StopIteration(3)

    def after_the_last_yield(self, path: Path) -> Iterator[Any]:
        try:
            yield self.rank
        finally:
            (path / f"finally-{self.rank}").touch()

    def refuse(self, kind: str, ranks: list[int] | None = None, differ: bool = False) -> Iterator[Any]:
        yield "before"
        text = f"rank {self.rank} dislikes it" if differ else "too large"
        if ranks is None or self.rank in ranks:
            raise {"runner": RunnerError, "value": ValueError}[kind](text)

    def refuse_with_two_arguments(self) -> Iterator[Any]:
        raise TwoArgumentError("width 7", "use a multiple of 8")
        yield

    def refuse_and_wait(self) -> Iterator[Any]:
        if self.rank == 1:
            raise RunnerError("only here")
        dist.barrier()
        yield

    def refuse_or_fail(self) -> Iterator[Any]:
        if self.rank == 0:
            raise RunnerError("refused here")
        yield "rank 1 goes on"
        raise KeyError("unexpected")

    def remember(self, x: torch.Tensor, thing: Any) -> Iterator[Any]:
        self.probe = weakref.ref(thing)
        yield None

    def is_forgotten(self) -> Iterator[Any]:
        gc.collect()
        yield self.probe is not None and self.probe() is None

    def write_into(self, x: torch.Tensor) -> Iterator[Any]:
        before = x.clone()
        x.fill_(self.rank + 100)
        yield self.rank, before, x

    def write_first(self, x: torch.Tensor, y: torch.Tensor) -> Iterator[Any]:
        x.fill_(5)
        yield y

    def reuse_buffer(self, size: int, times: int) -> Iterator[Any]:
        buffer = torch.zeros(size)
        for value in range(times):
            buffer.fill_(value)
            yield buffer
        buffer.fill_(-1)

    def reuse_cuda_buffer(self, size: int, times: int) -> Iterator[Any]:
        buffer = torch.zeros(size, device=self.device)
        for value in range(times):
            buffer.fill_(value)
            yield buffer
        buffer.fill_(-1)

    def memory(self) -> Iterator[Any]:
        free, total = torch.cuda.mem_get_info()
        yield total - free

    def fresh_tensors(self, size: int, times: int) -> Iterator[Any]:
        for value in range(times):
            yield torch.full((size,), value)

    def huge(self, counts: list[int]) -> Iterator[Any]:
        """As many int64 as given per rank, all at once."""
        numbers = torch.arange(counts[self.rank])
        dist.barrier()
        yield self.rank, numbers

    def piece(self, path: Path, picture: torch.Tensor) -> Iterator[Any]:
        if self.rank == 0:
            yield Piece(3, path, picture)
            yield {"nested": [(picture, {"deep": Piece(4, path, picture)})]}

    def steps(self, upto: int) -> Iterator[Any]:
        """One element per step, until the caller asks to stop."""
        for step in range(upto):
            if self.stop_requested():
                return step, self.stop_reason
            if self.rank == 0:
                yield step
        return upto, self.stop_reason

    def say(self, text: str) -> Iterator[Any]:
        print(text)  # noqa: T201  # what is tested
        os.write(2, f"native {text}\n".encode())
        yield None

    # --- fatal ---

    def fail(self, ranks: list[int], how: str) -> Iterator[Any]:
        yield os.getpid()
        if self.rank in ranks:
            FAULTS[how]()
        dist.barrier()
        threading.Event().wait()

    def hang(self) -> Iterator[Any]:
        yield os.getpid()
        threading.Event().wait()

    def yield_unpicklable(self, ranks: list[int]) -> Iterator[Any]:
        yield 1
        if self.rank in ranks:
            yield threading.Lock()
        dist.barrier()

    def return_unpicklable(self) -> Iterator[Any]:
        yield 1
        return lambda: None

    def deliver_then_die_among_chatter(self, amount: int) -> Iterator[Any]:
        if self.rank == 1:
            yield from range(amount)
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            yield "still here"

    def hold_the_gil(self) -> Iterator[Any]:
        """Never lets another Python thread of this process run again."""
        yield os.getpid()
        ctypes.PyDLL(None).pause()

    def diverge(self) -> Iterator[Any]:
        """Every rank in a collective that others never join."""
        yield os.getpid()
        dist.barrier(self.groups.vae_group if self.rank % 2 else self.groups.text_group)

    def differ(self, commands: list[str]) -> Iterator[Any]:
        """Each rank another one of these, in turn."""
        yield from getattr(self, commands[self.rank % len(commands)])()

    def ignore_sigterm(self) -> Iterator[Any]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        yield from self.hold_the_gil()

    def leave_the_deaf(self) -> Iterator[Any]:
        """At SIGTERM the last rank exits as if all was well, while its peers ignore it, in native code."""
        if self.rank < self.world_size - 1:
            yield from self.ignore_sigterm()
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        yield from self.hang()

    def start_child(self) -> Iterator[Any]:
        """A child process that does not end by SIGTERM."""
        yield subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 600"]).pid
        threading.Event().wait()

    def leave_thread(self, deadline_s: float) -> Iterator[Any]:
        """A thread that never ends."""
        worker.mgpu.rank.LEAVE_DEADLINE_S = deadline_s
        threading.Thread(target=threading.Event().wait).start()
        yield None

    def skip_a_message(self) -> Iterator[Any]:
        yield "before"
        if self.rank == 1:
            _calling_rank()._channel.sequence += 1
        yield "after"

    def yield_beyond_a_limit(self, limit_bytes: int, size_bytes: int) -> Iterator[Any]:
        """As if the machine had no room for more."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        yield torch.zeros(size_bytes, dtype=torch.uint8)


def _calling_rank() -> worker.mgpu.rank.Rank:
    """The one that iterates the runner."""
    frame = sys._getframe()
    while not isinstance(caller := frame.f_locals.get("self"), worker.mgpu.rank.Rank):
        assert frame.f_back is not None
        frame = frame.f_back
    return caller


def _sum(number: int, group: dist.ProcessGroup) -> int:
    tensor = torch.tensor([number], device="cuda" if dist.get_backend(group) == "nccl" else "cpu")
    dist.all_reduce(tensor, group=group)
    return int(tensor)


class StrangeFault(Exception):
    """Neither pickles, nor would unpickle, nor has a text."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise TypeError("no text")


def _raise(error: BaseException) -> None:
    raise error


FAULTS = {
    "key error": lambda: _raise(KeyError("boom")),
    "strange error": lambda: _raise(StrangeFault("this", "that")),
    "system exit": lambda: sys.exit(0),
    "exit 0": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
}


class SetupRunner(CommandRunner):
    """Fails, dies or waits in setup, where it is told to."""

    def setup(self, *, faults: dict[int, str] | None = None, **kwargs: Any) -> None:  # type: ignore[override]
        how = (faults or {}).get(self.rank)
        if how == "wait":
            threading.Event().wait()
        if how:
            FAULTS[how]()
        super().setup(**kwargs)


class QueueRunner(CommandRunner):
    """Passes a number around through a queue that came with setup's keywords."""

    def setup(self, *, queue: multiprocessing.SimpleQueue[int], **kwargs: Any) -> None:  # type: ignore[override]
        super().setup()
        self.queue = queue

    def pass_on(self, number: int) -> Iterator[Any]:
        if self.rank == 0:
            for _ in range(self.world_size - 1):
                self.queue.put(number)
        else:
            yield self.queue.get()


class NotAGenerator(MGPURunner):
    def __call__(self, **kwargs: Any) -> Iterator[Any]:
        return iter([1, 2])


def hide(function: Any) -> Any:
    """A decorator that hides what it wraps."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class InferenceRunner(MGPURunner):
    @torch.inference_mode()
    def __call__(self, **kwargs: Any) -> Iterator[Any]:
        yield torch.is_inference_mode_enabled()


class HiddenRunner(InferenceRunner):
    @hide
    def __call__(self, *, generates: bool) -> Iterator[Any]:
        return super().__call__() if generates else iter([1, 2])


class SignatureRunner(MGPURunner):
    def __call__(self, *, prompt: str, seed: int = 0) -> Iterator[Any]:
        yield prompt, seed
