"""The rows about a fleet's life: many starts at once, idling, its end in order, and the death of its parent."""

import time
from contextlib import ExitStack

from tools.bench_controller.child import Child, ChildFailedError
from tools.bench_controller.fleets import Fleets, Setting
from tools.bench_controller.measured import Measured
from tools.bench_controller.processes import Process, await_exit, cpu_seconds

IDLE_S = 10.0
SETTLE_S = 0.3  # from a rank's last yield until it is in its call for certain
GONE_LIMIT_S = 20.0
RACING_FLEETS = 20


def measure_shutdown(fleets: Fleets) -> Measured:
    controller = fleets.fresh()
    begun = time.perf_counter()
    controller.shutdown()
    return Measured((time.perf_counter() - begun,))


def measure_parent_killed(fleets: Fleets, *, task: str) -> Measured:
    fleets.close()
    with Child(fleets.setting, task) as parent:
        parent.await_ready()
        parent.start_fleet()
        ranks = [Process.of(pid) for pid in parent.await_ranks()]
        time.sleep(SETTLE_S)
        were_running = all(rank.is_running() for rank in ranks)
        begun = time.perf_counter()
        parent.kill()
        left = await_exit(ranks, GONE_LIMIT_S)
        seconds = time.perf_counter() - begun
    return Measured((seconds,), {"ranks ran until then": were_running, "every rank is gone": not left})


def measure_idle_cpu(fleets: Fleets) -> Measured:
    pids = [rank.pid for rank in fleets.idle().status().ranks]
    before = sum(cpu_seconds(pid) for pid in pids)
    time.sleep(IDLE_S)
    used_s = sum(cpu_seconds(pid) for pid in pids) - before
    return Measured((used_s / IDLE_S / len(pids),))


def measure_twenty_starts(fleets: Fleets) -> Measured:
    """Each fleet has a process of its own, as fleets of different programs have. On GPUs all share device 0."""
    fleets.close()
    with ExitStack() as stack:
        setting = Setting(fleets.setting.backend, ranks=1)
        children = [stack.enter_context(Child(setting, "sleep")) for _ in range(RACING_FLEETS)]
        for child in children:
            child.await_ready()
        begun = time.perf_counter()
        for child in children:
            child.start_fleet()
        up = sum(_is_up(child) for child in children)
        seconds = time.perf_counter() - begun
    return Measured((seconds,), {f"all {RACING_FLEETS} came up": up == RACING_FLEETS}, {"came_up": up})


def _is_up(child: Child) -> bool:
    try:
        return len(child.await_ranks()) == 1
    except ChildFailedError:
        return False
