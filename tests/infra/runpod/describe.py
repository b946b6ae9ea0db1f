"""Pods and volumes as the document shows them."""

from tests.infra.runpod.clock import rfc3339
from tests.infra.runpod.pods import ACTIONS, Pod, Status
from tests.infra.runpod.world import Volume

CONTAINER_FIELDS = ("name", "image", "args", "disk", "ports", "env", "registry", "mounts", "cloud")
LATER_FIELDS = ("entrypoint", "cmd")
SSH_PORT = "22/tcp"
PUBLIC_IP = "203.0.113.7"  # of the documentation's network: nobody answers


def describe_pod(pod: Pod, now: float, *, later: bool) -> dict:
    """`later`: with the fields of the document's later version."""
    phase, is_placed = pod.shown_phase(now), now >= pod.created_at + pod.course.placed_s
    started_at = pod.started_at(now)
    described = {name: pod.settings[name] for name in CONTAINER_FIELDS} | {
        "id": pod.id,
        "status": phase.status,
        "actions": list(ACTIONS[phase.status]),
        "gpu": _gpu(pod, later=later),
        "dataCenterId": pod.host.data_center if is_placed else None,
        "cudaVersion": pod.host.cuda if is_placed else None,
        "ssh": {"proxy": _proxy(pod) if is_placed else None, "direct": _direct(pod, now)},
        "template": None,
        "cost": pod.cost_usd(phase.status),
        "locked": pod.settings.get("locked", False),
        "globalNetworking": {"enabled": False},
        "runtime": _runtime(pod, now),
        "createdAt": rfc3339(pod.created_at),
        "startedAt": None if started_at is None else rfc3339(started_at),
    }
    if pod.cluster is not None:
        described["cluster"] = {"id": pod.cluster, "rank": 0}
    if later:
        described |= {name: pod.settings[name] for name in LATER_FIELDS if name in pod.settings}
    return described | dict(pod.course.differs)


def describe_volume(volume: Volume) -> dict:
    return {
        "id": volume.id,
        "name": volume.name,
        "size": volume.size,
        "dataCenter": volume.data_center,
        "type": volume.type,
    }


def _gpu(pod: Pod, *, later: bool) -> dict:
    gpu = {"id": pod.settings["gpu"]["id"], "count": pod.gpu_count}
    return gpu | ({"vcpuCount": 16 * pod.gpu_count, "memory": 180 * pod.gpu_count} if later else {})


def _runtime(pod: Pod, now: float) -> dict | None:
    """None, then empty, then without ports, then full."""
    phase = pod.shown_phase(now)
    if phase.status is not Status.RUNNING:
        return None
    age_s = now - phase.since
    if age_s < pod.course.runtime_s:
        return {}
    runtime = {
        "uptime": int(age_s),
        "gpus": [{"util": 0, "memoryUtil": 0} for _ in range(pod.gpu_count)],
        "cpu": {"util": 1},
        "memory": {"util": 1},
    }
    return runtime | ({"ports": [_port(pod, port) for port in pod.settings["ports"]]} if _has_ports(pod, now) else {})


def _has_ports(pod: Pod, now: float) -> bool:
    phase = pod.shown_phase(now)
    return phase.status is Status.RUNNING and now >= phase.since + pod.course.ports_s


def _port(pod: Pod, port: str) -> dict:
    private, _, kind = port.partition("/")
    return {"private": int(private), "public": _public(pod, int(private)), "type": kind, "ip": PUBLIC_IP}


def _public(pod: Pod, private: int) -> int:
    """It changes with each reset."""
    return 20_000 + (private + 64 * pod.number + pod.resets) % 40_000


def _proxy(pod: Pod) -> dict:
    return _endpoint("ssh.runpod.io", 22, f"{pod.id}-{pod.number:08x}", "ssh {user}@{host}")


def _direct(pod: Pod, now: float) -> dict | None:
    if SSH_PORT not in pod.settings["ports"] or not _has_ports(pod, now):
        return None
    return _endpoint(PUBLIC_IP, _public(pod, 22), "root", "ssh {user}@{host} -p {port}")


def _endpoint(host: str, port: int, user: str, command: str) -> dict:
    return {"host": host, "port": port, "username": user, "command": command.format(user=user, host=host, port=port)}
