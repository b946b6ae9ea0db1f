"""Ends a pod. It is terminated only when RunPod says that it is gone: to ask for its end is the smaller part."""

from infra.clock import Clock
from infra.errors import ApiError, KeyRefused, LedgerUnusable, NotFound, OutcomeUnknown, RefusedByRunPod
from infra.ledger import OrderBook, RowState
from infra.runpod import PodCalls

GONE_WITHIN_S = 180.0
FIRST_LOOK_S, LONGEST_LOOK_S = 1.0, 10.0


def terminate_pod(
    api: PodCalls, ledger: OrderBook, clock: Clock, pod_id: str, *, within_s: float = GONE_WITHIN_S
) -> None:
    """And stay until it is gone. Raises what `ask_end` does, and OutcomeUnknown if it stays for so long."""
    ask_end(api, ledger, pod_id)
    _await_end(api, clock, pod_id, within_s)
    record_gone(ledger, pod_id)


def ask_end(api: PodCalls, ledger: OrderBook, pod_id: str) -> None:
    """And return: later lists tell when it is gone, and until then it bills.

    Raises OutcomeUnknown if the request may be lost, RefusedByRunPod if RunPod refuses, KeyRefused.
    """
    _record(ledger, pod_id, RowState.TERMINATING)
    try:
        api.delete_pod(pod_id)
    except RefusedByRunPod:
        if not is_gone(api, pod_id):
            raise
    except KeyRefused:
        raise
    except ApiError as exc:
        raise OutcomeUnknown(f"pod {pod_id} may go on and bill: {exc}: terminate it again") from exc


def record_gone(ledger: OrderBook, pod_id: str) -> None:
    """Close its row, if it has one."""
    _record(ledger, pod_id, RowState.GONE)


def _await_end(api: PodCalls, clock: Clock, pod_id: str, within_s: float) -> None:
    end, pause_s, why = clock.monotonic() + within_s, FIRST_LOOK_S, ""
    while True:
        try:
            if is_gone(api, pod_id):
                return
            why = "it is still there"
        except ApiError as exc:
            why = str(exc)
        if clock.monotonic() + pause_s > end:
            raise OutcomeUnknown(
                f"pod {pod_id} was asked to end {within_s:.0f} s ago and may still bill: {why}: look again"
            )
        clock.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_LOOK_S)


def is_gone(api: PodCalls, pod_id: str) -> bool:
    try:
        return api.get_pod(pod_id).is_gone
    except NotFound:
        return True


def _record(ledger: OrderBook, pod_id: str, state: RowState) -> None:
    """As far as the pod is in the ledger. A disk that is full does not keep a pod alive."""
    try:
        row = ledger.find(pod_id)
        if row is not None and row.state is not RowState.GONE:
            ledger.move(row, state)
    except LedgerUnusable:
        return
