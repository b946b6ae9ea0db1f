"""A rank's place among the others: its device, its process groups, and what a rank process is given to find them."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore  # torch.distributed has it, but its types do not say so

from worker.mgpu.placement import Backend
from worker.mgpu.runner import NCCLGroups
from worker.mgpu.slack import late_timers

Outputs = Literal["device", "cpu"]
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What is the same for every rank of a fleet."""

    runner_definition: bytes
    backend: Backend
    devices: tuple[torch.device, ...]  # of every rank, in rank order
    outputs: Outputs
    collective_timeout: timedelta
    max_buffered_bytes: int
    check_lockstep: bool
    share_groups: bool
    self_test: bool

    @property
    def world_size(self) -> int:
        return len(self.devices)


@dataclass(frozen=True, slots=True)
class RankPlan:
    fleet: FleetPlan
    rank: int
    store_port: int
    evidence_folder: Path

    @property
    def device(self) -> torch.device:
        return self.fleet.devices[self.rank]


def open_store() -> TCPStore:
    """The controller's end of the rendezvous."""
    # Bound before anybody needs it, so no other process can take the port in between.
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    return TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


@late_timers()
def bind_device(plan: RankPlan) -> None:
    _describe_in_environment(plan)
    if plan.device.type == "cuda":
        torch.cuda.set_device(plan.device)
    # Ranks share the cores; torch would give each of them all.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // plan.fleet.world_size))


def _describe_in_environment(plan: RankPlan) -> None:
    """What libraries of a runner look for, in place of whatever the controller's own environment says."""
    rank, world_size = str(plan.rank), str(plan.fleet.world_size)
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world_size, LOCAL_WORLD_SIZE=world_size)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(plan.store_port))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else Gloo resolves the host name, which pods may lack
    # A first compile holds the GIL for minutes; the watchdog must not take that for a hang.
    os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "1800")


@late_timers()
def join_process_group(plan: RankPlan) -> None:
    timeout = plan.fleet.collective_timeout
    dist.init_process_group(
        plan.fleet.backend,
        store=TCPStore(LOOPBACK, plan.store_port, is_master=False, wait_for_workers=False, timeout=timeout),
        rank=plan.rank,
        world_size=plan.fleet.world_size,
        timeout=timeout,
        device_id=plan.device if plan.device.type == "cuda" else None,
    )


@late_timers()
def create_groups(plan: RankPlan) -> NCCLGroups:
    """Collective, in the same order on every rank."""
    names = ("transformer_group", "vae_group", "text_group")
    if plan.fleet.share_groups:
        everyone = dist.group.WORLD
        assert everyone is not None
        return NCCLGroups(**dict.fromkeys(names, everyone))
    return NCCLGroups(**{name: dist.new_group(timeout=plan.fleet.collective_timeout) for name in names})
