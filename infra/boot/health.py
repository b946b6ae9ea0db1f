"""A file that says that this pod is well: it is there, and fresh. A container's health check looks at nothing else."""

from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


class Health:
    """Of a pod that renews it at each look: one that hangs becomes unhealthy, too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_told = False

    def renew(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        except OSError as exc:
            if not self._is_told:
                log.warning("health cannot be told: name a file in H3_POD_HEALTH_FILE", why=str(exc))
            self._is_told = True

    def end(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as exc:
            log.warning("health cannot be taken back", why=str(exc))
