"""Times the parts of a step from outside: what lies between two marks on the device's stream, or on the CPU's clock."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from h3.bench.work import Part
from h3.device import synchronize
from h3.model import Attend, Attention, Denoiser
from h3.transport import measure_transport

_LAYERS = {"attn.qkv_proj": Part.QKV, "attn.out_proj": Part.OUT, "mlp.fc1": Part.FC1, "mlp.fc2": Part.FC2}
_WHOLE, _BLOCKS = "the step", "all blocks"

Mark = torch.cuda.Event | float


@dataclass(slots=True)
class Stopwatch:
    """Seconds by name, of all runs together."""

    device: torch.device
    _marks: dict[str, list[tuple[Mark, Mark]]] = field(default_factory=lambda: defaultdict(list))
    _open: dict[str, Mark] = field(default_factory=dict)

    def begin(self, name: str) -> None:
        self._open[name] = self._mark()

    def end(self, name: str) -> None:
        self._marks[name].append((self._open.pop(name), self._mark()))

    def read(self) -> dict[str, float]:
        """Waits for the device."""
        synchronize(self.device)
        return {name: sum(_between(*marks) for marks in runs) for name, runs in self._marks.items()}

    def _mark(self) -> Mark:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(first: Mark, second: Mark) -> float:
    if isinstance(first, float):
        assert isinstance(second, float)
        return second - first
    assert not isinstance(second, float)
    return float(first.elapsed_time(second)) / 1000


@contextmanager
def watching_parts(model: Denoiser, device: torch.device) -> Iterator[dict[Part, float]]:
    """Time the parts of the steps within; the mapping is filled at the end. The model may be spread over ranks."""
    watch, found = Stopwatch(device), dict[Part, float]()
    handles = [handle for block in model.blocks for handle in _watch_block(block, watch)]
    attends = {module: module.attend for module in model.blocks.modules() if isinstance(module, Attention)}
    for module, attend in attends.items():
        module.attend = _timed(attend, watch)
    try:
        with measure_transport() as meter:
            watch.begin(_WHOLE)
            yield found
            watch.end(_WHOLE)
        found |= _split(watch.read(), meter.read().seconds)
    finally:
        for handle in handles:
            handle.remove()
        for module, attend in attends.items():
            module.attend = attend


def _watch_block(block: nn.Module, watch: Stopwatch) -> Iterator[RemovableHandle]:
    yield from _watch(block, _BLOCKS, watch)
    for path, part in _LAYERS.items():
        yield from _watch(block.get_submodule(path), part, watch)


def _watch(module: nn.Module, name: str, watch: Stopwatch) -> Iterator[RemovableHandle]:
    yield module.register_forward_pre_hook(lambda *_: watch.begin(name))
    yield module.register_forward_hook(lambda *_: watch.end(name))


def _timed(attend: Attend, watch: Stopwatch) -> Attend:
    def timed(qkv: Tensor) -> Tensor:
        watch.begin(Part.ATTENTION)
        out = attend(qkv)
        watch.end(Part.ATTENTION)
        return out

    return timed


def _split(seconds: dict[str, float], transport: float) -> dict[Part, float]:
    """What was timed is nested; the parts are not."""
    parts = {part: seconds[part] for part in (*_LAYERS.values(), Part.ATTENTION)}
    between = seconds[_BLOCKS] - sum(parts.values())
    rest = seconds[_WHOLE] - seconds[_BLOCKS]
    return parts | {Part.POINTWISE: between, Part.TRANSPORT: transport, Part.REST: rest}
