"""How much of what a rank has yielded may lie unread at the caller. Kept by the rank; knows no channel."""

from __future__ import annotations

from collections import deque

# What the controller's own objects around an item take, so that small items count too (measured: about 500 bytes).
_OVERHEAD_BYTES = 512


class Window:
    """One job's items, numbered from 0. The caller reads them in order."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._unread: deque[tuple[int, int]] = deque()  # sequence, size
        self.unread_bytes = 0
        self.first_unread = 0

    def sent(self, sequence: int, size_bytes: int) -> None:
        self._unread.append((sequence, size_bytes + _OVERHEAD_BYTES))
        self.unread_bytes += size_bytes + _OVERHEAD_BYTES

    def read_up_to(self, sequence: int) -> None:
        """The caller is done with every item up to and with this one."""
        self.first_unread = max(self.first_unread, sequence + 1)
        while self._unread and self._unread[0][0] <= sequence:
            self.unread_bytes -= self._unread.popleft()[1]

    def must_be_read(self) -> int | None:
        """The item to wait for before the next may be sent, so that half of the room is free again; None: go on."""
        if self.unread_bytes < self._limit_bytes:
            return None
        freed_bytes = 0
        for sequence, size_bytes in self._unread:
            freed_bytes += size_bytes
            if self.unread_bytes - freed_bytes <= self._limit_bytes // 2:
                return sequence
        raise AssertionError("without any unread item nothing is unread")
