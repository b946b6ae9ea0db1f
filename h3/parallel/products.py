"""Which product the ranks use for NVFP4 layers: one decision for all, made at start."""

import torch
import torch.distributed as dist

from h3.collectives import all_agree
from h3.model import Denoiser
from h3.nvfp4 import NVFP4Linear, probe_fp4
from h3.precision import Precision


def settle_precision(precision: Precision, model: Denoiser, device: torch.device, group: dist.ProcessGroup) -> str:
    """Let NVFP4 layers multiply in FP4 if every rank's device does so rightly; else they are dequantised. Collective.

    Returns what a render's provenance calls it: FP4 products round the activations too.
    """
    layers = [m for m in model.modules() if isinstance(m, NVFP4Linear) and not m.full_precision]
    is_native = all_agree(bool(layers) and probe_fp4(device), group, device)
    for layer in layers:
        layer.is_native = is_native
    return f"{precision}-w4a4" if is_native else str(precision)
