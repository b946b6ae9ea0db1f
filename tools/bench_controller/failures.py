"""The rows about jobs that go wrong: when the caller hears of it, and what."""

import os
import pickle
import signal
import threading
import time

from tools.bench_controller.fleets import JOB_LIMIT_S, Fleets
from tools.bench_controller.measured import Ending, Measured, read_to_end
from worker.mgpu import FatalFleetError, JobTimeoutError, MGPUController, RankDiedError, RunnerFailedError, State

BALLAST_BYTES = 12 << 30  # freeing a GPU's memory is what a rank's death waits for
TIMEOUT_S = 2.0


def measure_killed_rank(fleets: Fleets) -> Measured:
    controller = fleets.fresh(ballast_bytes=BALLAST_BYTES if fleets.setting.on_gpus else 0)
    victim = controller.status().ranks[-1]
    stream = controller.stream(task="sleep", timeout=JOB_LIMIT_S)
    for _ in range(fleets.setting.ranks):
        next(stream)
    killed_at = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    ending = read_to_end(stream)
    claims = {"a RankDiedError": isinstance(ending.error, RankDiedError), "names the rank": _names_last(fleets, ending)}
    return Measured((ending.at - killed_at,), claims)


def measure_peer_in_collective(fleets: Fleets) -> Measured:
    ending = read_to_end(fleets.fresh().stream(task="raise_beside_collective", timeout=JOB_LIMIT_S))
    trace = ending.error.remote_traceback if isinstance(ending.error, FatalFleetError) else ""
    claims = {
        "a RunnerFailedError": isinstance(ending.error, RunnerFailedError),
        "names the rank": _names_last(fleets, ending),
        "carries the traceback": "in raise_beside_collective" in trace and "KeyError: 'unexpected'" in trace,
    }
    return Measured((_since_last_yield(ending),), claims)


def measure_unpicklable_kwarg(fleets: Fleets) -> Measured:
    controller = fleets.idle()
    before = [rank.pid for rank in controller.status().ranks]
    claims = {
        "refused in the caller": _is_refused(controller, threading.Lock()),
        "the fleet is unharmed": _is_idle(controller) and [rank.pid for rank in controller.status().ranks] == before,
    }
    return Measured(claims=claims)


def measure_unpicklable_yield(fleets: Fleets) -> Measured:
    ending = read_to_end(fleets.fresh().stream(task="yield_unpicklable", timeout=JOB_LIMIT_S))
    claims = {"names the rank": _names_last(fleets, ending), "names the type": "lock" in str(ending.error)}
    return Measured((_since_last_yield(ending),), claims)


def measure_timeout(fleets: Fleets, *, task: str) -> Measured:
    controller = fleets.fresh()
    begun = time.monotonic()
    ending = read_to_end(controller.stream(task=task, timeout=TIMEOUT_S))
    claims = {"a JobTimeoutError": isinstance(ending.error, JobTimeoutError)}
    return Measured((ending.at - begun,), claims, {"yields": len(ending.items)})


def _names_last(fleets: Fleets, ending: Ending) -> bool:
    return isinstance(ending.error, FatalFleetError) and ending.error.rank == fleets.setting.ranks - 1


def _since_last_yield(ending: Ending) -> float:
    """From what a rank yielded right before it failed: the time."""
    match ending.items:
        case (*_, float(told_at)):
            return ending.at - told_at
    raise RuntimeError(f"the rank did not say when it failed; the job ended with {ending.error!r}")


def _is_refused(controller: MGPUController, value: object) -> bool:
    try:
        stream = controller.stream(task="yield_once", value=value, timeout=TIMEOUT_S)
    except (TypeError, AttributeError, pickle.PicklingError):
        return True
    read_to_end(stream)
    return False


def _is_idle(controller: MGPUController) -> bool:
    """Whether the next job runs."""
    if controller.status().state is not State.IDLE:
        return False
    return read_to_end(controller.stream(task="yield_once", timeout=JOB_LIMIT_S)).items == (0,)
