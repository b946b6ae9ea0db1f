"""Keeps a module's weights in host memory and puts them on the device while they are needed."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from h3.weights import put

_WORTH_PINNING = 1 << 20  # bytes; the system locks whole pages


class Shelf:
    """Some tensors of a module, all others being left alone.

    The host's copy stays, for weights never change: taking them off the device is dropping them there. Tensors that lie
    in host memory already are not copied.
    """

    def __init__(self, module: nn.Module, names: Iterable[str], device: torch.device) -> None:
        self._module, self._device = module, device
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._kept = {name: _pin(tensors[name].detach().cpu().contiguous()) for name in names}
        self.on_device = True
        self.put_away()

    def bring(self) -> None:
        """Onto the device, if it is not there."""
        if not self.on_device:
            for name, kept in self._kept.items():
                put(self._module, name, kept.to(self._device, non_blocking=True))
            self.on_device = True

    @contextmanager
    def brought(self) -> Iterator[None]:
        """On the device within."""
        self.bring()
        try:
            yield
        finally:
            self.put_away()

    def put_away(self) -> None:
        """Off the device, if it is there."""
        if self.on_device:
            for name, kept in self._kept.items():
                put(self._module, name, kept)
            self.on_device = False


def _pin(tensor: Tensor) -> Tensor:
    """Let the GPU read this memory by itself, as far as the system allows.

    In place: torch's own `pin_memory` copies, and rounds each tensor up to a power of two.
    """
    if torch.cuda.is_available() and tensor.nbytes >= _WORTH_PINNING:
        torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)  # refused: slower, and all right
    return tensor
