"""Python values to bytes and back, with their large buffers beside the pickle instead of in it.

The bytes are taken when `pack` is called: what the sender does to a tensor afterwards is not seen by the receiver.
CPU tensors (and any other pickle-5 buffer, such as a numpy array) of 32 KiB and more share one memory segment.
Tensors arrive detached, contiguous, and bit-exact.
"""

from __future__ import annotations

import ctypes
import functools
import io
import pickle
import struct
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # registers the CUDA IPC reductions with ForkingPickler

from worker.mgpu.by_value import reduce_class, travels_by_value
from worker.mgpu.runner import Borrowed
from worker.mgpu.segment import Segment, SegmentView, offsets_of

INLINE_LIMIT_BYTES = 32 << 10
_COUNT = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Packed:
    body: bytes
    segment: Segment | None
    shared_bytes: int = 0  # CUDA memory that the sender keeps for the receiver
    is_borrowed: bool = False  # the receiver sees memory that the sender still uses

    @property
    def size_bytes(self) -> int:
        """What it takes until the receiver has opened it."""
        return len(self.body) + self.shared_bytes + (self.segment.size_bytes if self.segment else 0)


def pack(value: object, *, share_cuda: bool, inline: bool = False) -> Packed:
    """Pickle `value`.

    share_cuda  CUDA tensors travel as IPC handles: the sender must keep them. Otherwise they arrive on the CPU
    inline      no segment, for a channel that carries bytes only
    """
    stream, beside = io.BytesIO(), _BuffersBeside(inline)
    packer = _Packer(stream, beside, share_cuda)
    packer.dump(value)
    sizes = [buffer.nbytes for buffer in beside.buffers]
    header = struct.pack(f"<{1 + len(sizes)}Q", len(sizes), *sizes)
    segment = Segment(beside.buffers) if sizes else None
    return Packed(b"".join((header, stream.getbuffer())), segment, packer.shared_bytes, packer.has_borrowed)


def unpack(body: bytes, view: SegmentView | None) -> object:
    (count,) = _COUNT.unpack_from(body)
    sizes = struct.unpack_from(f"<{count}Q", body, _COUNT.size)
    offsets, _ = offsets_of(sizes)
    buffers = [view.buffer(offset, size) for offset, size in zip(offsets, sizes, strict=True)] if view else []
    start = _COUNT.size * (1 + count)
    return pickle.loads(memoryview(body)[start:], buffers=buffers)  # noqa: S301  # our own child or parent wrote it


def require_plain(name: str, tensor: torch.Tensor) -> None:
    """Raises TypeError for a tensor that is more than its elements, naming the argument."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"{name} is a {type(tensor).__name__}: pass a plain torch.Tensor")
    if not _is_plain(tensor):
        described = f"layout {tensor.layout}, device {tensor.device}, dtype {tensor.dtype}"
        raise TypeError(f"{name} has {described}: pass a dense CPU or CUDA tensor")


def _is_plain(tensor: torch.Tensor) -> bool:
    dense = tensor.layout is torch.strided and not tensor.is_quantized
    return dense and tensor.device.type in ("cpu", "cuda") and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in row-major order as uint8, on the same device; a copy only where one is needed."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return dense.reshape(-1).view(torch.uint8)


def window(flat: torch.Tensor) -> memoryview:
    """The bytes of a contiguous uint8 CPU tensor, without a copy and without numpy."""
    array = (ctypes.c_ubyte * flat.numel()).from_address(flat.data_ptr())
    array.tensor = flat  # type: ignore[attr-defined]  # the memory lives as long as the window
    return memoryview(array).cast("B")


class _BuffersBeside:
    """Takes the large buffers out of a pickle.

    Not a method of the packer: that would be a cycle, which keeps every buffer until the garbage collector comes, and
    CPython crashes when it collects a memoryview whose buffer goes first.
    """

    def __init__(self, inline: bool) -> None:
        self.buffers: list[memoryview] = []
        self._inline = inline

    def __call__(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether to leave it inside."""
        raw = buffer.raw()
        if self._inline or raw.nbytes < INLINE_LIMIT_BYTES:
            return True
        self.buffers.append(raw)
        return False


class _Packer(ForkingPickler):
    def __init__(self, stream: io.BytesIO, beside: _BuffersBeside, share_cuda: bool) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL, True, beside)
        self.shared_bytes = 0
        self.has_borrowed = False
        self._share_cuda = share_cuda

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, type):
            return reduce_class(value) if travels_by_value(value) else NotImplemented
        if isinstance(value, torch.Tensor):
            return self._reduce_tensor(value)
        if isinstance(value, Borrowed):
            return self._reduce_borrowed(value.tensor)
        return NotImplemented

    def _reduce_borrowed(self, tensor: torch.Tensor) -> Any:
        if not (tensor.is_cuda and self._share_cuda and _is_plain(tensor) and tensor.numel()):
            return self._reduce_tensor(tensor)
        self.has_borrowed = True
        return torch.multiprocessing.reductions.reduce_tensor(tensor.detach().resolve_conj().resolve_neg())

    def _reduce_tensor(self, tensor: torch.Tensor) -> Any:
        if not _is_plain(tensor):
            return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if tensor.is_cuda and self._share_cuda:
            # A copy of its own: the runner may overwrite its buffer at once. torch keeps the copy alive until
            # the receiver has let go of it.
            self.shared_bytes += tensor.nbytes
            return _reduce_shared(tensor.detach().resolve_conj().resolve_neg().clone().contiguous())
        flat = as_bytes(tensor.cpu())
        return _rebuild_tensor, (pickle.PickleBuffer(window(flat)), tensor.dtype, tuple(tensor.shape))


def _rebuild_tensor(buffer: object, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).reshape(shape)


def _reduce_shared(tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.numel() == 0:
        return functools.partial(torch.empty, tensor.shape, dtype=tensor.dtype, device=tensor.device), ()
    rebuild, arguments = torch.multiprocessing.reductions.reduce_tensor(tensor)
    return _own_shared, (rebuild, arguments)


def _own_shared(rebuild: object, arguments: tuple[object, ...]) -> torch.Tensor:
    """Copy, then let go of the sender's memory: a handle would die with the sender."""
    assert callable(rebuild)
    shared = rebuild(*arguments)
    owned: torch.Tensor = shared.clone()
    torch.cuda.current_stream(owned.device).synchronize()
    return owned


class Travelling:
    """Keywords that are packed when their process is spawned, and opened there when asked for.

    Packing within the spawn is what lets them hold multiprocessing queues and locks; opening late is what lets a
    failure be reported by the rank.
    """

    def __init__(self, kwargs: dict[str, object]) -> None:
        self._kwargs: dict[str, object] | None = kwargs
        self._body = b""

    def __getstate__(self) -> bytes:
        return pack(self._kwargs, share_cuda=False, inline=True).body

    def __setstate__(self, body: bytes) -> None:
        self._kwargs, self._body = None, body

    def open(self) -> dict[str, object]:
        """In the spawned process, once."""
        body, self._body = self._body, b""
        kwargs = unpack(body, None)
        assert isinstance(kwargs, dict)
        return kwargs
