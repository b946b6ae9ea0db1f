"""What a fleet costs its machine: memory of its ranks and of the GPUs, read from outside, without a CUDA context."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.workers import GPURecord, RankRecord
from worker.mgpu import MGPUController

QUERY_TIMEOUT_S = 10.0
_QUERY = ("nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class GrowthLimits:
    """Bytes by which a fleet may grow after its first job."""

    rss_bytes: int
    vram_bytes: int


def read_rss_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def read_ranks(controller: MGPUController) -> tuple[RankRecord, ...]:
    return tuple(
        RankRecord(rank=rank.rank, pid=rank.pid, phase=rank.phase, rss_bytes=read_rss_bytes(rank.pid))
        for rank in controller.status().ranks
    )


def read_gpus(indices: Sequence[str]) -> tuple[GPURecord, ...]:
    """Of these GPUs, as the driver counts them; none if it does not answer."""
    if not indices:
        return ()
    command = [*_QUERY, f"--id={','.join(indices)}"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=QUERY_TIMEOUT_S).stdout  # noqa: S603
        rows = [[int(word) << 20 for word in line.split(",")] for line in told.splitlines()]
        return tuple(GPURecord(used_bytes=used, total_bytes=total) for used, total in rows)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


class Growth:
    """Sees that a fleet has grown past a limit since its first job."""

    def __init__(self, limits: GrowthLimits) -> None:
        self._limits = limits
        self._first: tuple[int, int] | None = None

    def look(self, ranks: Sequence[RankRecord], gpus: Sequence[GPURecord]) -> str:
        """After a job: why the fleet should be replaced; empty if it need not."""
        now = sum(rank.rss_bytes for rank in ranks), sum(gpu.used_bytes for gpu in gpus)
        if self._first is None:
            self._first = now
        limits = (("ranks", self._limits.rss_bytes), ("GPUs", self._limits.vram_bytes))
        for (who, limit), first, bytes_now in zip(limits, self._first, now, strict=True):
            if bytes_now - first > limit:
                return f"the {who} hold {(bytes_now - first) >> 20} MiB more than after the first job"
        return ""
