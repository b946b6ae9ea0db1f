"""RunPod's own account of what pods cost: an hour late, but theirs. Asked for now and then."""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from infra.answers import PodBill
from infra.clock import Clock
from infra.errors import ApiError
from infra.runpod import RunPod

ASK_EVERY_S = 900.0
HOURS = 26  # that are asked for: a day, and what it lags

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Bills:
    """Of all pods of the account."""

    api: RunPod
    clock: Clock
    _asked_at_s: float = float("-inf")

    def read(self) -> Sequence[PodBill]:
        """By the hour; none while it is not time to ask again, or if RunPod does not say."""
        if self.clock.monotonic() - self._asked_at_s < ASK_EVERY_S:
            return []
        self._asked_at_s = self.clock.monotonic()
        try:
            return self.api.read_billing(None, HOURS).records
        except ApiError as exc:
            log.warning("RunPod does not say what pods have cost", why=str(exc))
            return []
