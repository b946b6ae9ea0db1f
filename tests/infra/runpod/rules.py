"""The rules between fields, which the document tells in prose and its schemas cannot say. Each raises a Refusal.

A request reaches them when the schemas have accepted it.
"""

import re

from tests.infra.runpod.answers import NotFound, RuleBroken, Unprocessable
from tests.infra.runpod.world import World

PORT = re.compile(r"(\d{1,5})/(tcp|http)")
BODY_LIMIT_BYTES = 102_400
AVAILABILITY_FILTERS = ("product", "count", "cloud", "countryCodes", "cudaVersions", "minCudaVersion")


def check_create(body: dict, world: World) -> None:
    if ("gpu" in body) == ("cpu" in body):
        raise RuleBroken("exactly one of gpu and cpu must be set")
    if "templateId" in body:
        raise NotFound("template")
    if body.get("image") in world.unknown_images:
        raise RuleBroken(f"image {body['image']} does not exist")
    _check_ports(body)
    _check_mounts(body)
    _check_cuda(body.get("gpu", {}))
    _check_places(body, world)
    _check_volume(body, world)
    _check_gpu(body, world)


def check_update(body: dict, settings: dict, world: World) -> None:
    """A PATCH of a pod that has these settings."""
    if "templateId" in body:
        raise NotFound("template")
    _check_ports(body)
    mounts, present = body.get("mounts", {}), settings.get("mounts", {})
    if mounts.get("network") == []:
        raise RuleBroken("mounts cannot be cleared")
    _check_one_kind(mounts)
    if not mounts.keys() <= present.keys():
        raise RuleBroken("the kind of a pod's mount is fixed when it is created")
    for new, old in zip(mounts.get("network", ()), present.get("network", ()), strict=False):
        if new["volumeId"] != old["volumeId"]:
            raise RuleBroken("the volume of a mount cannot be changed")


def check_gpu_query(query: dict) -> None:
    """Of both GPU catalog calls."""
    wants_availability = bool(query.get("include"))
    if wants_availability and not query.get("product"):
        raise RuleBroken("include=AVAILABILITY requires product")
    for name in AVAILABILITY_FILTERS:
        if name in query and not wants_availability:
            raise RuleBroken(f"{name} is valid only with include=AVAILABILITY")
    if "cudaVersions" in query and "minCudaVersion" in query:
        raise RuleBroken("cudaVersions and minCudaVersion are mutually exclusive")


def check_billing_query(query: dict) -> None:
    if "lastN" in query and ("startTime" in query or "endTime" in query):
        raise RuleBroken("lastN is mutually exclusive with startTime and endTime")


def check_new_volume(body: dict, world: World) -> None:
    center = world.catalog.data_center(body["dataCenter"])
    if center is None:
        raise RuleBroken(f"no data center {body['dataCenter']}")
    if not center.volume_types:
        raise RuleBroken(f"{center.id} has no network volumes")
    if body.get("type", center.volume_types[0]) not in center.volume_types:
        raise RuleBroken(f"{center.id} has no {body['type']} volumes")


def check_resize(size: int, present: int) -> None:
    if size < present:
        raise RuleBroken("a volume's size cannot be reduced")


def check_cursor(cursor: str) -> int:
    """The number of the pod after which a page begins. Another call's cursor is refused."""
    if (match := re.fullmatch(r"pods-(\d+)", cursor)) is None:
        raise Unprocessable("cursor: not one of this list")
    return int(match[1])


def _check_ports(body: dict) -> None:
    for port in body.get("ports", ()):
        match = PORT.fullmatch(port)
        if match is None or not 1 <= int(match[1]) <= 65_535:
            raise RuleBroken(f"port {port!r} is not <port>/tcp or <port>/http")


def _check_mounts(body: dict) -> None:
    mounts = body.get("mounts", {})
    _check_one_kind(mounts)
    if "persistent" in mounts and "cpu" in body:
        raise RuleBroken("CPU pods have no persistent mount")


def _check_one_kind(mounts: dict) -> None:
    if "persistent" in mounts and "network" in mounts:
        raise RuleBroken("mounts.persistent and mounts.network are mutually exclusive")


def _check_cuda(gpu: dict) -> None:
    if gpu.get("allowedCudaVersions") and "minCudaVersion" in gpu:
        raise RuleBroken("gpu.allowedCudaVersions and gpu.minCudaVersion are mutually exclusive")


def _check_places(body: dict, world: World) -> None:
    for name in body.get("dataCenterIds", ()):
        if world.catalog.data_center(name) is None:
            raise RuleBroken(f"no data center {name}")


def _check_volume(body: dict, world: World) -> None:
    for mount in body.get("mounts", {}).get("network", ()):
        place = world.volume(mount["volumeId"]).data_center
        if body.get("cloud", "SECURE") != "SECURE":
            raise RuleBroken("network volumes need cloud SECURE")
        if body.get("dataCenterIds") and place not in body["dataCenterIds"]:
            raise RuleBroken(f"the network volume is in {place}")


def _check_gpu(body: dict, world: World) -> None:
    if "gpu" not in body:
        raise RuleBroken("this account rents no CPU pods")
    gpu, cloud = body["gpu"], body.get("cloud", "SECURE")
    if world.catalog.gpu_type(gpu["id"]) is None:
        raise RuleBroken(f"no GPU type {gpu['id']!r}")
    if gpu.get("count", 1) > world.catalog.max_count(gpu["id"], cloud):
        raise RuleBroken(f"gpu.count {gpu['count']} is above the largest machine of this type")
