"""How quantised layers multiply: one decision for all ranks, made at start, for their results are put together."""

import torch
import torch.distributed as dist

from h3.collectives import all_agree
from h3.fp8 import FP8Linear, probe_fp8
from h3.model import Denoiser
from h3.nvfp4 import NVFP4Linear, probe_fp4
from h3.precision import Precision


def settle_precision(precision: Precision, model: Denoiser, device: torch.device, group: dist.ProcessGroup) -> str:
    """Let NVFP4 and FP8 layers multiply natively if every rank's device does so rightly; else they are widened.

    Collective. Returns what a render's provenance calls it: FP4 products round the activations too.
    """
    match precision:
        case Precision.NVFP4:
            layers = [m for m in model.modules() if isinstance(m, NVFP4Linear) and not m.full_precision]
            is_native = all_agree(probe_fp4(device), group, device)
            for layer in layers:
                layer.is_native = is_native
            return f"{precision}-w4a4" if is_native and layers else str(precision)
        case Precision.FP8:
            is_native = all_agree(probe_fp8(device), group, device)
            for module in model.modules():
                if isinstance(module, FP8Linear):
                    module.is_native = is_native
            return str(precision)
        case Precision.FP32 | Precision.BF16:
            return str(precision)
