"""H3Runner whose last rank fails in the middle of a step when that is wished for, and whose ranks keep a diary."""

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist

from h3.denoise import Denoising
from h3.runner import H3Runner

FOLDER = "TEST_RESTARTS"  # where the diary and the wish lie
EXCHANGES_A_BLOCK = 2  # tokens for heads, and back


class Fault(StrEnum):
    """What befalls the last rank."""

    DESYNC = "desync"  # it enters one collective fewer
    DEATH = "death"  # SIGKILL


@dataclass(frozen=True)
class Wish:
    """Comes true once: whoever fulfils it takes it away."""

    fault: Fault
    step: int  # 1-based

    def write(self, folder: Path) -> None:
        partial = folder / "wish.partial"
        partial.write_text(json.dumps(asdict(self)))
        partial.rename(folder / "wish")

    @classmethod
    def take(cls, folder: Path, step: int) -> Self | None:
        """The wish for this step, if there is one."""
        path = folder / "wish"
        if not path.exists():
            return None
        fields = json.loads(path.read_text())
        wish = cls(Fault(fields["fault"]), fields["step"])
        if wish.step != step:
            return None
        path.unlink()
        return wish


@dataclass(frozen=True)
class Entry:
    """What a rank did."""

    what: str  # "begun", before it loads anything; "step", as one begins; or the fault
    at: float  # time.time()
    fleet: str  # what no two fleets have in common
    rank: int
    pid: int
    worker_pid: int
    step: int = 0
    used_bytes: int = 0  # of its GPU
    left_over: tuple[int, ...] = ()  # ranks of earlier fleets that are still there, if only as zombies


class Diary:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "diary"
        self._path.touch()

    def write(self, entry: Entry) -> None:
        with self._path.open("a") as lines:  # one short write: lines of several ranks do not mix
            lines.write(json.dumps(asdict(entry)) + "\n")

    def read(self) -> list[Entry]:
        return [Entry(**json.loads(line)) for line in self._path.read_text().splitlines()]

    def find(self, what: str) -> list[Entry]:
        return [entry for entry in self.read() if entry.what == what]


class Breakable(H3Runner):
    """Every rank says that it begins and what it finds there, rank 0 when a step begins, the last one how it fails."""

    def setup(self, **setup):
        self._folder = Path(os.environ[FOLDER])
        self._diary = Diary(self._folder)
        self._note("begun", used_bytes=self._used_bytes(), left_over=self._left_over())
        super().setup(**setup)
        take_step = Denoising.step

        def watched(denoising, index, latents):
            if self.rank == 0:
                self._note("step", index + 1)
            if self.rank == self.world_size - 1 and (wish := Wish.take(self._folder, index + 1)) is not None:
                self._fail_in_last_exchange(wish)
            return take_step(denoising, index, latents)

        Denoising.step = watched

    def _fail_in_last_exchange(self, wish):
        """Of this step, so that the others wait in a collective that has another kind than the next one here."""
        exchange, left = dist.all_to_all_single, EXCHANGES_A_BLOCK * len(self._model.denoiser.model.blocks)

        def fail_at_last(*arguments, **options):
            nonlocal left
            left -= 1
            if left:
                return exchange(*arguments, **options)
            dist.all_to_all_single = exchange
            self._fail(wish)
            return None  # as if it had been called: the output is whatever was in memory

        dist.all_to_all_single = fail_at_last

    def _fail(self, wish):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # all before has really been done
        self._note(wish.fault, wish.step)
        if wish.fault is Fault.DEATH:
            os.kill(os.getpid(), signal.SIGKILL)

    def _left_over(self):
        earlier = {entry.pid for entry in self._diary.find("begun") if entry.fleet != fleet()}
        return tuple(pid for pid in sorted(earlier) if Path(f"/proc/{pid}").exists())

    def _used_bytes(self):
        if self.device.type != "cuda":
            return 0
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def _note(self, what, step=0, **found):
        self._diary.write(Entry(what, time.time(), fleet(), self.rank, os.getpid(), os.getppid(), step=step, **found))


def fleet() -> str:
    """A name of this rank's fleet: where its ranks met."""
    return os.environ["MASTER_PORT"]
