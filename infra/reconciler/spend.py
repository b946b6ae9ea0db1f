"""What a fleet's pods cost, counted by us: RunPod's bill comes an hour late.

Each order has a tally, under the name that its pod has or would have. A span of time counts at the higher of the costs
that were seen at its two ends, so that what happened while we slept, or while a list lagged, is not for free. A clock
that steps back counts nothing, and takes nothing back. Network volumes are left out: they bill without pods, too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal

from pydantic import AwareDatetime, Field

from infra.answers import Pod, PodBill
from infra.guards import find_cost
from infra.ledger import OPEN, WITH_POD, Row, RowState
from infra.reconciler.kept_model import Kept

# RunPod's documentation. A GB and month cost 0.10 USD while a pod runs, the host's disk twice that once it is stopped.
DISK_USD_PER_GB_MONTH, STOPPED_DISK_USD_PER_GB_MONTH = 0.10, 0.20
MONTH_HOURS = 720.0  # of 30 days: the dearest reading
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
TALLIED_FOR = 2 * DAY  # after a pod's end, in which its bill comes
MOST_DAYS = 62  # whose sums are kept
EXITED = "EXITED"


class Tally(Kept):
    """What one order has cost so far, in USD."""

    until: AwareDatetime  # it is counted
    usd_per_hour: float  # when it was last seen; 0: it has ended
    was_listed: bool = False  # so that there certainly is, or was, a pod
    pod_ids: tuple[str, ...] = ()  # of that name: one, unless RunPod has doubled it
    by_day: Mapping[date, float] = Field(default_factory=dict)  # in UTC
    in_campaign: float = 0.0


class Campaign(Kept):
    """From one `up` to the end of what it wanted; `budget_total` is for this."""

    began_at: AwareDatetime
    closed_usd: float = 0.0  # of orders that are no longer tallied


class Spend(Kept):
    """All that is known of what a fleet has cost."""

    version: Literal[1] = 1
    tallies: Mapping[str, Tally] = Field(default_factory=dict)  # by the pod's name
    closed_by_day: Mapping[date, float] = Field(default_factory=dict)  # of orders that are no longer tallied
    campaign: Campaign | None = None

    def on(self, day: date) -> float:
        """USD on that day, in UTC."""
        tallied = sum(tally.by_day.get(day, 0.0) for tally in self.tallies.values())
        return self.closed_by_day.get(day, 0.0) + tallied

    @property
    def campaign_usd(self) -> float:
        if self.campaign is None:
            return 0.0
        return self.campaign.closed_usd + sum(tally.in_campaign for tally in self.tallies.values())

    def was_listed(self, name: str) -> bool:
        """Whether the pod of this name was there at any look."""
        return name in self.tallies and self.tallies[name].was_listed

    def begin_campaign(self, now: datetime) -> "Spend":
        """Unless one is open already, which goes on."""
        if self.campaign is not None:
            return self
        tallies = {name: tally.model_copy(update={"in_campaign": 0.0}) for name, tally in self.tallies.items()}
        return self.model_copy(update={"campaign": Campaign(began_at=now), "tallies": tallies})

    def end_campaign(self) -> "Spend":
        return self.model_copy(update={"campaign": None})

    def raise_to(self, bills: Iterable[PodBill]) -> "Spend":
        """By what RunPod bills, in hours or days, for pods that are tallied; where that is less, ours stays."""
        bills = list(bills)
        if not bills:
            return self
        tallies = {name: self._raise_tally(tally, bills) for name, tally in self.tallies.items()}
        return self.model_copy(update={"tallies": tallies})

    def _raise_tally(self, tally: Tally, bills: Sequence[PodBill]) -> Tally:
        billed: dict[date, float] = {}
        for bill in bills:
            if bill.pod_id in tally.pod_ids:
                day = bill.start_time.astimezone(UTC).date()
                billed[day] = billed.get(day, 0.0) + bill.total_amount
        more = {day: usd - tally.by_day.get(day, 0.0) for day, usd in billed.items()}
        raises = {day: usd for day, usd in more.items() if usd > 0}
        return _add(tally, raises, self._sum_of_campaign(raises))

    def _sum_of_campaign(self, raises: Mapping[date, float]) -> float:
        if self.campaign is None:
            return 0.0
        first = self.campaign.began_at.astimezone(UTC).date()
        return sum(usd for day, usd in raises.items() if day >= first)


# --- counting


def accrue(spend: Spend, pods: Iterable[Pod], rows: Iterable[Row], now: datetime) -> Spend:
    """Count up to now.

    pods  the fleet's, by a complete list: one that is missing has ended
    rows  the fleet's, brought up to date by that list
    """
    listed: dict[str, list[Pod]] = {}
    for pod in pods:
        listed.setdefault(pod.name, []).append(pod)
    orders = {row.name: row for row in rows}
    expected = [name for name, row in orders.items() if row.state in (*OPEN, *WITH_POD)]
    tallies = {}
    for name in dict.fromkeys([*spend.tallies, *listed, *expected]):
        tally, own, row = spend.tallies.get(name), listed.get(name, []), orders.get(name)
        if not _never_came(tally, own, row):
            tallies[name] = _count(tally, own, row, now, spend.campaign)
    return _close_old(spend.model_copy(update={"tallies": tallies}), now)


def _never_came(tally: Tally | None, pods: Sequence[Pod], row: Row | None) -> bool:
    """So that what was counted in case it would is taken back."""
    was_listed = bool(pods) or (tally is not None and tally.was_listed)
    return row is not None and row.state is RowState.FAILED and not was_listed


def _count(
    tally: Tally | None, pods: Sequence[Pod], row: Row | None, now: datetime, campaign: Campaign | None
) -> Tally:
    usd_per_hour = _find_usd_per_hour(tally, pods, row)
    if tally is None:
        tally = Tally(until=_find_start(pods, row, now), usd_per_hour=usd_per_hour)
    tally = _note_pods(tally, pods)
    dearer = max(tally.usd_per_hour, usd_per_hour)
    if dearer == 0:
        return tally
    if now <= tally.until:
        return tally.model_copy(update={"usd_per_hour": dearer})
    by_day = {start.date(): dearer * _count_hours(start, end) for start, end in _split_by_day(tally.until, now)}
    in_campaign = dearer * _count_hours(max(tally.until, campaign.began_at), now) if campaign is not None else 0.0
    return _add(tally, by_day, in_campaign).model_copy(update={"usd_per_hour": usd_per_hour, "until": now})


def _find_usd_per_hour(tally: Tally | None, pods: Sequence[Pod], row: Row | None) -> float:
    """Of its pods; of one that may come, or is not listed yet, its price."""
    price = row.usd_per_hour if row is not None else 0.0
    if pods:
        return sum(find_cost(pod, price) + _find_disk_cost(pod) for pod in pods)
    may_come = row is not None and row.state in (*OPEN, *WITH_POD) and not (tally is not None and tally.was_listed)
    return price if may_come else 0.0


def _find_disk_cost(pod: Pod) -> float:
    """USD per hour. Of a stopped pod the container's disk is gone."""
    host_gb = pod.mounts.persistent.size if pod.mounts.persistent is not None else 0
    if pod.is_gone:
        return 0.0
    if pod.status == EXITED:
        return host_gb * STOPPED_DISK_USD_PER_GB_MONTH / MONTH_HOURS
    return (host_gb + pod.disk) * DISK_USD_PER_GB_MONTH / MONTH_HOURS


