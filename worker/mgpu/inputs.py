"""How a job's keywords reach every rank.

Everything but top-level tensors is pickled once, in the caller, and the same bytes go to every rank. Top-level
tensors go to rank 0 only (CPU: one memory segment; CUDA: IPC handles), which broadcasts them as bytes: Gloo has no
broadcast for several dtypes, and bytes are exact for all. Layout of the broadcast: CPU tensors first.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from worker.mgpu import cuda_ipc
from worker.mgpu.errors import RunnerError
from worker.mgpu.link import Message
from worker.mgpu.segment import Segment, SegmentPool, offsets_of
from worker.mgpu.tensors import as_bytes, pack, require_plain, unpack, window

log = logging.getLogger(__name__)

BROADCAST_CHUNK_BYTES = 16 << 20
_HANDLES_SIZE = struct.Struct("<Q")
_LARGE_BYTES = 1 << 20  # of a keyword that does not go as a tensor


@dataclass(frozen=True, slots=True)
class TensorEntry:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class JobInputs:
    """What the body of a JOB message unpacks to, on every rank, behind the handles of CUDA tensors for rank 0."""

    plain: dict[str, object]
    entries: tuple[TensorEntry, ...]


@dataclass(frozen=True, slots=True)
class EncodedJob:
    body: bytes
    segment: Segment | None  # for rank 0
    pool: SegmentPool | None  # that the segment goes back to

    def recycle(self) -> None:
        """Rank 0 is done with the job."""
        if self.segment is not None and self.pool is not None:
            self.pool.give_back(self.segment)


@dataclass(frozen=True, slots=True)
class InputSender:
    """The caller's end: turns keywords into the body of a JOB message, and the tensors' memory beside it."""

    device: torch.device  # of rank 0
    pool: SegmentPool | None  # for a GPU, which copies the snapshot. On the CPU rank 0 works on the segment itself

    def encode(self, kwargs: dict[str, object]) -> EncodedJob:
        """Take a snapshot of the keywords. Raises in the caller whatever pickling raises; nothing is claimed yet."""
        tensors = {name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
        for name, tensor in tensors.items():
            require_plain(f"keyword {name}", tensor)
        on_cuda = {name: tensor for name, tensor in tensors.items() if self._is_shared(tensor)}
        on_cpu = {name: as_bytes(tensor.cpu()) for name, tensor in tensors.items() if name not in on_cuda}
        inputs = JobInputs(
            plain={name: value for name, value in kwargs.items() if name not in tensors},
            entries=tuple(_entry(name, tensors[name]) for name in (*on_cpu, *on_cuda)),
        )
        body = pack(inputs, share_cuda=False, inline=True).body
        _name_large(inputs.plain, len(body))
        segment = self._segment_of(list(on_cpu.values()))
        # Last: GPU memory that was exported and that no rank opens is lost.
        handles = pack(list(on_cuda.values()), share_cuda=True, inline=True).body if on_cuda else b""
        return EncodedJob(b"".join((_HANDLES_SIZE.pack(len(handles)), handles, body)), segment, self.pool)

    def _is_shared(self, tensor: torch.Tensor) -> bool:
        # To open another GPU's memory would give rank 0 a context there, half a gigabyte.
        return tensor.device == self.device and tensor.is_cuda and cuda_ipc.can_share(self.device)

    def _segment_of(self, flat_tensors: Sequence[torch.Tensor]) -> Segment | None:
        buffers = [window(flat) for flat in flat_tensors]
        if not any(buffer.nbytes for buffer in buffers):
            return None
        return Segment(buffers) if self.pool is None else self.pool.take(buffers)


def _name_large(plain: dict[str, object], total_bytes: int) -> None:
    if total_bytes < _LARGE_BYTES or not log.isEnabledFor(logging.DEBUG):
        return
    for name, value in plain.items():
        size_bytes = len(pack(value, share_cuda=False, inline=True).body)
        if size_bytes > _LARGE_BYTES:
            log.debug(
                "keyword %s travels pickled, %d bytes to each rank; a top-level tensor is broadcast", name, size_bytes
            )


def _entry(name: str, tensor: torch.Tensor) -> TensorEntry:
    return TensorEntry(name, tensor.dtype, tuple(tensor.shape), tensor.numel() * tensor.element_size())


@dataclass(frozen=True, slots=True)
class InputReceiver:
    """A rank's end: turns a JOB message into the keywords of the runner's call.

    The broadcast uses the group of all ranks: it comes before the runner's call, so in the same order on every rank.
    """

    rank: int
    device: torch.device
    world_size: int

    def receive(self, message: Message) -> dict[str, object]:
        """Collective if the job has tensors. Raises RunnerError if this process cannot rebuild a keyword."""
        inputs, handles = _decode(message.body)
        if not inputs.entries:
            return inputs.plain
        offsets, total_bytes = offsets_of([entry.size_bytes for entry in inputs.entries])
        flat = self._load(message, handles, offsets, total_bytes) if self.rank == 0 else self._empty(total_bytes)
        self._broadcast(flat)
        tensors = {e.name: _carve(flat, offset, e) for e, offset in zip(inputs.entries, offsets, strict=True)}
        return {**inputs.plain, **tensors}

    def _load(self, message: Message, handles: bytes, offsets: Sequence[int], total_bytes: int) -> torch.Tensor:
        """Rank 0: all tensors behind each other, on its device."""
        from_cpu = message.view.as_bytes() if message.view else self._empty(0)
        if from_cpu.numel() == total_bytes and self.device.type == "cpu":
            return from_cpu
        flat = self._empty(total_bytes)
        flat[: from_cpu.numel()] = from_cpu
        for offset, tensor in zip(reversed(offsets), reversed(_cuda_tensors(handles)), strict=False):
            source = as_bytes(tensor)
            flat[offset : offset + source.numel()] = source
        return flat

    def _empty(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)

    def _broadcast(self, flat: torch.Tensor) -> None:
        if self.world_size == 1:
            return
        for chunk in flat.split(BROADCAST_CHUNK_BYTES):
            if chunk.numel():
                dist.broadcast(chunk, src=0)


def _decode(body: bytes) -> tuple[JobInputs, bytes]:
    (size,) = _HANDLES_SIZE.unpack_from(body)
    start = _HANDLES_SIZE.size
    try:
        inputs = unpack(body[start + size :], None)
    except Exception as error:  # foreign classes raise whatever they like; every rank gets the same bytes
        raise RunnerError(f"the job's keywords cannot be rebuilt here: {type(error).__name__}: {error}") from error
    assert isinstance(inputs, JobInputs)
    return inputs, body[start : start + size]


def _cuda_tensors(handles: bytes) -> list[torch.Tensor]:
    tensors = unpack(handles, None) if handles else []
    assert isinstance(tensors, list)
    return tensors


def _carve(flat: torch.Tensor, offset: int, entry: TensorEntry) -> torch.Tensor:
    if entry.size_bytes == 0:
        return torch.empty(entry.shape, dtype=entry.dtype, device=flat.device)
    return flat[offset : offset + entry.size_bytes].view(entry.dtype).reshape(entry.shape)
