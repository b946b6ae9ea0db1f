"""What we have ordered, on this machine's disk: a row is there before its request is sent.

The file is only ever appended to, a JSON line for each change, and each line is on the disk before the call returns.
The last line of a token tells how it stands. A line that a crash has cut short is passed over: what it would have said
was not acted on yet.
"""

import json
import os
from abc import ABC, abstractmethod
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

import structlog
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from infra.clock import Clock
from infra.errors import LedgerUnusable

log = structlog.get_logger(__name__)


class RowState(StrEnum):
    """Of one order."""

    INTENT = "intent"  # its request is about to be sent, or was
    UNKNOWN = "unknown"  # no telling whether there is a pod
    CREATED = "created"  # it has a pod
    DRAINING = "draining"  # which takes no more jobs, and is to end after the one it runs
    FAILED = "failed"  # there is certainly none
    TERMINATING = "terminating"  # its end was asked for
    GONE = "gone"  # and is confirmed


MOVES = {
    RowState.INTENT: {RowState.UNKNOWN, RowState.CREATED, RowState.FAILED},
    RowState.UNKNOWN: {RowState.CREATED, RowState.FAILED},
    RowState.CREATED: {RowState.DRAINING, RowState.TERMINATING, RowState.GONE},
    RowState.DRAINING: {RowState.CREATED, RowState.TERMINATING, RowState.GONE},  # the first: it is needed after all
    RowState.FAILED: {RowState.CREATED},  # it was there after all
    RowState.TERMINATING: {RowState.TERMINATING, RowState.GONE},
    RowState.GONE: set[RowState](),
}
APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)  # the last is Windows'
OPEN = (RowState.INTENT, RowState.UNKNOWN)  # there may be a pod that no row names
WITH_POD = (RowState.CREATED, RowState.DRAINING)
ENDED = (RowState.FAILED, RowState.GONE)


class Row(BaseModel):
    """An order as it stands. No value of `env` is in it."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    version: Literal[1] = 1
    token: str
    name: str  # of the pod, which ends with the token
    state: RowState = RowState.INTENT
    ordered_at: AwareDatetime
    at: AwareDatetime  # of this change
    usd_per_hour: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # by the catalog
    data_center: str
    gpu: str
    count: int
    body_sha256: str
    pod_id: str | None = None
    lease_until: AwareDatetime | None = None  # told to the pod; rows of earlier versions have none
    cause: str = ""

    def moved(self, state: RowState, at: datetime, *, pod_id: str | None = None, cause: str = "") -> Self:
        """In another state, which is one that may follow."""
        assert state in MOVES[self.state], f"an order that is {self.state} does not become {state}"
        changes = {"state": state, "at": at, "pod_id": pod_id or self.pod_id, "cause": cause}
        return self.model_copy(update=changes)

    @property
    def has_ended(self) -> bool:
        """There is certainly no pod, or none any more."""
        return self.state in ENDED

    @property
    def has_pod(self) -> bool:
        """Whether there was one, and its end is not confirmed."""
        return self.state in (*WITH_POD, RowState.TERMINATING)

    def age_s(self, now: datetime) -> float:
        return max(0.0, (now - self.ordered_at).total_seconds())


class OrderBook(ABC):
    """What we have ordered, wherever that is kept: all that a create and an end need of it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()

    @abstractmethod
    def read(self) -> list[Row]:
        """Every order as it stands, oldest first. Raises LedgerUnusable."""

    @abstractmethod
    def append(self, row: Row) -> None:
        """On the disk when this returns. Raises LedgerUnusable."""

    def find(self, pod_id: str) -> Row | None:
        """The order that this pod came of, if it is ours."""
        return next((row for row in self.read() if row.pod_id == pod_id), None)

    def move(self, row: Row, state: RowState, *, pod_id: str | None = None, cause: str = "") -> Row:
        """The row in its new state, which is written and logged. Raises LedgerUnusable."""
        moved = row.moved(state, self._clock.now(), pod_id=pod_id, cause=cause)
        self.append(moved)
        log.info("order moved", token=row.token, pod_id=moved.pod_id, before=str(row.state), now=str(state))
        return moved


class FleetLedger(OrderBook):
    """Of one fleet, whose reconciler also judges by it which pods nobody has ordered."""

    @abstractmethod
    def born_at(self) -> datetime | None:
        """When it was made: of a pod that is older, it says nothing. None: there is none yet."""


class Ledger(OrderBook):
    """The file of one user; several commands may append to it at a time."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.path = path

    def read(self) -> list[Row]:
        try:
            lines = self.path.read_bytes().split(b"\n") if self.path.exists() else []
        except OSError as exc:
            raise self._unusable(exc) from exc
        rows: dict[str, Row] = {}
        for number, line in enumerate(lines, 1):
            if (row := self._parse(line, number)) is not None:
                rows[row.token] = row
        return list(rows.values())

    def append(self, row: Row) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_new = not self.path.exists()
            # By one write, so that two commands do not mix; behind a line that was cut short, on a new one.
            with os.fdopen(os.open(self.path, APPENDING, 0o600), "ab", buffering=0) as file:
                file.write(b"\n" * _is_cut_short(self.path) + row.model_dump_json().encode() + b"\n")
                os.fsync(file.fileno())
            if is_new:
                _sync_folder(self.path.parent)
        except OSError as exc:
            raise self._unusable(exc) from exc

    def _parse(self, line: bytes, number: int) -> Row | None:
        if not line.strip(b"\0 \r"):
            return None
        try:
            json.loads(line)
        except ValueError:
            log.warning("a line of the ledger was cut short", path=str(self.path), line=number)
            return None
        try:
            return Row.model_validate_json(line)
        except ValidationError as exc:
            raise LedgerUnusable(
                f"{self.path}, line {number}: this is no row of ours: mend or move the file, or name another one in "
                "H3_PODS_LEDGER"
            ) from exc

    def _unusable(self, error: OSError) -> LedgerUnusable:
        return LedgerUnusable(f"{self.path}: {error.strerror or error}: name a file in H3_PODS_LEDGER that is ours")


def _is_cut_short(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # a folder is no file there, and its entry is kept with the file
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
