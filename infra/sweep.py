"""The second line of defence: pods of ours that are past their lease, whoever forgot them."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from infra.answers import Pod
from infra.desk import Desk
from infra.errors import InfraError
from infra.pod_names import is_ours
from infra.terminate import terminate_pod

GRACE = timedelta(minutes=10)  # for the reconciler, and the pod itself, to end it in good order


def find_overdue(pods: Iterable[Pod], prefix: str, now: datetime) -> list[Pod]:
    """By what its order wrote into it. One that has no lease was not ordered by us, whatever it is called."""
    return [pod for pod in pods if is_ours(pod.name, prefix) and not pod.is_gone and _is_over(pod, now)]


def _is_over(pod: Pod, now: datetime) -> bool:
    return pod.env.lease_until is not None and now >= pod.env.lease_until + GRACE


def end_pods(desk: Desk, pods: Iterable[Pod], tell: Callable[[str], None]) -> None:
    """One after the other; raises the last error once all were tried."""
    failed: InfraError | None = None
    for pod in pods:
        try:
            terminate_pod(desk.api, desk.ledger, desk.clock, pod.id)
            tell(f"{pod.id} terminated")
        except InfraError as exc:
            tell(f"{pod.id}: {exc}")
            failed = exc
    if failed is not None:
        raise failed
