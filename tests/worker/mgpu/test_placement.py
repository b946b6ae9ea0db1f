"""Devices are claimed per process. The arithmetic needs no GPU."""

from __future__ import annotations

import pytest
import torch

from worker.mgpu.placement import DeviceClaim

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


def test_a_device_has_one_fleet_at_a_time() -> None:
    """10: an overlap is refused, by number, until the first fleet is gone; disjoint devices are free."""
    claim, beside = DeviceClaim([FIRST], may_share=False), DeviceClaim([SECOND], may_share=False)
    with pytest.raises(ValueError, match=r"devices \[0\] .*allow_shared"):
        DeviceClaim([FIRST], may_share=False)
    claim.release()
    DeviceClaim([FIRST], may_share=False).release()
    beside.release()


def test_a_shared_device_stays_with_the_first_fleet() -> None:
    """10: allow_shared=True."""
    claim = DeviceClaim([FIRST], may_share=False)
    DeviceClaim([FIRST], may_share=True).release()
    with pytest.raises(ValueError, match=r"\[0\]"):
        DeviceClaim([FIRST], may_share=False)
    claim.release()


def test_the_cpu_is_for_everybody() -> None:
    """10: Gloo fleets never overlap."""
    claims = [DeviceClaim([torch.device("cpu")], may_share=False) for _ in range(2)]
    for claim in claims:
        claim.release()
