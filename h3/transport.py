"""Meters what a rank's collectives send and how long they take. Off unless asked for: events on a GPU cost time too."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class Transport:
    """Of one rank, over some time."""

    seconds: float  # within collectives, waiting for slower ranks included
    sent_bytes: int  # to other ranks
    calls: int


@dataclass(slots=True)
class Meter:
    """Collects, and tells at the end."""

    sent_bytes: int = 0
    calls: int = 0
    _seconds: float = 0.0
    _events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)

    @contextmanager
    def crossing(self, device: torch.device, sent_bytes: int) -> Iterator[None]:
        self.sent_bytes += sent_bytes
        self.calls += 1
        if device.type != "cuda":
            begun = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - begun
            return
        # The stream waits for what NCCL does on its own, so a second event comes after it.
        events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        events[0].record()
        yield
        events[1].record()
        self._events.append(events)

    def read(self) -> Transport:
        """Waits for the device."""
        if self._events:
            torch.cuda.synchronize()
        on_device = sum(begun.elapsed_time(ended) for begun, ended in self._events) / 1000
        return Transport(self._seconds + on_device, self.sent_bytes, self.calls)


_meter: ContextVar[Meter | None] = ContextVar("transport meter", default=None)


@contextmanager
def measure_transport() -> Iterator[Meter]:
    """Trades, gathers and sums of rows and heads are metered within."""
    meter = Meter()
    token = _meter.set(meter)
    try:
        yield meter
    finally:
        _meter.reset(token)


def crossing(device: torch.device, sent_bytes: int) -> AbstractContextManager[None]:
    """Around a collective that sends so much to other ranks."""
    meter = _meter.get()
    return nullcontext() if meter is None else meter.crossing(device, sent_bytes)
