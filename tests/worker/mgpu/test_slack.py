"""The late timers of a fleet that has nothing to do; what they save is in test_acceptance.py."""

import threading
from pathlib import Path

from worker.mgpu.slack import SLACK_NS, late_timers


def slack_ns() -> int:
    return int(Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text())


def test_only_threads_that_were_made_meanwhile_have_late_timers() -> None:
    seen: list[int] = []
    before = slack_ns()
    with late_timers():
        thread = threading.Thread(target=lambda: seen.append(slack_ns()))
        thread.start()
        thread.join()
    assert seen == [SLACK_NS]
    assert slack_ns() == before < SLACK_NS
