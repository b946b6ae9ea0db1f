"""Words between ranks, here between threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from worker.mgpu.peers import PeerLostError, Peers, WordOutOfTurnError, connect


@pytest.fixture(params=[1, 2, 5])
def peers(request: pytest.FixtureRequest) -> Iterator[list[Peers]]:
    connections = connect(request.param)
    yield [Peers(rank, ends, timeout_s=10) for rank, ends in enumerate(connections)]
    for ends in connections:
        for end in ends:
            end.close()


def on_all(peers: list[Peers], call: Callable[[int, Peers], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(peers)) as pool:
        return list(pool.map(call, range(len(peers)), peers))


def test_all_hear_what_rank_0_says(peers: list[Peers]) -> None:
    """Cooperative stop: an empty word too."""
    for word in (b"because", b"", b"x" * 10_000):
        assert on_all(peers, lambda rank, peer, word=word: peer.broadcast(word if rank == 0 else b"?")) == [word] * len(
            peers
        )


def test_all_hear_what_each_says(peers: list[Peers]) -> None:
    """77"""
    words = [bytes([rank]) * 3 for rank in range(len(peers))]
    assert on_all(peers, lambda rank, peer: peer.gather(words[rank])) == [words] * len(peers)
    on_all(peers, lambda rank, peer: peer.gather(b""))


def test_a_peer_that_is_gone_is_named() -> None:
    """64: not waited for."""
    (first,), (second,) = connect(2)
    waiting = Peers(1, [second], timeout_s=10)
    first.close()
    with pytest.raises(PeerLostError, match="rank 0 is gone"):
        waiting.broadcast(b"")
    with pytest.raises(PeerLostError, match="gone"):
        waiting.gather(b"?")
    second.close()


def test_a_peer_that_does_not_come_is_named() -> None:
    """No wait is without a deadline."""
    (first,), (second,) = connect(2)
    with pytest.raises(PeerLostError, match=r"rank 1 did not come to where rank 0 waits in 0.05 s"):
        Peers(0, [first], timeout_s=0.05).gather(b"?")
    first.close()
    second.close()


def test_words_that_an_earlier_job_left_are_passed_over() -> None:
    """61: rank 1 refused that job before it asked."""
    (first,), (second,) = connect(2)
    speaker, listener = Peers(0, [first], timeout_s=10), Peers(1, [second], timeout_s=10)
    speaker.begin(1)
    listener.begin(1)
    speaker.broadcast(b"old")
    for peer in (speaker, listener):
        peer.begin(2)
    speaker.broadcast(b"new")
    assert listener.broadcast(b"") == b"new"
    first.close()
    second.close()


def test_a_peer_at_another_place_of_the_job_is_told() -> None:
    """63"""
    (first,), (second,) = connect(2)
    speaker, listener = Peers(0, [first], timeout_s=10), Peers(1, [second], timeout_s=10)
    speaker.begin(2)
    listener.begin(1)
    speaker.broadcast(b"")
    with pytest.raises(WordOutOfTurnError, match=r"rank 0 is at \(job, word\) \(2, 1\), rank 1 at \(1, 1\)"):
        listener.broadcast(b"")
    first.close()
    second.close()
