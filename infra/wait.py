"""Waits until a pod is up, as far as RunPod can tell, and, if there is a queue to ask, until its worker is heard of."""

from collections.abc import Callable

from infra.answers import Pod
from infra.clock import Clock
from infra.errors import GaveUpWaiting, NotFound, PodFailed
from infra.runpod import RunPod

LOOK_S = 5.0


def await_pod(
    api: RunPod,
    clock: Clock,
    pod_id: str,
    *,
    within_s: float,
    is_ready: Callable[[Pod], bool],
    tell: Callable[[Pod], None],
) -> Pod:
    """The pod once it is ready. Raises PodFailed if it will not be, GaveUpWaiting after the time.

    tell  is given each reading
    """
    end = clock.monotonic() + within_s
    while True:
        pod = _read(api, pod_id)
        tell(pod)
        if is_ready(pod):
            return pod
        if clock.monotonic() + LOOK_S > end:
            raise GaveUpWaiting(
                f"pod {pod_id} is {pod.status} and not ready after {within_s:.0f} s; it goes on, and bills"
            )
        clock.sleep(LOOK_S)


def _read(api: RunPod, pod_id: str) -> Pod:
    try:
        pod = api.get_pod(pod_id)
    except NotFound as exc:
        raise PodFailed(f"pod {pod_id} is gone") from exc
    if pod.has_failed:
        raise PodFailed(
            f"pod {pod_id} is {pod.status} and will not become ready: `logs {pod_id}` tells more, then terminate it"
        )
    return pod
