"""One reconciler of a fleet at a time: a lease in Redis, and a number, the fence, that grows with each holder.

What is written into the fleet's books is refused once the lease is another's, by the script that writes. Time is the
Redis server's, by the expiry of a key.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import structlog
from redis import Redis
from redis.exceptions import RedisError

from infra.errors import LeaseHeld, LeaseLost, LedgerUnusable
from jobs.plain_text import plain

TTL_S = 60.0
SYNC_TIMEOUT_S = 5.0  # until a write is on the server's disk; with `appendfsync everysec` it takes a second
_SCRIPT = Path(__file__).with_name("fence.lua").read_text()
_DURABLE = (
    "the ledger needs a Redis that keeps what it confirms: CONFIG SET appendonly yes, CONFIG SET appendfsync always "
    "(or everysec), on Redis 7.2 or newer, or Valkey"
)

log = structlog.get_logger(__name__)


class FleetKeys(NamedTuple):
    """Of one fleet in Redis, in the order in which the script has them."""

    lease: str
    facts: str  # a hash: the last fence, when the ledger was made, what was spent
    orders: str  # a hash: each row by its token

    @classmethod
    def of(cls, prefix: str, fleet: str) -> Self:
        return cls(*(f"h3:pods:{prefix}-{fleet}:{name}" for name in cls._fields))


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """Who acts for a fleet."""

    holder: str
    fence: int
    left_s: float

    def __str__(self) -> str:
        return f"{plain(self.holder)}, for another {self.left_s:.0f} s (fence {self.fence})"


def read_lease(redis: Redis, prefix: str, fleet: str) -> LeaseFacts | None:
    """None: nobody acts for it. Raises LeaseLost if Redis does not say."""
    key = FleetKeys.of(prefix, fleet).lease
    with lease_errors(), redis.pipeline() as pipeline:
        pipeline.hmget(key, "holder", "fence")
        pipeline.pttl(key)
        (holder, fence), left_ms = pipeline.execute()
    return LeaseFacts(holder.decode(), int(fence), left_ms / 1000) if holder is not None else None


class ReconcilerLease:
    """The right to act for one fleet. Everything but `take` and `give_back` raises LeaseLost once it is over.

    holder  what people are told: a host and a process
    """

    def __init__(self, redis: Redis, *, prefix: str, fleet: str, holder: str, ttl_s: float = TTL_S) -> None:
        self.prefix, self.fleet = prefix, fleet
        self.fence = 0  # of the last time that it was ours
        self.keys = FleetKeys.of(prefix, fleet)
        self._redis = redis
        self._holder, self._ttl_ms = holder, round(ttl_s * 1000)
        # Beside the fence: a Redis that has lost its data counts from 1 again.
        self._nonce = uuid4().hex
        self._other: LeaseFacts | None = None

    def take(self) -> bool:
        """Whether it is ours now; if not, `holder_told` says whose. Raises LeaseLost if Redis does not say."""
        with lease_errors():
            taken, holder, fence, left_ms = self._call("take", self._holder, self._ttl_ms)
        if taken:
            self.fence, self._other = int(fence), None
            log.info("lease taken", fleet=self.fleet, fence=self.fence)
        else:
            self._other = LeaseFacts(holder.decode(), int(fence), left_ms / 1000)
        return bool(taken)

    def require(self) -> None:
        """Take it. Raises LeaseHeld if another has it."""
        if not self.take():
            raise LeaseHeld(
                f"fleet {self.fleet} is looked after by {self.holder_told()}: end that reconciler, or wait until its "
                "lease has run out"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """From now to the end of the block, however that ends. Raises LeaseHeld if another has it."""
        self.require()
        try:
            yield
        finally:
            self.give_back()

    def holder_told(self) -> str:
        """Who had it when we could not take it, and for how long."""
        return str(self._other) if self._other is not None else "nobody else"

    def renew(self) -> None:
        with lease_errors():
            self._check(self._call("renew", self.fence, self._ttl_ms))

    def give_back(self) -> None:
        """If it is still ours; else, or if Redis does not answer, it runs out by itself."""
        try:
            self._call("give_back", self.fence)
        except RedisError as exc:
            log.warning("the lease could not be given back", why=str(exc))

    # --- the books

    def put(self, key: str, fields: Mapping[str, str], drop: Sequence[str] = ()) -> None:
        """Write fields of a hash and remove others: on the server's disk when this returns.

        Raises LeaseLost, and LedgerUnusable for a Redis that does not keep it there.
        """
        place = self.keys.index(key) + 1
        with lease_errors(), self._redis.pipeline(transaction=False) as pipeline:
            self._call("put", self.fence, place, *chain.from_iterable(fields.items()), client=pipeline)
            if drop:
                self._call("drop", self.fence, place, *drop, client=pipeline)
            # On the same connection, and outside of a transaction: it waits for what this connection has written.
            pipeline.waitaof(1, 0, round(SYNC_TIMEOUT_S * 1000))
            *written, synced = pipeline.execute(raise_on_error=False)
            for answer in written:
                self._check(answer)
        _check_synced(synced)

    def _call(self, command: str, *arguments: str | int, client: Redis | None = None) -> Any:
        client = client if client is not None else self._redis
        return client.eval(_SCRIPT, len(self.keys), *self.keys, command, self._nonce, *arguments)

    def _check(self, answer: object) -> None:
        if isinstance(answer, RedisError):
            raise answer
        if not answer:
            raise LeaseLost(
                f"another reconciler acts for fleet {self.fleet}, or the lease (fence {self.fence}) ran out: stop here"
            )


def _check_synced(answer: list[int] | RedisError) -> None:
    """Of WAITAOF: how many servers have it on their disk, this one and replicas. Raises LedgerUnusable."""
    if isinstance(answer, RedisError):
        raise LedgerUnusable(f"Redis answers {str(answer)!r}: {_DURABLE}")
    here, _ = answer
    if not here:
        raise LedgerUnusable(f"what was written is not on Redis's disk after {SYNC_TIMEOUT_S:.0f} s: {_DURABLE}")


@contextmanager
def lease_errors() -> Iterator[None]:
    """Who cannot ask Redis does not know whether the lease is still theirs."""
    try:
        yield
    except RedisError as exc:
        raise LeaseLost(
            f"Redis does not say who acts for the fleet ({exc}): nothing is done until it does; see REDIS_URL and the "
            "server"
        ) from exc