def _find_start(pods: Sequence[Pod], row: Row | None, now: datetime) -> datetime:
    if pods:
        return min(pod.created_at for pod in pods)
    return row.ordered_at if row is not None else now


def _note_pods(tally: Tally, pods: Sequence[Pod]) -> Tally:
    if all(pod.id in tally.pod_ids for pod in pods):
        return tally
    ids = dict.fromkeys([*tally.pod_ids, *(pod.id for pod in pods)])
    return tally.model_copy(update={"pod_ids": tuple(ids), "was_listed": True})


def _add(tally: Tally, by_day: Mapping[date, float], in_campaign: float) -> Tally:
    return tally.model_copy(
        update={"by_day": _sum_days(tally.by_day, by_day), "in_campaign": tally.in_campaign + in_campaign}
    )


def _sum_days(*books: Mapping[date, float]) -> dict[date, float]:
    days = sorted({day for book in books for day in book})
    return {day: sum(book.get(day, 0.0) for book in books) for day in days}


def _split_by_day(start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """The parts of a span that lie in one day each, in UTC."""
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    while start < end:
        midnight = datetime.combine(start.date() + DAY, time(), UTC)
        yield start, min(midnight, end)
        start = midnight


def _count_hours(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start) / HOUR)


def _close_old(spend: Spend, now: datetime) -> Spend:
    """Keep the sums alone of what ended long ago."""
    old = {
        name: tally
        for name, tally in spend.tallies.items()
        if tally.usd_per_hour == 0 and tally.until < now - TALLIED_FOR
    }
    closed = _sum_days(spend.closed_by_day, *(tally.by_day for tally in old.values()))
    changes: dict[str, object] = {
        "tallies": {name: tally for name, tally in spend.tallies.items() if name not in old},
        "closed_by_day": dict(sorted(closed.items())[-MOST_DAYS:]),
    }
    if spend.campaign is not None:
        usd = spend.campaign.closed_usd + sum(tally.in_campaign for tally in old.values())
        changes["campaign"] = spend.campaign.model_copy(update={"closed_usd": usd})
    return spend.model_copy(update=changes)
