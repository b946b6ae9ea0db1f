"""Which attention backends run on this device and are right, and how long each takes at a render's size."""

import logging
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from h3.attention import AttentionName, attend, explain_absence, is_installed
from h3.model import Attend
from h3.native import find_obstacle

# Relative L2 distance from the same attention in fp32, at most. bf16 rounds the weights and the result, some 3e-3.
TOLERANCE = 1e-2
# Of those that round more. The roundings of `fa3-fp8` alone are off by 6.2e-2 at 129 tokens and by 6.4e-2 at 421.
LOOSE = {AttentionName.FA3_FP8: 1e-1, AttentionName.SAGE: 5e-2}
PROBE_TOKENS, PROBE_HEADS = (3 * 128 + 37, 128 + 1), 3  # ragged: no backend's tiles fit
_SCALE = 1.25  # of q and k: scores as spread as a model's, so that a wrong row or head shows
_REPEATS = 3
_LONG_MS = 200.0  # a call that takes so long is timed once more, and not again

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What a rank attends with."""

    heads: int
    head_dim: int
    dtype: torch.dtype

    def draw(self, tokens: int, device: torch.device, heads: int | None = None) -> Tensor:
        """[T, 3, H, D]: q and k as after their norms."""
        generator = torch.Generator(device).manual_seed(0)
        shape = (tokens, 3, heads or self.heads, self.head_dim)
        qkv = torch.randn(shape, generator=generator, device=device, dtype=self.dtype)
        qkv[:, :2] *= _SCALE
        return qkv


@cache
def find_attention_obstacle(
    backend: AttentionName, device: torch.device, head_dim: int, dtype: torch.dtype
) -> str | None:
    """What speaks against a backend here; None if nothing does. Tried once a process."""
    if device.type != "cuda":
        return "it takes a CUDA GPU"
    if not is_installed(backend):
        return explain_absence(backend)
    shape = HeadShape(PROBE_HEADS, head_dim, dtype)
    return find_obstacle(
        lambda device: max(distance(backend, shape, tokens, device) for tokens in PROBE_TOKENS),
        device,
        LOOSE.get(backend, TOLERANCE),
    )


def distance(backend: AttentionName, shape: HeadShape, tokens: int, device: torch.device) -> float:
    """Relative L2 from the attention of the same values in fp32. Inf if the inputs were changed."""
    qkv = shape.draw(tokens, device)
    kept = qkv.clone()
    found = attend(backend)(qkv)
    if not torch.equal(qkv, kept):
        return math.inf
    expected = attend_in_fp32(kept, kept)
    error = float((found - expected).norm() / expected.norm())
    return math.inf if math.isnan(error) else error


def attend_in_fp32(queries: Tensor, qkv: Tensor) -> Tensor:
    """Of some rows to all: written out, so that it is nobody's kernel. queries, qkv [T, 3, H, D] -> [T, H, D] fp32"""
    q = queries[:, 0].float().transpose(0, 1)  # [H, T, D]
    k, v = (part.float().transpose(0, 1) for part in qkv[:, 1:].unbind(1))
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    return (scores.softmax(-1) @ v).transpose(0, 1)


def measure_times(
    backends: Iterable[AttentionName], shape: HeadShape, tokens: int, device: torch.device
) -> dict[AttentionName, float]:
    """Milliseconds of a call by backend; inf of one that breaks off at this size."""
    qkv = shape.draw(tokens, device)
    times = {}
    for backend in backends:
        try:
            times[backend] = _measure(attend(backend), qkv)
        except Exception as exc:  # as in `find_obstacle`
            times[backend] = math.inf
            log.warning("attention %s breaks off at %s tokens: %s", backend, f"{tokens:,}", str(exc).partition("\n")[0])
    del qkv
    torch.cuda.empty_cache()  # the render's own sizes are others
    return times


def _measure(run: Attend, qkv: Tensor) -> float:
    run(qkv)  # plans, and loads kernels
    first = _time_ms(run, qkv)
    if first >= _LONG_MS:
        return first
    return statistics.median([first, *(_time_ms(run, qkv) for _ in range(_REPEATS - 1))])


def _time_ms(run: Attend, qkv: Tensor) -> float:
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begun.record()
    run(qkv)
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended))


def describe(backend: AttentionName, times_ms: dict[AttentionName, float], tokens: int) -> str:
    """`attention runs on fa3 (13.1 ms; cudnn 13.9, flash 25.0 at 17,780 tokens)`."""
    told = f"attention runs on {backend}"
    if backend not in times_ms:
        return told
    others = ", ".join(f"{name} {ms:.1f}" for name, ms in times_ms.items() if name is not backend)
    return f"{told} ({times_ms[backend]:.1f} ms{'; ' if others else ''}{others} at {tokens:,} tokens)"
