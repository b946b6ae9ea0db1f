"""Runners with a mistake of the kind that renders without any error: a gate that lets one pass gates nothing."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from h3.attention import AttentionName
from h3.denoise_fleet import DenoiseRunner
from h3.model import Block
from h3.parallel.mode import Mode
from h3.precision import Precision
from h3.untrained import Untrained


class SwapsHeads(DenoiseRunner):
    """Heads come back in each other's place."""

    def setup(
        self, *, model: Path | Untrained, mode: Mode, precision: Precision | None, attention: AttentionName
    ) -> None:
        super().setup(model=model, mode=mode, precision=precision, attention=attention)
        for block in self._denoiser.model.blocks:
            assert isinstance(block, Block)
            block.attn.attend = swap(block.attn.attend)


def swap(attend: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def attend_and_swap(qkv: Tensor) -> Tensor:
        attended = attend(qkv)
        return attended.roll(attended.shape[1] // 2, dims=1)

    return attend_and_swap


class DropsBias(DenoiseRunner):
    """AdaLN projections have lost their bias."""

    @torch.inference_mode()
    def setup(
        self, *, model: Path | Untrained, mode: Mode, precision: Precision | None, attention: AttentionName
    ) -> None:
        super().setup(model=model, mode=mode, precision=precision, attention=attention)
        for block in self._denoiser.model.blocks:
            block.get_submodule("adaln_proj.linear").get_parameter("bias").zero_()
