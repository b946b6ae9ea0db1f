"""Takes jobs back whose worker is gone, also when no worker is left: for a host that is always there."""

import time
from collections.abc import Callable, Iterator

from jobs.lease import Leases, Reaped


class Reaper:
    """Looks at all leases. Workers do the same with each beat; any number may."""

    def __init__(self, leases: Leases, wait: Callable[[float], object] = time.sleep) -> None:
        self._leases, self._wait = leases, wait

    def look_for_ever(self) -> Iterator[Reaped]:
        """What each look gave, a beat apart. Raises RedisError; the next look may be better."""
        while True:
            yield self._leases.reap()
            self._wait(self._leases.beat_s)

    def look_once(self) -> Reaped:
        """One look, as soon as it is certain that whoever is alive could have kept a lease. Raises RedisError."""
        while (reaped := self._leases.reap()).quiet_s:
            self._wait(min(reaped.quiet_s, self._leases.beat_s))
        return reaped
