"""What a pod wrote before it was ended for a fault: its log is gone with it."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from infra.errors import ApiError
from infra.runpod import RunPod
from infra.views import describe_line

LINES, LISTEN_S = 200, 3.0  # RunPod ends no log by itself


@dataclass(frozen=True, slots=True)
class LastWords:
    """Kept in a folder, a file for each pod. What a pod writes may be a secret: nobody else may read it."""

    api: RunPod
    folder: Path
    tell: Callable[[str], None]

    def keep(self, pod_id: str, name: str) -> None:
        """As far as they can be had: the pod ends all the same."""
        path = self.folder / f"{name}.log"
        try:
            lines = [describe_line(line) for line in self.api.read_logs(pod_id, for_s=LISTEN_S, tail=LINES)]
            _write(path, lines)
        except (ApiError, OSError) as exc:
            self.tell(f"failed   the log of {name} could not be kept: {exc}")
        else:
            self.tell(f"kept     the last {len(lines)} lines of {name} in {path}")


def _write(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
