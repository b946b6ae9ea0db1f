"""Attention backends by name: what each runs, what it takes, and which one a wish comes to. Forward only, no dropout.

Each attends over q, k and v as the projection leaves them, in one tensor, without copies. `auto` is `fa3` where that
runs and is right, else `sdpa`: the fastest of torch's own on this device at this size. `fa3-fp8` rounds q, k and v to 8
bits, `sage` q and k: these run only where they are asked for by name.

On Hopper cuDNN loses a tenth of its rate where the number of keys is no multiple of 128 (17,780 tokens on an H200: 15.2
ms, and 13.6 for 17,664 of the keys); that of the queries does not matter. So it gets as many keys as are a multiple,
torch's flash kernel the rest, and the two results are merged by their log-sum-exp: exact, in fp32, rounded once.
`attention_probe.py` finds out what runs on a device; `parallel/attention.py` lets all ranks run the same.
"""

import importlib.util
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Self

import torch
from torch import Tensor

from h3.errors import ConfigError
from h3.fp8 import RoundedQKV
from h3.model import Attend, attend_all_heads


class AttentionName(StrEnum):
    """What may be asked for. All but the first two are one backend each."""

    AUTO = "auto"
    SDPA = "sdpa"  # torch's: the best of the next three; on the CPU, and where none of these runs, as torch chooses
    CUDNN = "cudnn"
    FLASH = "flash"
    EFFICIENT = "efficient"
    FA3 = "fa3"  # FlashAttention-3; Hopper only
    FA3_FP8 = "fa3-fp8"  # the same with q, k, v and the weights in 8 bits, so less exact
    SAGE = "sage"  # SageAttention 1: q and k in 8 bits, so less exact

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ConfigError naming the valid ones."""
        try:
            return cls(text)
        except ValueError as exc:
            raise ConfigError(f"attention {text!r} is not one of {', '.join(cls)}") from exc


TORCH = (AttentionName.CUDNN, AttentionName.FLASH, AttentionName.EFFICIENT)
LOSSLESS = (AttentionName.FA3, *TORCH)
ROUNDED = (AttentionName.FA3_FP8, AttentionName.SAGE)
BACKENDS = (*LOSSLESS, *ROUNDED)  # what runs on a GPU only; `sdpa` runs everywhere
MODULES = {
    AttentionName.FA3: "fa3_fwd_interface",
    AttentionName.FA3_FP8: "fa3_fwd_interface",
    AttentionName.SAGE: "sageattention",
}
EXTRAS = {AttentionName.FA3_FP8: AttentionName.FA3}  # of ours, that are not named as what they bring
ALIGNED_KEYS = 128  # of cuDNN's tiles
# With fewer keys the second call and the merge cost what the aligned keys win: 15.6 for 15.2 ms at 17,780 tokens, and
# 0.12 s of a step of 5.9 won at 38,010 (H200).
MERGED_FROM = 1 << 15
_MOST_OFFSET = 2**31 - 1  # elements; with all of H3's heads passed at 99,865 tokens
_MERGED_ROWS = 2048  # at once, so that what is widened to fp32 is small
_FASTER = 0.9  # of the time of the one before it in `TORCH`: times that are nearly alike must not decide

Heads = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q, k and v [T, H, D], strided, to the result [T, H, D]."""
Part = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""q [T, H, D], some keys and values [K, H, D], to the result [T, H, D] and its natural log-sum-exp [T, H] fp32."""


def attend_in_parts(q: Tensor, k: Tensor, v: Tensor, main: Part, rest: Part) -> Tensor:
    """Full attention, by `main` for as many keys as are a multiple of 128, by `rest` for the others."""
    aligned = len(k) // ALIGNED_KEYS * ALIGNED_KEYS
    if aligned in (0, len(k)):
        return (main if aligned else rest)(q, k, v)[0]
    return merge(*main(q, k[:aligned], v[:aligned]), *rest(q, k[aligned:], v[aligned:]))


def merge(out: Tensor, weight: Tensor, other: Tensor, other_weight: Tensor) -> Tensor:
    """One attention out of two over different keys, in the memory of the first.

    out, other            [T, H, D]
    weight, other_weight  [T, H], the log-sum-exp of each one's scores
    """
    kept, added = torch.sigmoid(weight - other_weight), torch.sigmoid(other_weight - weight)
    for begin in range(0, len(out), _MERGED_ROWS):
        rows = slice(begin, begin + _MERGED_ROWS)
        # Both operations are in the dtype of the weights; what they put back is rounded once.
        torch.addcmul(out[rows] * kept[rows, :, None], other[rows], added[rows, :, None], out=out[rows])
    return out


def _as_torch_has_it(*parts: Tensor) -> list[Tensor]:
    """[T, H, D] to [1, H, T, D]."""
    return [part.transpose(0, 1)[None] for part in parts]


def _read_part(out: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """[1, H, T, D] and [1, H, T] (or one more of 1) to [T, H, D] and [T, H]."""
    return out[0].transpose(0, 1), weight.reshape(out.shape[1:3]).T


def _cudnn_part(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    done = torch.ops.aten._scaled_dot_product_cudnn_attention(*_as_torch_has_it(q, k, v), None, True)
    return _read_part(done[0], done[1])


def _flash_part(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    done = torch.ops.aten._scaled_dot_product_flash_attention(*_as_torch_has_it(q, k, v))
    return _read_part(done[0], done[1])


def _cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if len(k) < MERGED_FROM:
        return _cudnn_part(q, k, v)[0]
    return attend_in_parts(q, k, v, _cudnn_part, _flash_part)


def _flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _flash_part(q, k, v)[0]


def _efficient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    done = torch.ops.aten._scaled_dot_product_efficient_attention(*_as_torch_has_it(q, k, v), None, False)
    return done[0][0].transpose(0, 1)


def _fa3(q: Tensor, k: Tensor, v: Tensor, **scales: Tensor) -> Tensor:
    """scales: [1, H] fp32 of q, k and v in FP8; the result is then bf16"""
    from fa3_fwd_interface import flash_attn_func

    out = flash_attn_func(q[None], k[None], v[None], **scales)
    return (out[0] if isinstance(out, tuple) else out)[0]


def _fa3_fp8(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from h3.kernels.heads import round_heads  # here, for Triton comes with CUDA builds of torch alone

    return _attend_rounded(RoundedQKV(*map(round_heads, (q, k, v)))).to(q.dtype)


def _attend_rounded(qkv: RoundedQKV) -> Tensor:
    """[T, H, D] bf16."""
    q, k, v = qkv
    scales = {"q_descale": q.scale[None], "k_descale": k.scale[None], "v_descale": v.scale[None]}
    return _fa3(q.values, k.values, v.values, **scales)


def _sage(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from sageattention.core import sageattn

    return sageattn(q[None], k[None].clone(), v[None], tensor_layout="NHD")[0]  # it shifts k in place


_RUNS: Mapping[AttentionName, Heads] = {
    AttentionName.CUDNN: _cudnn,
    AttentionName.FLASH: _flash,
    AttentionName.EFFICIENT: _efficient,
    AttentionName.FA3: _fa3,
    AttentionName.FA3_FP8: _fa3_fp8,
    AttentionName.SAGE: _sage,
}
# Reckon offsets of q and k in 32 bits, too. (Sage by its source; efficient is not known to do without.)
_COPIES_ALL = {AttentionName.EFFICIENT, AttentionName.SAGE}


class Attending:
    """What the blocks of a model attend with. Another backend may be taken between two renders."""

    def __init__(self) -> None:
        self.backend = AttentionName.SDPA

    @property
    def reads_rounded(self) -> bool:
        """Whether it may be given q, k and v in FP8 as well, which it would else round itself."""
        return self.backend is AttentionName.FA3_FP8

    def __call__(self, qkv: Tensor | RoundedQKV) -> Tensor:
        """[T, 3, H, D] to [T, H, D]."""
        if isinstance(qkv, RoundedQKV):
            assert self.reads_rounded
            return _attend_rounded(qkv)
        return attend(self.backend)(qkv)


def attend(backend: AttentionName) -> Attend:
    """The function of one backend; `sdpa` leaves the choice to torch."""
    if backend is AttentionName.SDPA:
        return attend_all_heads
    run, copies_all = _RUNS[backend], backend in _COPIES_ALL

    def attend_strided(qkv: Tensor) -> Tensor:
        q, k, v = qkv.unbind(1)
        if qkv.numel() > _MOST_OFFSET:
            # A view of the values' part is what overflows, in some backends: none gets one.
            q, k = (q.contiguous(), k.contiguous()) if copies_all else (q, k)
            v = v.contiguous()
        return run(q, k, v)

    return attend_strided


def is_installed(backend: AttentionName) -> bool:
    """Whether what it is made of is there; only `attention_probe` finds out if it runs."""
    return backend not in MODULES or importlib.util.find_spec(MODULES[backend]) is not None


def explain_absence(backend: AttentionName) -> str:
    """Of one that is not installed, with the remedy."""
    return f"{MODULES[backend]} is not installed: pip install 'h3render[{EXTRAS.get(backend, backend)}]'"


def find_installed(*, on_gpus: bool) -> tuple[AttentionName, ...]:
    """What ranks may run here, by name."""
    return (AttentionName.SDPA, *(name for name in BACKENDS if on_gpus and is_installed(name)))


def require_installed(name: AttentionName, *, on_gpus: bool) -> None:
    """Raises ConfigError for a name that no rank could run, before one is started."""
    if name not in BACKENDS:
        return
    if not on_gpus:
        raise ConfigError(f"attention {name} takes a CUDA GPU: ask for {AttentionName.SDPA} or {AttentionName.AUTO}")
    if not is_installed(name):
        raise ConfigError(f"attention {name} is refused: {explain_absence(name)}")


def needed_for(name: AttentionName) -> tuple[AttentionName, ...]:
    """The backends that a wish may come to, from the preferred one on."""
    match name:
        case AttentionName.AUTO:
            return LOSSLESS
        case AttentionName.SDPA:
            return TORCH
        case _:
            return (name,)


def pick(
    name: AttentionName, usable: Collection[AttentionName], times_ms: Mapping[AttentionName, float]
) -> AttentionName:
    """The backend that a wish comes to, given which run rightly here, and how long they take.

    A later one of `TORCH` must be a tenth faster than the one before it; one without a time is not taken for speed.
    """
    if name not in (AttentionName.AUTO, AttentionName.SDPA):
        assert name in usable, "a backend that does not run here is refused by its name"
        return name
    if name is AttentionName.AUTO and AttentionName.FA3 in usable:
        return AttentionName.FA3
    best = AttentionName.SDPA
    for each in TORCH:
        if each in usable and (
            best is AttentionName.SDPA or times_ms.get(each, float("inf")) < _FASTER * times_ms.get(best, float("inf"))
        ):
            best = each
    return best
