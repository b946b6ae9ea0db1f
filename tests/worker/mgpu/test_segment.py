"""Shared memory segments and their reuse."""

from __future__ import annotations

import os

from tests.worker.mgpu.conftest import open_descriptors
from worker.mgpu.segment import Segment, SegmentPool, SegmentView


def content(segment: Segment) -> bytes:
    return os.pread(segment.descriptor, segment.size_bytes, 0)


def test_a_segment_is_written_again_with_more_or_less() -> None:
    """47"""
    pool = SegmentPool()
    first = pool.take([memoryview(b"a" * 100)])
    pool.give_back(first)
    longer = pool.take([memoryview(b"b" * 64), memoryview(b"c" * 300)])
    assert longer is first
    assert content(longer)[:364] == b"b" * 64 + b"c" * 300
    pool.give_back(longer)
    shorter = pool.take([memoryview(b"d" * 64)])
    assert content(shorter) == b"d" * 64


def test_a_segment_in_use_is_not_written_again() -> None:
    """47"""
    pool = SegmentPool()
    first, second = pool.take([memoryview(b"a" * 64)]), pool.take([memoryview(b"b" * 64)])
    assert first is not second
    assert (content(first), content(second)) == (b"a" * 64, b"b" * 64)


def test_a_large_segment_is_not_kept() -> None:
    """91: or one large input would cost the caller its memory for good."""
    pool = SegmentPool(limit_bytes=100)
    first = pool.take([memoryview(b"a" * 200)])
    pool.give_back(first)
    assert pool.take([memoryview(b"a")]) is not first


def test_what_is_mapped_is_private_to_its_reader() -> None:
    """51, 56: and costs no descriptor."""
    segment = Segment([memoryview(b"x" * 64)])
    before = open_descriptors()
    views = [SegmentView(segment.descriptor, 64) for _ in range(50)]
    assert open_descriptors() == before
    views[0].as_bytes().fill_(0)
    assert bytes(views[1].as_bytes().tolist()) == b"x" * 64
