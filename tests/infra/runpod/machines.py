"""Something real behind a pod, such as a worker process: begun when the pod runs, ended when it no longer does."""

from collections.abc import Callable, Mapping

from tests.infra.runpod.pods import Status
from tests.infra.runpod.world import Turn

End = Callable[[], None]
# Given the pod's name and env; what it returns ends what it began.
Start = Callable[[str, Mapping[str, str]], End]


class Machines:
    def __init__(self, start: Start) -> None:
        self._start = start
        self._ends: dict[str, End] = {}  # by the pod's id

    def follow(self, turn: Turn) -> None:
        """A pod that starts again, as after a restart, gets a new machine."""
        self._end(turn.pod.id)
        if turn.status is Status.RUNNING:
            self._ends[turn.pod.id] = self._start(turn.pod.settings["name"], dict(turn.pod.settings["env"]))

    def end_all(self) -> None:
        for pod_id in list(self._ends):
            self._end(pod_id)

    def _end(self, pod_id: str) -> None:
        if (end := self._ends.pop(pod_id, None)) is not None:
            end()
