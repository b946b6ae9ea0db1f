"""A few bytes between the ranks of a fleet, beside every process group.

Agreeing on a flag between two steps must not wait for the GPU's stream, and an idle Gloo group costs 0.1 % of a core
(its thread wakes a hundred times a second). So rank 0 has a socket to each other rank.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

_WORD_LIMIT_BYTES = 64 << 10  # of all ranks together; a packet holds three times as much
_HEADER = struct.Struct("<QQ")  # job, and how many words were exchanged in it before; also: a packet is never empty


class PeerLostError(RuntimeError):
    """A rank that the others talk to is gone, or did not come in time."""


class WordOutOfTurnError(RuntimeError):
    """A peer is at another place of the job: it has asked more often, or less often."""


def connect(world_size: int) -> list[tuple[socket.socket, ...]]:
    """The connections of every rank, in rank order, made by the controller."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(1, world_size)]
    return [tuple(ours for ours, _ in pairs), *((theirs,) for _, theirs in pairs)]


class Peers:
    """Every method but `begin` is collective: all ranks call it, in the same order.

    Raises PeerLostError, or WordOutOfTurnError. Words that an earlier job left unread are passed over: ranks may have
    refused it at different places.
    """

    def __init__(self, rank: int, connections: Sequence[socket.socket], timeout_s: float) -> None:
        self._rank = rank
        self._connections = connections
        self._job_id = 0
        self._exchanged = 0
        for connection in connections:
            connection.set_inheritable(False)
            connection.settimeout(timeout_s)

    def begin(self, job_id: int) -> None:
        self._job_id, self._exchanged = job_id, 0

    def broadcast(self, word: bytes) -> bytes:
        """What rank 0 says, to all. Raises ValueError for a word that is too long."""
        self._exchanged += 1
        if self._rank != 0:
            return self._receive(0)
        if len(word) > _WORD_LIMIT_BYTES:
            raise ValueError(f"a word between ranks has {_WORD_LIMIT_BYTES} bytes at most, this one {len(word)}")
        for connection in self._connections:
            self._send(connection, word)
        return word

    def gather(self, word: bytes) -> list[bytes]:
        """What each rank says, in rank order, to all. Words of one length."""
        self._exchanged += 1
        if self._rank == 0:
            words = [word, *(self._receive(peer) for peer in range(len(self._connections)))]
            self.broadcast(b"".join(words))
            return words
        self._send(self._connections[0], word)
        joined, size = self.broadcast(b""), max(1, len(word))
        return [joined[start : start + size] for start in range(0, len(joined), size)]

    def _receive(self, index: int) -> bytes:
        peer = index + 1 if self._rank == 0 else 0
        expected = (self._job_id, self._exchanged)
        while True:
            packet = self._receive_packet(index, peer)
            position = _HEADER.unpack_from(packet)
            if position == expected:
                return packet[_HEADER.size :]
            if position[0] >= self._job_id:
                raise WordOutOfTurnError(f"rank {peer} is at (job, word) {position}, rank {self._rank} at {expected}")

    def _receive_packet(self, index: int, peer: int) -> bytes:
        try:
            packet = self._connections[index].recv(_HEADER.size + _WORD_LIMIT_BYTES)
        except TimeoutError:
            timeout_s = self._connections[index].gettimeout()
            raise PeerLostError(
                f"rank {peer} did not come to where rank {self._rank} waits in {timeout_s:g} s"
            ) from None
        except ConnectionError as error:
            raise PeerLostError(f"rank {peer} is gone: {error}") from error
        if not packet:
            raise PeerLostError(f"rank {peer} is gone")
        return packet

    def _send(self, connection: socket.socket, word: bytes) -> None:
        try:
            connection.send(_HEADER.pack(self._job_id, self._exchanged) + word)
        except (ConnectionError, TimeoutError) as error:
            raise PeerLostError(f"a peer is gone, or has not listened: {error}") from error
