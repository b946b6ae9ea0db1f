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
    """Bytes by which a fleet may grow."""

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


class Driver:
    """Asked about these GPUs. It may hang in the kernel, where nothing ends it: then it is not asked again."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self._gpus = gpus
        self._hung: subprocess.Popen[str] | None = None

    def read_gpus(self) -> tuple[GPURecord, ...]:
        """Their memory, as the driver counts it; none if it does not answer."""
        if not self._gpus or (self._hung is not None and self._hung.poll() is None):
            return ()
        try:
            return self._ask([*_QUERY, f"--id={','.join(self._gpus)}"])
        except (OSError, ValueError):
            return ()

    def _ask(self, command: Sequence[str]) -> tuple[GPURecord, ...]:
        query = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # noqa: S603
        try:
            told, _ = query.communicate(timeout=QUERY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            query.kill()  # and not waited for
            self._hung = query
            return ()
        rows = [[int(word) << 20 for word in line.split(",")] for line in told.splitlines()]
        return tuple(GPURecord(used_bytes=used, total_bytes=total) for used, total in rows)


class Growth:
    """Sees that a fleet has grown past a limit since its first job of the largest size.

    A larger render than all before may well need more, and torch keeps what it has had.
    """

    def __init__(self, limits: GrowthLimits) -> None:
        self._limits = {"ranks": limits.rss_bytes, "GPUs": limits.vram_bytes}
        self._most_pixels = 0
        self._first: dict[str, int] = {}  # bytes

    def look(self, pixels: int, ranks: Sequence[RankRecord], gpus: Sequence[GPURecord]) -> str:
        """After a whole render of that size: why the fleet should be replaced; empty if it need not."""
        now = {"ranks": sum(rank.rss_bytes for rank in ranks), "GPUs": sum(gpu.used_bytes for gpu in gpus)}
        if pixels > self._most_pixels:
            self._most_pixels, self._first = pixels, {}
        for who, limit in self._limits.items():
            if now[who]:  # else the driver does not answer
                growth = now[who] - self._first.setdefault(who, now[who])
                if growth > limit:
                    return f"the {who} hold {growth >> 20} MiB more than after the first render of this size"
        return ""
