"""What ranks do while their transport is measured: the exchanges of one block at H3's width, without any weights."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from h3.attention import AttentionName
from h3.attention_probe import HeadShape
from h3.bench.stopwatch import Stopwatch
from h3.collectives import gather_heads, gather_rows, reduce_rows, scatter_heads
from h3.model import MODEL_DTYPE
from h3.parallel.attention import SharedAttention
from h3.partition import split_evenly
from h3.transport import measure_transport
from h3.untrained import H3
from worker.mgpu import MGPURunner

HEADS, HEAD_DIM, WIDTH = H3.num_attention_heads, H3.attention_head_dim, H3.hidden_size
REPEATS_ON_GPU, REPEATS_ON_CPU = 10, 3


@dataclass(frozen=True, slots=True)
class Timed:
    """One operation on one rank."""

    operation: str
    seconds: float  # the median, waiting for slower ranks included
    sent_bytes: int  # to other ranks


@dataclass(frozen=True, slots=True)
class Measured:
    """One rank's side of one sequence."""

    rank: int
    is_identity: bool  # whether heads that were scattered and gathered are the same bits as before
    timed: tuple[Timed, ...]
    attention_backend: str  # that ran


class TransportRunner(MGPURunner):
    """Each job is one sequence."""

    @torch.inference_mode()
    def __call__(self, *, tokens: int, backend: AttentionName) -> Iterator[Measured]:
        group = self.groups.transformer_group
        rows = split_evenly(tokens, self.world_size, what="tokens")
        heads = split_evenly(HEADS, self.world_size, what="attention heads")
        own = rows.sizes[self.rank]
        qkv = self._draw(own, 3, HEADS, HEAD_DIM)
        scattered = scatter_heads(qkv, rows, heads, group)
        # A list: on every rank each part is gathered, whatever became of those before.
        parts = [torch.equal(gather_heads(scattered[:, i], rows, heads, group), qkv[:, i]) for i in range(3)]
        attention = SharedAttention(backend, HeadShape(heads.sizes[0], HEAD_DIM, MODEL_DTYPE), self.device, group)
        attention.take(backend, tokens)
        attend = attention.attending
        timed = (
            self._time("scatter_heads", partial(scatter_heads, qkv, rows, heads, group)),
            self._time("attention", partial(attend, scattered)),
            self._time("gather_heads", partial(gather_heads, attend(scattered), rows, heads, group)),
            self._time("gather_rows", partial(gather_rows, self._draw(own, WIDTH), rows, group)),
            self._time("reduce_rows", partial(reduce_rows, self._draw(tokens, WIDTH), rows, group)),
        )
        yield Measured(self.rank, all(parts), timed, attention.running)

    def _draw(self, *shape: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(self.rank)
        return torch.randn(shape, generator=generator, device=self.device, dtype=MODEL_DTYPE)

    def _time(self, operation: str, run: Callable[[], Tensor]) -> Timed:
        with measure_transport() as meter:
            run()  # warms up, too
        run()
        repeats = REPEATS_ON_GPU if self.device.type == "cuda" else REPEATS_ON_CPU
        seconds = statistics.median(self._seconds_of(run) for _ in range(repeats))
        return Timed(operation, seconds, meter.sent_bytes)

    def _seconds_of(self, run: Callable[[], Tensor]) -> float:
        watch = Stopwatch(self.device)
        watch.begin("run")
        run()
        watch.end("run")
        return watch.read()["run"]
