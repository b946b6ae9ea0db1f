"""Which product the ranks use for NVFP4 layers: one decision for all, made at start."""

import torch
import torch.distributed as dist

from h3.collectives import all_agree
from h3.model import Denoiser
from h3.nvfp4 import NVFP4Linear, probe_fp4


def choose_products(model: Denoiser, device: torch.device, group: dist.ProcessGroup) -> bool:
    """Multiply in FP4 if every rank's device does so rightly, else dequantised. Returns whether in FP4. Collective."""
    layers = [m for m in model.modules() if isinstance(m, NVFP4Linear) and not m.full_precision]
    is_native = all_agree(bool(layers) and probe_fp4(device), group, device)
    for layer in layers:
        layer.is_native = is_native
    return is_native
