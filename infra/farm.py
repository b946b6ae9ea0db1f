"""What the commands for a whole fleet of pods work with: RunPod, the queue's Redis, and the fleet's books there."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from infra.desk import Desk, open_desk
from infra.errors import GuardRefused
from infra.ledger import Ledger
from infra.pod_names import FLEET
from infra.reconciler.bills import Bills
from infra.reconciler.last_words import LastWords
from infra.reconciler.lease import ReconcilerLease
from infra.reconciler.limits import Limits
from infra.reconciler.notes import RedisNotebook
from infra.reconciler.orderer import Orderer
from infra.reconciler.queue import RedisQueue
from infra.reconciler.reconciler import Reconciler
from infra.reconciler.shared_ledger import SharedLedger
from infra.reconciler.wish import DownWish
from infra.settings import IMAGE, PodSettings
from jobs.connection import connect, redis_errors
from jobs.errors import RedisUnavailable
from jobs.settings import ClientSettings

if TYPE_CHECKING:
    from redis import Redis

    from infra.order import PodOrder

LEASE_S = 120.0  # longer than a create may wait for its answer


@dataclass(frozen=True, slots=True)
class Farm:
    """One fleet's."""

    desk: Desk
    fleet: str
    redis: "Redis"
    lease: ReconcilerLease
    ledger: SharedLedger
    notebook: RedisNotebook
    wish: DownWish

    def make_reconciler(
        self, limits: Limits, order: "PodOrder | None", tell: Callable[[str], None], *, goes_down: bool = False
    ) -> Reconciler:
        """One that orders such pods, or none at all.

        goes_down  whatever was wished for
        """
        return Reconciler(
            prefix=self.desk.settings.prefix,
            fleet=self.fleet,
            limits=limits,
            api=self.desk.api,
            ledger=self.ledger,
            notebook=self.notebook,
            queue=RedisQueue(self.redis, self.fleet, order.count if order is not None else None),
            clock=self.desk.clock,
            orderer=self._make_orderer(order, tell) if order is not None else None,
            hold_lease=self.lease.renew,
            is_down_asked=(lambda: True) if goes_down else self.wish.is_made,
            read_bills=Bills(self.desk.api, self.desk.clock).read,
            keep_log=LastWords(self.desk.api, self.desk.settings.ledger.with_name("pod-logs"), tell).keep,
            tell=tell,
        )

    def _make_orderer(self, order: "PodOrder", tell: Callable[[str], None]) -> Orderer:
        return Orderer(self.desk.api, self.ledger, self.desk.clock, order, tell)


def check_fleet(fleet: str, settings: PodSettings) -> str:
    """Raises GuardRefused for a name that pods of `create` go by: they would be taken for orphans, and end."""
    if not FLEET.fullmatch(fleet):
        raise GuardRefused(f"--fleet {fleet!a}: use 1 to 12 lower-case letters and digits, such as 'farm'")
    if fleet == settings.fleet:
        raise GuardRefused(
            f"--fleet {fleet}: pods of `h3render pods create` go by this name (H3_PODS_FLEET): choose another one"
        )
    return fleet


def check_serves(order: "PodOrder") -> None:
    """Raises GuardRefused for pods that would start, bill, and never take a job."""
    if order.image == IMAGE:
        raise GuardRefused(
            f"--image {IMAGE}: RunPod's own image runs no worker: build infra/Dockerfile.runpod and name that, here or "
            "in H3_PODS_IMAGE"
        )
    for name in ("REDIS_URL", "H3_STORE_URL"):
        if name not in order.env:
            raise GuardRefused(
                f"--env-file (or H3_PODS_ENV_FILE): {name} is missing, and a pod's worker would not start without it"
            )


def keep_idle(order: "PodOrder", max_hours: float) -> "PodOrder":
    """Let pods that are kept for jobs to come not leave by themselves, as long as a reconciler looks."""
    return replace(order, env={"H3_POD_IDLE_S": f"{max_hours * 3600:.0f}", **order.env})


@contextmanager
def open_farm(settings: PodSettings, fleet: str) -> Iterator[Farm]:
    """With the key and the queue of the settings. Raises GuardRefused, KeyUnusable."""
    if settings.redis_url is None:
        raise GuardRefused("REDIS_URL is not set: the queue tells how many pods are needed, and keeps their ledger")
    with open_desk(settings) as desk, _connect(settings) as redis:
        holder = f"{socket.gethostname()}, process {os.getpid()}"
        lease = ReconcilerLease(redis, prefix=settings.prefix, fleet=fleet, holder=holder, ttl_s=LEASE_S)
        copy = Ledger(settings.ledger.with_stem(f"{settings.ledger.stem}-{fleet}"), desk.clock)
        yield Farm(
            desk=desk,
            fleet=fleet,
            redis=redis,
            lease=lease,
            ledger=SharedLedger(redis, lease, copy, desk.clock),
            notebook=RedisNotebook(redis, lease),
            wish=DownWish(redis, prefix=settings.prefix, fleet=fleet),
        )


@contextmanager
def _connect(settings: PodSettings) -> Iterator["Redis"]:
    """Raises GuardRefused: without a queue nothing is begun, and whoever only looks sees nothing."""
    assert settings.redis_url is not None, "checked by whoever opens a farm"
    try:
        with connect(ClientSettings(redis_url=settings.redis_url.get_secret_value())) as redis, redis_errors():
            yield redis
    except RedisUnavailable as exc:
        raise GuardRefused(str(exc)) from exc
