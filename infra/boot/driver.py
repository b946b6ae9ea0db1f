"""Asks the driver's tool, nvidia-smi, and reads what it says. What it cannot say is unknown, not no."""

import re
import subprocess
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

ANSWER_S = 60.0  # a tool that waits for a broken GPU does not come back
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
CUDA_VERSION = re.compile(r"CUDA (?:\w+ )?Version\s*:\s*(\d+)\.(\d+)")
FIELDS = (
    "index",
    "name",
    "driver_version",
    "pci.bus_id",
    "memory.total",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
)


class Answer(BaseModel):
    """What a command said; there is no exit code where it could not run, or did not come back."""

    model_config = ConfigDict(frozen=True)

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""


class GPU(BaseModel):
    """One, as the driver sees it."""

    model_config = ConfigDict(frozen=True)

    index: int
    name: str
    driver: str
    bus_id: str
    memory_mib: int | None
    link_generation: int | None  # now: an idle link saves power, and tells less than it has
    link_generation_max: int | None
    link_width: int | None
    link_width_max: int | None


class Peers(StrEnum):
    """Whether every GPU reaches every other one's memory, as the driver says; NCCL's word counts more."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def ask(*arguments: str) -> Answer:
    """Never raises: an absent tool or option is an answer, too."""
    try:
        asked = subprocess.run(  # noqa: S603
            ["nvidia-smi", *arguments],  # noqa: S607  as PATH has it: images have it in different places
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except OSError as exc:
        return Answer(exit_code=None, stderr=f"nvidia-smi cannot be run: {exc.strerror or exc}")
    except subprocess.TimeoutExpired:
        return Answer(exit_code=None, stderr=f"nvidia-smi {' '.join(arguments)} has not come back in {ANSWER_S:.0f} s")
    return Answer(exit_code=asked.returncode, stdout=_clean(asked.stdout), stderr=_clean(asked.stderr))


def _clean(text: str) -> str:
    return COLOURS.sub("", text).strip()


def read_gpus(answer: Answer) -> list[GPU]:
    """Of `list_gpus`; a line that cannot be read is no GPU."""
    if answer.exit_code != 0:
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    return [_to_gpu(row) for row in rows if len(row) == len(FIELDS) and row[0].isdecimal()]


def list_gpus() -> Answer:
    return ask(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")


def _to_gpu(row: list[str]) -> GPU:
    index, name, driver, bus_id, *numbers = row
    memory, generation, generation_max, width, width_max = (int(text) if text.isdecimal() else None for text in numbers)
    return GPU(
        index=int(index),
        name=name,
        driver=driver,
        bus_id=bus_id,
        memory_mib=memory,
        link_generation=generation,
        link_generation_max=generation_max,
        link_width=width,
        link_width_max=width_max,
    )


def read_cuda(answer: Answer) -> tuple[int, int] | None:
    """The newest CUDA that the driver runs, of what it says about itself; None if it does not say."""
    found = CUDA_VERSION.search(answer.stdout)
    return (int(found[1]), int(found[2])) if found else None


def read_peers(answer: Answer) -> Peers:
    """Of `topo -p2p`: a matrix with X on its diagonal, OK where it can be, and else the reason why not."""
    rows = [line.split()[1:] for line in answer.stdout.splitlines() if re.match(r"\s*GPU\d+\s+(?!\s*GPU)", line)]
    cells = {cell for row in rows for cell in row} - {"X"}
    if answer.exit_code != 0 or not cells or "U" in cells:
        return Peers.UNKNOWN
    return Peers.YES if cells == {"OK"} else Peers.NO
