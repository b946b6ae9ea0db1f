"""The GPUs' first exchange, before a job depends on it: a command of its own, under a time limit that nothing outlives.

NCCL has hung on the first collective of these cards though the driver said that they reach each other. So whoever hangs
or fails is tried once more without P2P; and what works then is slower, and still a machine.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from infra.boot.driver import GPU, list_gpus, read_gpus
from infra.boot.errors import Stopped, Unfit

WITHOUT_P2P = {"NCCL_P2P_DISABLE": "1"}
GLANCE_S = 1.0  # between two looks at the links
KEPT_CHARACTERS = 4000  # of what a failed try has said

log = structlog.get_logger(__name__)


class Attempt(BaseModel):
    """One try."""

    model_config = ConfigDict(frozen=True)

    environment: dict[str, str]  # added
    seconds: float
    exit_code: int | None  # None: it hung, and was killed
    said: str  # its last words
    report: JsonValue = None  # transports and bandwidths
    busy_links: dict[str, tuple[int, int]] = {}  # generation and width of each GPU's link, the most that was seen

    @property
    def has_worked(self) -> bool:
        return self.exit_code == 0

    def describe(self) -> str:
        return f"exit code {self.exit_code}" if self.exit_code is not None else f"hung for {self.seconds:.0f} s"


class Trial(BaseModel):
    """Of a machine."""

    model_config = ConfigDict(frozen=True)

    attempts: list[Attempt]

    @property
    def has_worked(self) -> bool:
        return self.attempts[-1].has_worked

    @property
    def environment(self) -> dict[str, str]:
        """That a worker needs here."""
        return self.attempts[-1].environment if self.has_worked else {}

    def require_success(self) -> None:
        """Raises Unfit."""
        if not self.has_worked:
            told = ", then without P2P ".join(attempt.describe() for attempt in self.attempts)
            raise Unfit(f"the GPUs do not exchange tensors: {told}; another machine is needed")


def run_trial(command: Sequence[str], *, limit_s: float, is_stopped: Callable[[], bool]) -> Trial:
    """With P2P, and if that does not work, without. Raises Stopped, and Unfit if there is no such command."""
    attempts: list[Attempt] = []
    for environment in ({}, WITHOUT_P2P):
        attempts.append(_attempt(command, environment, limit_s, is_stopped))
        log.info("the GPUs' first exchange", outcome=attempts[-1].describe(), **environment)
        if attempts[-1].has_worked:
            break
    return Trial(attempts=attempts)


def _attempt(
    command: Sequence[str], environment: dict[str, str], limit_s: float, is_stopped: Callable[[], bool]
) -> Attempt:
    with TemporaryDirectory(prefix="h3-trial-") as folder:
        report, said = Path(folder, "report.json"), Path(folder, "said")
        began, links = time.monotonic(), dict[str, tuple[int, int]]()
        with (
            said.open("wb") as output,
            _Child([*command, "--report", str(report)], environment, output.fileno()) as one,
        ):
            while (exit_code := one.wait(min(GLANCE_S, limit_s))) is None and time.monotonic() - began < limit_s:
                if is_stopped():
                    raise Stopped("the pod leaves")
                links = _note_links(links, read_gpus(list_gpus()))
        return Attempt(
            environment=environment,
            seconds=time.monotonic() - began,
            exit_code=exit_code,
            said=said.read_text(errors="replace")[-KEPT_CHARACTERS:],
            report=_read_report(report),
            busy_links=links,
        )


class _Child:
    """A command and all that it starts: none of it is there at the end."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], output: int) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            raise Unfit(f"the trial cannot be run: {command[0]}: {exc.strerror or exc}") from exc

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):  # of the group: its first process may have left others
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


def _note_links(before: dict[str, tuple[int, int]], gpus: Sequence[GPU]) -> dict[str, tuple[int, int]]:
    """An idle link runs at less than it can, so the most counts."""
    now = {gpu.bus_id: (gpu.link_generation or 0, gpu.link_width or 0) for gpu in gpus}
    return {bus_id: max(links, before.get(bus_id, (0, 0))) for bus_id, links in now.items()} or before


def _read_report(path: Path) -> JsonValue:
    try:
        return TypeAdapter(JsonValue).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
