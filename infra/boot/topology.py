"""What a machine is: GPUs and how they are connected, memory, disk. Looked at before a job, and kept as JSON.

Every scaling result hangs on it: two pods of one type differ. Nothing of the environment is in it.
"""

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from infra.boot.driver import GPU, Answer, Peers, ask, list_gpus, read_cuda, read_gpus, read_peers
from infra.boot.settings import BootSettings
from infra.boot.trial import Trial

FILE = "topology.json"
SHM = Path("/dev/shm")  # noqa: S108  the mount itself is looked at
CGROUP, PCI_DEVICES, NUMA_NODES = Path("/sys/fs/cgroup"), Path("/sys/bus/pci/devices"), Path("/sys/devices/system/node")
CAPABILITIES = {"read": "r", "write": "w", "nvlink": "n", "atomics": "a", "prop": "p"}  # of `topo -p2p`
UNLIMITED = 1 << 60  # bytes: the kernel's older way to say so


class Limits(BaseModel):
    """What this container may use; of CPUs the host's number is what a program sees. None: as much as there is."""

    model_config = ConfigDict(frozen=True)

    cpus: float | None
    memory_bytes: int | None


class Topology(BaseModel):
    """The record."""

    model_config = ConfigDict(frozen=True)

    version: Literal[1] = 1
    pod: str
    pod_id: str
    data_center: str
    at: str  # UTC
    gpus: list[GPU]
    cuda: tuple[int, int] | None  # the newest that the driver runs
    peers: dict[str, Peers]
    numa_of_gpus: dict[str, int | None]  # by bus id
    numa_cpus: dict[str, str]
    limits: Limits
    shm_bytes: int
    free_disk_bytes: int
    answers: dict[str, Answer]  # of the driver, as it gave them
    trial: Trial | None = None

    def summarize(self) -> dict[str, object]:
        """For a line of the log."""
        return {
            "gpus": len(self.gpus),
            "models": sorted({gpu.name for gpu in self.gpus}),
            "driver": next((gpu.driver for gpu in self.gpus), None),
            "cuda": ".".join(map(str, self.cuda)) if self.cuda else None,
            "peers": {name: str(peers) for name, peers in self.peers.items()},
            "numa": sorted({node for node in self.numa_of_gpus.values() if node is not None}),
            "cpus": self.limits.cpus,
            "shm_gib": round(self.shm_bytes / 2**30, 1),
            "free_disk_gib": round(self.free_disk_bytes / 2**30, 1),
        }


def read_topology(settings: BootSettings) -> Topology:
    """Everything but the trial; takes seconds."""
    answers = {"gpus": list_gpus(), "driver": ask("-q"), "matrix": ask("topo", "-m")}
    answers |= {f"p2p {name}": ask("topo", "-p2p", letter) for name, letter in CAPABILITIES.items()}
    gpus = read_gpus(answers["gpus"])
    return Topology(
        pod=settings.name,
        pod_id=settings.pod_id,
        data_center=settings.data_center,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        gpus=gpus,
        cuda=read_cuda(answers["driver"]),
        peers={name: read_peers(answers[f"p2p {name}"]) for name in CAPABILITIES},
        numa_of_gpus={gpu.bus_id: find_numa_node(gpu.bus_id) for gpu in gpus},
        numa_cpus={path.parent.name: path.read_text().strip() for path in sorted(NUMA_NODES.glob("node*/cpulist"))},
        limits=read_limits(CGROUP),
        shm_bytes=shutil.disk_usage(SHM).total if SHM.is_dir() else 0,
        free_disk_bytes=shutil.disk_usage(settings.models).free,
        answers=answers,
    )


def find_numa_node(bus_id: str) -> int | None:
    # The driver writes 00000000:1B:00.0, the kernel 0000:1b:00.0, and -1 where it knows none, as in virtual machines.
    node = _read_text(PCI_DEVICES / bus_id.lower()[-12:] / "numa_node")
    return int(node) if node.isdecimal() else None


def read_limits(cgroup: Path) -> Limits:
    """Of either version of control groups."""
    quota, _, period = _read_text(cgroup / "cpu.max").partition(" ")
    if not period:
        quota, period = (_read_text(cgroup / f"cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
    memory = _read_text(cgroup / "memory.max") or _read_text(cgroup / "memory/memory.limit_in_bytes")
    return Limits(
        cpus=int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None,
        memory_bytes=int(memory) if memory.isdecimal() and int(memory) < UNLIMITED else None,
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def keep_topology(topology: Topology, folder: Path) -> Path:
    """Beside the models: one file for each pod, as several may share a volume."""
    path = folder / f"{Path(topology.pod).name}.{FILE}"
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_text(topology.model_dump_json(indent=1))
    aside.replace(path)
    return path
