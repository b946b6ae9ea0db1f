"""What a fleet costs that has nothing to do."""

import threading
import time
from pathlib import Path

from worker.mgpu import MGPUController
from worker.mgpu.slack import SLACK_NS, late_timers

IDLE_S = 3.0


def slack_ns() -> int:
    return int(Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text())


def used_ns(pid: int) -> int:
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


def test_an_idle_rank_takes_less_than_a_thousandth_of_a_core(controller: MGPUController) -> None:
    """90: between two jobs."""
    pids = [rank.pid for rank in controller.status().ranks]
    list(controller.stream(command="nothing"))
    before = [used_ns(pid) for pid in pids]
    time.sleep(IDLE_S)  # what is measured
    assert max(used_ns(pid) - ns for pid, ns in zip(pids, before, strict=True)) < IDLE_S * 1e9 / 1000


def test_only_threads_that_were_made_meanwhile_have_late_timers() -> None:
    seen: list[int] = []
    before = slack_ns()
    with late_timers():
        thread = threading.Thread(target=lambda: seen.append(slack_ns()))
        thread.start()
        thread.join()
    assert seen == [SLACK_NS]
    assert slack_ns() == before < SLACK_NS
