"""Anonymous shared memory that travels over a Unix socket as one descriptor and needs no name to clean up."""

from __future__ import annotations

import ctypes
import errno
import os
import weakref
from collections import deque
from collections.abc import Sequence

import torch

ALIGNMENT = 64  # every buffer of a segment starts on such a boundary: enough for any dtype and for SIMD


class SegmentAllocationError(MemoryError):
    """The machine has no room for a segment."""


def offsets_of(sizes_bytes: Sequence[int]) -> tuple[list[int], int]:
    """Where each buffer starts when they are laid out one after the other, and how long all of it is."""
    offsets, end = [], 0
    for size_bytes in sizes_bytes:
        offsets.append(end)
        end += -(-size_bytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


class Segment:
    """The sender's side: a copy of some buffers. Closed explicitly, or when it is dropped."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self.descriptor = os.memfd_create("mgpu", os.MFD_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self.descriptor)
        self.size_bytes = 0
        try:
            self.rewrite(buffers)
        except BaseException:
            self.close()
            raise

    def rewrite(self, buffers: Sequence[memoryview]) -> None:
        """Put these in place of what it holds. Only when no receiver reads that any more."""
        offsets, size_bytes = offsets_of([buffer.nbytes for buffer in buffers])
        try:
            if size_bytes != self.size_bytes:
                os.ftruncate(self.descriptor, size_bytes)
            for offset, buffer in zip(offsets, buffers, strict=True):
                _write_at(self.descriptor, offset, buffer)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise SegmentAllocationError(
                f"no room for a shared segment of {size_bytes} bytes: {error}; free memory or send less"
            ) from error
        self.size_bytes = size_bytes


class SegmentPool:
    """Keeps one segment to write into again: pages that exist take half the time (64 MiB: 13 ms instead of 25)."""

    def __init__(self, limit_bytes: int = 256 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._spare: deque[Segment] = deque(maxlen=1)  # taken and given back without a lock

    def take(self, buffers: Sequence[memoryview]) -> Segment:
        try:
            segment = self._spare.pop()
        except IndexError:
            return Segment(buffers)
        segment.rewrite(buffers)
        return segment

    def give_back(self, segment: Segment) -> None:
        """Its receiver has copied what it needs."""
        if segment.size_bytes <= self._limit_bytes:
            self._spare.append(segment)


def _write_at(descriptor: int, offset: int, buffer: memoryview) -> None:
    # pwrite and not a copy into a map: a machine without memory then answers ENOSPC instead of SIGBUS.
    while buffer:
        written = os.pwrite(descriptor, buffer, offset)
        offset += written
        buffer = buffer[written:]


class SegmentView:
    """The receiver's side: a private, writable map. The memory lives as long as any buffer taken from it."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        # Not mmap.mmap: that keeps a descriptor per map, and a caller may hold thousands of results.
        self._storage = torch.UntypedStorage.from_file(f"/proc/self/fd/{descriptor}", False, size_bytes)
        self.size_bytes = size_bytes

    def buffer(self, offset: int, size_bytes: int) -> ctypes.Array[ctypes.c_ubyte]:
        array = (ctypes.c_ubyte * size_bytes).from_address(self._storage.data_ptr() + offset)
        array.storage = self._storage  # type: ignore[attr-defined]  # keeps the map alive
        return array

    def as_bytes(self) -> torch.Tensor:
        """All of it, uint8, without a copy."""
        return torch.frombuffer(self.buffer(0, self.size_bytes), dtype=torch.uint8)
