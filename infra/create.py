"""The create that cannot double. RunPod has no idempotency key, so:

a row with a token of its own is on the disk before the one POST; whatever leaves open whether there is a pod is never
sent again, but looked for by the pod's exact name in complete lists; and a pod that differs from the order, or costs
more, is ended at once. Data centers are tried one after the other, each with a token and a row of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from infra.answers import Pod
from infra.clock import Clock
from infra.errors import (
    ApiError,
    GuardRefused,
    InfraError,
    LedgerUnusable,
    NoCapacity,
    NotAsOrdered,
    OutcomeUnknown,
    RequestRejected,
)
from infra.guards import check_cap, find_differences, find_overcharge, sum_committed
from infra.ledger import OrderBook, Row, RowState
from infra.order import PodBody
from infra.placement import Place
from infra.plan import CreatePlan
from infra.pod_names import make_token
from infra.runpod import PodCalls
from infra.terminate import ask_end, terminate_pod
from infra.transport import choose_pause_s

SENDS = 3  # of a request that certainly did nothing: too many calls, or no connection
LOOKS_S = (2.0, 5.0, 10.0, 20.0, 40.0)  # after a lost answer, when all pods are listed
SETTLES_S = (2.0, 5.0, 10.0)  # after a create, while RunPod has not told all of it

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Creator:
    """Creates one pod by a plan. Whoever lists pods all the time need not wait here: see the last four."""

    api: PodCalls
    ledger: OrderBook
    clock: Clock
    tell_pod: Callable[[str], None]  # its id, as soon as there is one, whatever comes of it later
    tell: Callable[[str], None]  # what else a person wants to know
    sends: int = SENDS
    looks_s: Sequence[float] = LOOKS_S  # none: a lost answer is OutcomeUnknown at once
    settles_s: Sequence[float] = SETTLES_S
    awaits_end: bool = True  # of a pod that is not as ordered; else its end is asked for

    def create(self, plan: CreatePlan) -> Pod:
        """Raises NoCapacity, NotAsOrdered, OutcomeUnknown, or the ApiError after which no place is worth a try."""
        refusals: list[ApiError] = []
        for place in plan.places:
            try:
                return self._try_place(plan, place)
            except ApiError as exc:
                if not exc.tries_next_place:
                    raise
                refusals.append(exc)
                self.tell(f"{place.data_center}: {exc}")
        raise _say_refusals(refusals)

    def _try_place(self, plan: CreatePlan, place: Place) -> Pod:
        token = make_token()
        body = plan.order.to_body(place.data_center, token, plan.lease_until)
        row = self._intend(plan, body, token)
        try:
            pod = self._send(body)
        except ApiError as exc:
            text = _conceal(str(exc), body)
            if exc.changed_nothing:
                self._close(row, text)
                raise type(exc)(text, retry_after_s=exc.retry_after_s) from None
            row, pod = self._find(row, text)
        except KeyboardInterrupt:
            self._move(row, RowState.UNKNOWN, cause="interrupted")
            raise OutcomeUnknown(_say_unknown(row, "interrupted before the answer came")) from None
        return self._accept(plan, body, row, pod)

    def _intend(self, plan: CreatePlan, body: PodBody, token: str) -> Row:
        """The row, and the cap once more with what other commands have written meanwhile. Raises GuardRefused."""
        now = self.clock.now()
        row = Row(
            token=token,
            name=body.name,
            ordered_at=now,
            at=now,
            usd_per_hour=plan.usd_per_hour,
            data_center=body.data_center_ids[0],
            gpu=body.gpu.id,
            count=body.gpu.count,
            body_sha256=body.sha256,
            lease_until=plan.lease_until,
        )
        self.ledger.append(row)
        try:
            self._check_others(plan, row)
        except GuardRefused as exc:
            self._close(row, str(exc))
            raise
        return row

    def _check_others(self, plan: CreatePlan, row: Row) -> None:
        rows = [other for other in self.ledger.read() if other.token != row.token and other.ordered_at >= plan.read_at]
        meanwhile = sum_committed([], rows, plan.order.prefix, self.clock.now())
        check_cap(plan.usd_per_hour, plan.committed + meanwhile, plan.cap)

    def _send(self, body: PodBody) -> Pod:
        """Once; again only after what certainly did nothing."""
        for sent in range(1, self.sends):
            try:
                return self.api.create_pod(body)
            except ApiError as exc:
                if not (exc.may_repeat and exc.changed_nothing):
                    raise
                pause_s = choose_pause_s(exc, sent, self.clock.chance())
                log.warning("the create was not taken, and is sent again", pause_s=round(pause_s, 2), why=str(exc))
                self.clock.sleep(pause_s)
        return self.api.create_pod(body)

    # --- after a lost answer

    def _find(self, row: Row, why: str) -> tuple[Row, Pod]:
        """The pod of this order, by complete lists; of several the oldest, and the others are ended."""
        row = self._move(row, RowState.UNKNOWN, cause=why)
        if self.looks_s:
            self.tell(f"the answer to the create was lost ({why}): looking for {row.name}")
        began = self.clock.monotonic()
        try:
            for moment_s in self.looks_s:
                self.clock.sleep(max(0.0, began + moment_s - self.clock.monotonic()))
                if found := self._look(row.name):
                    self._end_doubles(found[1:])
                    return row, found[0]
        except KeyboardInterrupt:
            raise OutcomeUnknown(_say_unknown(row, why)) from None
        raise OutcomeUnknown(_say_unknown(row, why))

    def _look(self, name: str) -> list[Pod]:
        try:
            pods = self.api.list_pods()
        except ApiError as exc:  # nothing follows from a list with gaps
            log.warning("pods could not be listed", why=str(exc))
            return []
        return sorted((pod for pod in pods if pod.name == name and not pod.is_gone), key=lambda pod: pod.created_at)

    def _end_doubles(self, pods: list[Pod]) -> None:
        for pod in pods:
            self.tell(f"pod {pod.id} has the same name: it is terminated")
            try:
                terminate_pod(self.api, self.ledger, self.clock, pod.id)
            except InfraError as exc:
                self.tell(f"pod {pod.id} may go on and bill: {exc}")

    # --- once there is a pod

    def _accept(self, plan: CreatePlan, body: PodBody, row: Row, pod: Pod) -> Pod:
        try:
            row = self.ledger.move(row, RowState.CREATED, pod_id=pod.id)
        except LedgerUnusable as exc:
            raise OutcomeUnknown(f"pod {pod.id} exists and bills, and could not be recorded: {exc}") from exc
        finally:
            self.tell_pod(pod.id)
        self._check(plan, body, pod)
        pod = self._settle(pod)
        self._check(plan, body, pod)
        return pod

    def _check(self, plan: CreatePlan, body: PodBody, pod: Pod) -> None:
        faults = find_differences(body, pod) + find_overcharge(pod, plan.usd_per_hour, plan.committed, plan.cap)
        if not faults:
            return
        why = "; ".join(faults)
        self.tell(f"pod {pod.id} is not what was ordered ({why}): it is terminated")
        try:
            self._end(pod)
        except InfraError as exc:
            raise OutcomeUnknown(
                f"pod {pod.id} is not what was ordered ({why}), and may go on and bill: {exc}"
            ) from exc
        ended = "was terminated" if self.awaits_end else "was asked to end"
        raise NotAsOrdered(f"pod {pod.id} {ended}, for it is not what was ordered: {why}")

    def _end(self, pod: Pod) -> None:
        if self.awaits_end:
            terminate_pod(self.api, self.ledger, self.clock, pod.id)
        else:
            ask_end(self.api, self.ledger, pod.id)

    def _settle(self, pod: Pod) -> Pod:
        """As it is once RunPod has told where it is and what it costs; as it was if that takes long."""
        for pause_s in self.settles_s:
            if pod.data_center_id is not None and pod.cost > 0:
                return pod
            self.clock.sleep(pause_s)
            try:
                pod = self.api.get_pod(pod.id)
            except ApiError as exc:
                log.warning("the new pod could not be read", pod_id=pod.id, why=str(exc))
        if pod.data_center_id is None or pod.cost == 0:
            self.tell(
                f"RunPod has not told yet where {pod.id} is, or what it costs: look with `h3render pods get {pod.id}`"
            )
        return pod

    # --- rows after the POST

    def _close(self, row: Row, cause: str) -> None:
        """There is no pod; if that cannot be written, the row goes on counting for a while, which is safe."""
        self._move(row, RowState.FAILED, cause=cause)

    def _move(self, row: Row, state: RowState, *, cause: str) -> Row:
        try:
            return self.ledger.move(row, state, cause=cause)
        except LedgerUnusable as exc:
            log.warning("the ledger could not be written", why=str(exc))
            return row.model_copy(update={"state": state, "cause": cause})


def _say_refusals(refusals: list[ApiError]) -> InfraError:
    """For all places together: what the last one said is shown, for RunPod has one code for two reasons."""
    last = refusals[-1]
    if not any(isinstance(exc, RequestRejected) for exc in refusals):
        return last
    return NoCapacity(
        f"no data center gave the pod: {last}. If this does not speak of capacity, the request is at fault; else try "
        "again later"
    )


def _say_unknown(row: Row, why: str) -> str:
    return (
        f"a pod may exist and bill {row.usd_per_hour:.2f} USD per hour: {why}. Its token is {row.token}, its name "
        f"{row.name}: `h3render pods list` shows it if it came; for 15 minutes its price counts against the cap"
    )


def _conceal(text: str, body: PodBody) -> str:
    """RunPod may say in words what was wrong with a value of `env`."""
    for value in sorted(body.env.values(), key=len, reverse=True):
        if len(value) >= 4 and value not in body.name:
            text = text.replace(value, "***")
    return text
