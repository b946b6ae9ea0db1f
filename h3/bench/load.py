"""Times a start: from the call that starts ranks until all are ready, twice on the same files.

The files are brought into the page cache first, so that what is measured is the loading and not somebody's disk. The
second start is that of a fleet restarted on the same machine, which must not read the disk again.
"""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from h3.bench.fleet import BenchFleet, running
from h3.bench.load_ranks import DenoiserLoad, Loaded, ModelLoad, TellLoad
from h3.bench.page_cache import Warming, find_files, read_into_cache
from h3.bench.turns import Tell
from h3.checkpoint import DenoiserFiles
from h3.denoise_fleet import require_devices
from h3.model_folder import ModelFolder
from h3.parallel.mode import Mode, check_mode
from h3.part_sizes import place
from h3.precision import Precision

STARTS = 2
UNTIL_MADE, UNTIL_SETUP, UNTIL_READY = "processes, torch, device", "process groups", "until all are ready"
REST = "the rest of setup"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is loaded, and by how many."""

    path: Path  # a denoiser, or the root of a checkpoint
    mode: Mode
    world_size: int
    on_gpus: bool
    precision: Precision | None = None  # of the denoiser's weights; None: as they are stored

    @property
    def is_whole(self) -> bool:
        """Whether the whole model is there, for the worker's runner."""
        return self.path.is_dir() and ModelFolder.below(self.path).transformer.exists()

    @property
    def denoiser(self) -> Path:
        return ModelFolder.below(self.path).transformer if self.is_whole else self.path

    def check(self) -> Precision:
        """Refuse what can be refused before a rank is started. Returns what the weights will be in.

        Raises CheckpointError, ConfigError, PartitionError, PlacementError.
        """
        require_devices(self.world_size, on_gpus=self.on_gpus)
        files = DenoiserFiles.open(self.denoiser)
        files.check(self.precision)
        weights = self.precision or files.precision
        check_mode(self.mode, files.config, weights, self.world_size)
        if self.is_whole:
            folder = ModelFolder.below(self.path)
            folder.check(weights)
            place(folder, self.mode, self.world_size, weights, on_gpus=self.on_gpus)
        return weights

    def running(self) -> AbstractContextManager[BenchFleet]:
        """Ranks that load it. Raises ConfigError, RanksFailed and what loading raises."""
        path, shared = self.path.absolute(), {"mode": self.mode, "precision": self.precision}
        if self.is_whole:
            return running(ModelLoad, self.world_size, on_gpus=self.on_gpus, checkpoint=str(path), **shared)
        return running(DenoiserLoad, self.world_size, on_gpus=self.on_gpus, model=path, **shared)


@dataclass(frozen=True, slots=True)
class Start:
    """Of one fleet."""

    seconds: float  # until all ranks were ready
    phases: Mapping[str, float]  # of rank 0, one after the other; they add up to that
    ranks: tuple[Loaded, ...]

    @classmethod
    def between(cls, begun_at: float, ready_at: float, ranks: tuple[Loaded, ...]) -> Self:
        """Moments of the machine's monotonic clock."""
        first = ranks[0]
        rest = first.ready_at - first.setup_at - sum(first.setup_s.values())
        phases = {UNTIL_MADE: first.made_at - begun_at, UNTIL_SETUP: first.setup_at - first.made_at}
        phases |= {**first.setup_s, REST: rest, UNTIL_READY: ready_at - first.ready_at}
        return cls(ready_at - begun_at, phases, ranks)

    @property
    def from_disk_bytes(self) -> int | None:
        """Of all ranks; None if the kernel does not tell."""
        reads = [rank.read for rank in self.ranks]
        return None if None in reads else sum(read.from_disk for read in reads if read)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was loaded, and how."""

    precision: Precision
    warming: Warming
    starts: tuple[Start, ...]
    shutdown_s: tuple[float, ...]  # of each of them, afterwards


def measure(subject: Subject, tell: Tell) -> Outcome:
    """Raises ConfigError, PartitionError, PlacementError, RanksFailed, CheckpointError."""
    precision = subject.check()
    warming = read_into_cache(find_files(subject.path))
    tell(f"{warming.size_bytes / 1e9:.3g} GB are in the page cache after {warming.seconds:.1f} s")
    starts, shutdowns = [], []
    for number in range(1, STARTS + 1):
        begun_at = time.monotonic()
        with subject.running() as fleet:
            start = Start.between(begun_at, time.monotonic(), hear_loads(fleet))
            tell(f"start {number}: {start.seconds:.2f} s")
            leaving_at = time.monotonic()
        starts.append(start)
        shutdowns.append(time.monotonic() - leaving_at)
    return Outcome(precision, warming, tuple(starts), tuple(shutdowns))


def hear_loads(fleet: BenchFleet) -> tuple[Loaded, ...]:
    """In rank order. Raises RanksFailed."""
    return tuple(sorted(fleet.hear(Loaded, request=TellLoad()), key=lambda each: each.rank))
