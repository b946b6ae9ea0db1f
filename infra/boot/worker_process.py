"""The worker as a child process: what starts it, what its end means, and how long to wait before the next try."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum

WELL_S = 600.0  # of a life, after which the pauses begin anew
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
WRONG_USAGE, UNHEALTHY = 2, 78  # as docs/operations.md has them; the worker's package is not to be imported


class Fate(Enum):
    """What becomes of the pod when its worker has ended."""

    LEAVE = "leave"  # the worker was told to, from here or from afar
    UNFIT = "unfit"  # it would end the same way again: a person has to look
    AGAIN = "again"  # it is started once more


def judge_exit(code: int) -> Fate:
    """A negative code is a signal's."""
    if code == 0:
        return Fate.LEAVE
    return Fate.UNFIT if code in (WRONG_USAGE, UNHEALTHY) else Fate.AGAIN


def describe_exit(code: int) -> str:
    match code:
        case 78:
            return "its worker is unhealthy (78): the fleet does not start; the log tells why"
        case 2:
            return "its worker was started wrongly (2): the log's last line names what to mend"
    return f"its worker was ended by signal {-code}" if code < 0 else f"its worker ended with {code}"


def choose_pause_s(failures: int) -> float:
    """After so many short lives in a row."""
    return min(SHORTEST_PAUSE_S * 2.0 ** (failures - 1), LONGEST_PAUSE_S)


class WorkerProcess:
    """One life of a worker."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], tell_end: Callable[[int], None]) -> None:
        """Starts it. Raises OSError.

        tell_end  is given its exit code, by another thread
        """
        # A session of its own: a Ctrl-C is for us, who tell the worker alone, which ends its ranks by itself.
        self._process = subprocess.Popen(  # noqa: S603
            command, env=os.environ | environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        threading.Thread(target=lambda: tell_end(self._process.wait()), daemon=True).start()

    def drain(self) -> None:
        """Once: it gives its job back and ends; twice: at once."""
        self._process.terminate()

    def kill(self) -> None:
        """And its ranks with it, which watch over it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
