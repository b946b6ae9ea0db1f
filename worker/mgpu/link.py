"""Messages between the controller and one rank, over a Unix stream socket. Knows no meaning of a body.

A message is a fixed header, a body of any length, and at most one memory segment, whose descriptor travels
beside the first byte. Whether a message ends a job stands in its kind, never in a value that a runner yields.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections import deque
from dataclasses import dataclass
from enum import IntEnum

from worker.mgpu.segment import Segment, SegmentView


class Kind(IntEnum):
    PHASE = 1  # rank -> controller: the body is a Phase
    JOB = 2  # controller -> rank: run a job
    STOP = 3  # controller -> rank 0: the caller wishes the job to end early; the body is the reason
    EXIT = 4  # controller -> rank: leave when the job, if any, has ended
    ITEM = 5  # rank -> controller: the runner yielded
    RETURNED = 6  # rank -> controller, ends the job: the generator returned
    REFUSED = 7  # rank -> controller, ends the job: RunnerError or ValueError
    FAILED = 8  # rank -> controller, ends the rank: any other exception
    WAITS = 9  # rank -> controller: it goes on when the caller is done with the item of this sequence number
    READ = 10  # controller -> rank: the caller is done with the items up to this sequence number


TERMINALS = (Kind.RETURNED, Kind.REFUSED)  # the last message of a rank about a job


@dataclass(frozen=True, slots=True)
class Message:
    kind: Kind
    job_id: int = 0
    sequence: int = 0  # position among the messages of this rank about this job
    body: bytes = b""
    segment: Segment | None = None  # set by a sender
    view: SegmentView | None = None  # set for a receiver
    holds_cuda: bool = False  # GPU memory that the sender keeps until the body is opened


_HEADER = struct.Struct("<B?xxxxxxQQQQ")  # kind, holds CUDA, job, sequence, body size, segment size (0: none)
_READ_SIZE_BYTES = 1 << 16
_READS_AT_ONCE = 64  # more than a socket's buffer holds, yet a fast sender cannot keep the reader for ever


class Link:
    """One end. Reading and sending may happen in two threads, but each only in one at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._incoming = bytearray()
        self._descriptors: deque[int] = deque()
        self._received: deque[Message] = deque()
        self._outgoing: deque[tuple[memoryview, Segment | None]] = deque()

    def receive(self) -> Message:
        """Block for the next message. Raises EOFError when the peer is gone."""
        while not self._received:
            self._read(0)
        return self._received.popleft()

    def receive_pending(self) -> list[Message]:
        """What has come, without blocking. Raises EOFError or ConnectionError if nothing has and the peer is gone."""
        try:
            for _ in range(_READS_AT_ONCE):
                if self._read(socket.MSG_DONTWAIT):
                    break
        except BlockingIOError:
            pass
        except (EOFError, ConnectionError):  # the latter: the peer died with messages of ours unread
            if not self._received:
                raise
        messages = list(self._received)
        self._received.clear()
        return messages

    def send(self, message: Message) -> None:
        """Block until the kernel has all of it. Raises BrokenPipeError when the peer is gone."""
        self.enqueue(message)
        self._flush(0)

    def enqueue(self, message: Message) -> None:
        size_bytes = message.segment.size_bytes if message.segment else 0
        header = _HEADER.pack(
            message.kind, message.holds_cuda, message.job_id, message.sequence, len(message.body), size_bytes
        )
        self._outgoing.append((memoryview(header), message.segment))
        if message.body:
            self._outgoing.append((memoryview(message.body), None))

    def flush_pending(self) -> bool:
        """Send what the kernel takes at once; true if nothing is left."""
        try:
            self._flush(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self.connection.close()
        self._outgoing.clear()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _flush(self, flags: int) -> None:
        while self._outgoing:
            parts = [part for part, _ in self._batch()]
            segment = self._outgoing[0][1]
            ancillary = [_rights(segment.descriptor)] if segment else []
            self._sent(self.connection.sendmsg(parts, ancillary, flags | socket.MSG_NOSIGNAL))

    def _batch(self) -> list[tuple[memoryview, Segment | None]]:
        """A header and its body: descriptors of a later message must not go out with this one."""
        following = self._outgoing[1] if len(self._outgoing) > 1 else None
        first = self._outgoing[0]
        return [first] if following is None or following[1] is not None else [first, following]

    def _sent(self, size_bytes: int) -> None:
        while size_bytes:
            part, _ = self._outgoing.popleft()
            if size_bytes < len(part):
                self._outgoing.appendleft((part[size_bytes:], None))
                return
            size_bytes -= len(part)

    def _read(self, flags: int) -> bool:
        """Whether that was all there was to read, as far as can be told without another call."""
        chunk, ancillary, message_flags, _ = self.connection.recvmsg(
            _READ_SIZE_BYTES, socket.CMSG_SPACE(array.array("i").itemsize), flags | socket.MSG_CMSG_CLOEXEC
        )
        if message_flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "no descriptor is free to receive a tensor; raise the limit (ulimit -n)")
        self._take_descriptors(ancillary)
        if not chunk:
            raise EOFError("the peer closed its end of the link")
        self._incoming += chunk
        self._parse()
        return len(chunk) < _READ_SIZE_BYTES and not ancillary  # a read ends early at a descriptor

    def _take_descriptors(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(array.array("i", payload))

    def _parse(self) -> None:
        while len(self._incoming) >= _HEADER.size:
            kind, holds_cuda, job_id, sequence, body_size, segment_size = _HEADER.unpack_from(self._incoming)
            end = _HEADER.size + body_size
            if len(self._incoming) < end:
                return
            body = bytes(memoryview(self._incoming)[_HEADER.size : end])
            del self._incoming[:end]
            view = self._map_next(segment_size) if segment_size else None
            self._received.append(Message(Kind(kind), job_id, sequence, body, view=view, holds_cuda=holds_cuda))

    def _map_next(self, size_bytes: int) -> SegmentView:
        descriptor = self._descriptors.popleft()
        try:
            return SegmentView(descriptor, size_bytes)
        finally:
            os.close(descriptor)


def _rights(descriptor: int) -> tuple[int, int, array.array[int]]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor])
