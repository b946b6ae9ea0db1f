"""What packing leaves behind in the process that packs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch

from worker.mgpu.tensors import pack


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("size", [10, 100_000], ids=["inline", "segment"])
def test_packing_keeps_nothing(no_garbage_collector: None, size: int) -> None:
    """43, 91: not even until the garbage collector comes."""
    tensor = torch.ones(size)
    kept = weakref.ref(tensor)
    packed = pack({"deep": [tensor]}, share_cuda=False)
    del tensor
    assert kept() is None
    assert packed.size_bytes > 0
