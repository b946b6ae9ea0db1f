"""What a fleet's reconciler has to know from one look to the next, also from one process to the next."""

from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar

from pydantic import BaseModel, ValidationError
from redis import Redis

from infra.errors import LedgerUnusable
from infra.reconciler.lease import ReconcilerLease, lease_errors
from infra.reconciler.memory import Memory
from infra.reconciler.spend import Spend

Part = TypeVar("Part", bound=BaseModel)
FIELDS = ("memory", "spend")


@dataclass(frozen=True, slots=True)
class Notes:
    """All of it."""

    memory: Memory = field(default_factory=Memory)
    spend: Spend = field(default_factory=Spend)

    def with_memory(self, memory: Memory) -> Self:
        return replace(self, memory=memory)

    def with_spend(self, spend: Spend) -> Self:
        return replace(self, spend=spend)


class Notebook(Protocol):
    """Where they are kept."""

    def read(self) -> Notes: ...

    def write(self, notes: Notes) -> None: ...


class RedisNotebook:
    """Beside the fleet's orders. Raises LeaseLost, and LedgerUnusable."""

    def __init__(self, redis: Redis, lease: ReconcilerLease) -> None:
        self._redis, self._lease = redis, lease

    def read(self) -> Notes:
        """Nothing where nothing was written: then pods are counted from their creation."""
        with lease_errors():
            memory, spend = self._redis.hmget(self._lease.keys.facts, FIELDS)
        try:
            return Notes(_parse(Memory, memory), _parse(Spend, spend))
        except ValidationError as exc:
            raise LedgerUnusable(
                f"{self._lease.keys.facts} in Redis: these are no notes of ours: use a Redis, or a number of its "
                "databases, for h3render alone"
            ) from exc

    def write(self, notes: Notes) -> None:
        """On Redis's disk when this returns."""
        texts = (notes.memory.model_dump_json(), notes.spend.model_dump_json())
        self._lease.put(self._lease.keys.facts, dict(zip(FIELDS, texts, strict=True)))


def _parse(kind: type[Part], text: bytes | str | None) -> Part:
    return kind.model_validate_json(text) if text is not None else kind()
