"""What a fleet has ordered, in Redis, with a copy on this machine's disk. Only the lease's holder writes.

Redis is the truth, for it outlives the machine. The copy tells when Redis has lost something: then nothing of what it
still has may be trusted, least of all that a pod is nobody's.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import structlog
from pydantic import ValidationError
from redis import Redis

from infra.clock import Clock
from infra.errors import LedgerLost, LedgerUnusable
from infra.ledger import FleetLedger, Ledger, Row, RowState
from infra.reconciler.lease import ReconcilerLease, lease_errors

KEPT_FOR = timedelta(days=30)  # an order that has ended
BIRTH_FIELD = "born_ms"  # of the facts, since 1970; the script writes it
MOST_NAMED = 5  # lost orders that an error names

log = structlog.get_logger(__name__)


class SharedLedger(FleetLedger):
    """Of one fleet. Everything raises LeaseLost once the lease is over, and LedgerUnusable."""

    def __init__(self, redis: Redis, lease: ReconcilerLease, copy: Ledger, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._redis, self._lease, self._copy = redis, lease, copy
        self._names = f"{lease.prefix}-{lease.fleet}-"

    def open(self) -> None:
        """Before anything else, with the lease: what another machine has written comes into the copy.

        Raises LedgerLost; LedgerUnusable for a Redis that does not keep on its disk what it confirms.
        """
        self.read()
        self._lease.put(self._lease.keys.facts, {"opened_by": str(self._lease.fence)})
        copied = {row.token: row for row in self._read_copy()}
        for row in self._read_redis()[1]:
            other = copied.get(row.token)
            if row != other and not (row.has_ended and (other is None or other.has_ended)):
                self._copy.append(row)

    def read(self) -> list[Row]:
        """Every order as it stands, oldest first. Raises LedgerLost too."""
        born_at, rows = self._read_redis()
        unknown = self._find_unknown(rows)
        # An INTENT may be what a crash, or a refusal, kept from Redis: then no request was sent for it. It counts all
        # the same until a list shows that it has no pod, for Redis may have lost it.
        lost = [row for row in unknown if born_at is None or row.state is not RowState.INTENT]
        if lost:
            raise LedgerLost(self._say_lost(lost))
        return sorted([*rows, *unknown], key=lambda row: (row.ordered_at, row.token))

    def append(self, row: Row) -> None:
        """In the copy and on Redis's disk when this returns. A new order begins as INTENT, also that of a found pod."""
        # The copy first. A crash between the two then leaves an order there that Redis does not know, for which
        # nothing was sent; the other way round there would be orders whose loss nobody could notice.
        self._copy.append(row)
        forgotten = self._find_forgotten() if row.has_ended else []
        self._lease.put(self._lease.keys.orders, {row.token: row.model_dump_json()}, drop=forgotten)

    def born_at(self) -> datetime | None:
        """By Redis's clock."""
        with lease_errors():
            return _parse_birth(self._redis.hget(self._lease.keys.facts, BIRTH_FIELD))

    def restore(self) -> list[Row]:
        """Write back what Redis has lost and the copy has, and return it; a person has asked for that.

        By what comes back no pod ends that was to stay; an order that has ended meanwhile is closed by the next list.
        """
        lost = self._find_unknown(self._read_redis()[1])
        if lost:
            self._lease.put(self._lease.keys.orders, {row.token: row.model_dump_json() for row in lost})
            log.warning("orders restored from the copy", orders=len(lost), copy=str(self._copy.path))
        return lost

    def _read_redis(self) -> tuple[datetime | None, list[Row]]:
        """Of one moment. Whoever only looks needs no lease."""
        with lease_errors(), self._redis.pipeline() as pipeline:
            pipeline.hget(self._lease.keys.facts, BIRTH_FIELD)
            pipeline.hgetall(self._lease.keys.orders)
            born_ms, orders = pipeline.execute()
        return _parse_birth(born_ms), [_parse(token, text) for token, text in orders.items()]

    def _read_copy(self) -> list[Row]:
        """This fleet's: the file may have orders of people, too."""
        return [row for row in self._copy.read() if row.name.startswith(self._names)]

    def _find_unknown(self, rows: Iterable[Row]) -> list[Row]:
        """Orders that may have a pod, by the copy, and of which Redis knows nothing."""
        tokens = {row.token for row in rows}
        return [row for row in self._read_copy() if not row.has_ended and row.token not in tokens]

    def _find_forgotten(self) -> list[str]:
        oldest = self._clock.now() - KEPT_FOR
        return [row.token for row in self._read_redis()[1] if row.has_ended and row.at < oldest]

    def _say_lost(self, lost: list[Row]) -> str:
        named = ", ".join(f"{row.pod_id or row.name} ({row.state})" for row in lost[:MOST_NAMED])
        more = f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
        return (
            f"Redis has lost orders that {self._copy.path} has: {named}{more}. Nothing is created or ended until they "
            "are back: see why Redis lost them, then start the reconciler once with --restore-ledger"
        )


def _parse_birth(born_ms: bytes | str | None) -> datetime | None:
    return datetime.fromtimestamp(int(born_ms) / 1000, UTC) if born_ms is not None else None


def _parse(token: bytes, text: bytes) -> Row:
    try:
        return Row.model_validate_json(text)
    except ValidationError as exc:
        raise LedgerUnusable(
            f"order {token!a} in Redis is no row of ours: use a Redis, or a number of its databases, for h3render alone"
        ) from exc
