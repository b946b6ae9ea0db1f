"""A few bytes between the ranks of a fleet, beside every process group.

Agreeing on a flag between two steps must not wait for the GPU's stream, and an idle Gloo group costs 0.1 % of a core
(its thread wakes a hundred times a second). So rank 0 has a socket to each other rank.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

_WORD_LIMIT_BYTES = 64 << 10  # of all ranks together; a packet holds three times as much


class PeerLostError(RuntimeError):
    """A rank that the others talk to is gone, or did not come in time."""


def connect(world_size: int) -> list[tuple[socket.socket, ...]]:
    """The connections of every rank, in rank order, made by the controller."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(1, world_size)]
    return [tuple(ours for ours, _ in pairs), *((theirs,) for _, theirs in pairs)]


class Peers:
    """Every method is collective: all ranks call it, in the same order. Raises PeerLostError."""

    def __init__(self, rank: int, connections: Sequence[socket.socket], timeout_s: float) -> None:
        self._rank = rank
        self._connections = connections
        for connection in connections:
            connection.set_inheritable(False)
            connection.settimeout(timeout_s)

    def broadcast(self, word: bytes) -> bytes:
        """What rank 0 says, to all."""
        if self._rank != 0:
            return self._receive(0)
        word = word[:_WORD_LIMIT_BYTES]
        for connection in self._connections:
            _send(connection, word)
        return word

    def gather(self, word: bytes) -> list[bytes]:
        """What each rank says, in rank order, to all. Words of one length."""
        if self._rank == 0:
            words = [word, *(self._receive(peer) for peer in range(len(self._connections)))]
            self.broadcast(b"".join(words))
            return words
        _send(self._connections[0], word)
        joined, size = self.broadcast(b""), max(1, len(word))
        return [joined[start : start + size] for start in range(0, len(joined), size)]

    def _receive(self, index: int) -> bytes:
        peer = index + 1 if self._rank == 0 else 0
        try:
            packet = self._connections[index].recv(1 + _WORD_LIMIT_BYTES)
        except TimeoutError:
            timeout_s = self._connections[index].gettimeout()
            raise PeerLostError(
                f"rank {peer} did not come to where rank {self._rank} waits in {timeout_s:g} s"
            ) from None
        except ConnectionError as error:
            raise PeerLostError(f"rank {peer} is gone: {error}") from error
        if not packet:
            raise PeerLostError(f"rank {peer} is gone")
        return packet[1:]


def _send(connection: socket.socket, word: bytes) -> None:
    try:
        connection.send(b"\0" + word)  # a packet is never empty: that is how the end of the peer reads
    except (ConnectionError, TimeoutError) as error:
        raise PeerLostError(f"a peer is gone: {error}") from error
