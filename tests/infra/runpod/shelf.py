"""The catalog as the document shows it: prices and stock. Stock is how many such pods would fit now."""

from tests.infra.runpod.answers import NotFound
from tests.infra.runpod.catalog import DataCenter, GpuType, Host
from tests.infra.runpod.world import Wish, World, cuda_number

LEVELS = ((4, "HIGH"), (2, "MEDIUM"), (1, "LOW"), (0, "NONE"))  # from so many pods on


def list_gpus(world: World, query: dict, now: float) -> list[dict]:
    """Those with no data center in the countries asked for drop out."""
    shown = [gpu for gpu in world.catalog.gpu_types if "countryCodes" not in query or _offers(world, gpu, query)]
    return [describe_gpu(world, gpu.id, query, now) for gpu in shown]


def describe_gpu(world: World, gpu_id: str, query: dict, now: float) -> dict:
    gpu = world.catalog.gpu_type(gpu_id)
    if gpu is None:
        raise NotFound("GPU type")
    largest = {cloud: world.catalog.max_count(gpu.id, cloud.upper()) for cloud in ("secure", "community")}
    described = {
        "id": gpu.id,
        "name": gpu.name,
        "pool": gpu.pool,
        "manufacturer": gpu.manufacturer,
        "memory": gpu.memory,
        "secure": largest["secure"] > 0,
        "community": largest["community"] > 0,
        "price": {"secure": gpu.secure_usd, "community": gpu.community_usd},
        "maxCount": largest,
    }
    return described | (_availability(world, gpu, query, now) if query.get("include") else {})


def list_data_centers(world: World, query: dict, now: float) -> list[dict]:
    shown = [center for center in world.catalog.data_centers if _is_wanted(center, query)]
    return [describe_data_center(world, center.id, query, now) for center in shown]


def describe_data_center(world: World, center_id: str, query: dict, now: float) -> dict:
    center = world.catalog.data_center(center_id)
    if center is None:
        raise NotFound("data center")
    described = {
        "id": center.id,
        "name": center.name,
        "region": center.region,
        "globalNetwork": center.global_network,
        "networkVolumeTypes": list(center.volume_types),
        "compliance": list(center.compliance),
    }
    if "GPU_AVAILABILITY" in query.get("include", ()) and (gpus := _gpus_in(world, center, now)):
        described["gpuAvailability"] = gpus
    return described


def level(pods: int) -> str:
    return next(name for least, name in LEVELS if pods >= least)


def _availability(world: World, gpu: GpuType, query: dict, now: float) -> dict:
    hosts = _offers(world, gpu, query)
    pods = {host: world.free_gpus(host, now) // _wish(world, gpu, query).count for host in hosts}
    described = {"availability": level(sum(pods.values()))}
    if any(pods.values()):
        described["dataCenters"] = [
            {"id": center.id, "name": center.name, "availability": level(_sum_in(center.id, pods))}
            for center in world.catalog.data_centers
            if any(host.data_center == center.id for host in pods)
        ]
    versions = {host.cuda for host in pods} - {None}
    if versions:
        described["cudaVersions"] = [
            {"version": version, "available": any(pods[host] for host in pods if host.cuda == version)}
            for version in sorted(versions, key=cuda_number)
        ]
    return described


def _sum_in(center_id: str, pods: dict[Host, int]) -> int:
    return sum(count for host, count in pods.items() if host.data_center == center_id)


def _offers(world: World, gpu: GpuType, query: dict) -> list[Host]:
    """Machines of the configuration that a query asks about, free or not."""
    wish = _wish(world, gpu, query)
    return [host for host in world.catalog.hosts if wish.could_use(host)]


def _wish(world: World, gpu: GpuType, query: dict) -> Wish:
    centers = None
    if "countryCodes" in query:
        centers = frozenset(each.id for each in world.catalog.data_centers if each.country in query["countryCodes"])
    return Wish(
        gpu.id,
        query.get("count", 1),
        query.get("cloud", "SECURE"),
        centers,
        frozenset(query.get("cudaVersions", ())),
        query.get("minCudaVersion"),
    )


def _gpus_in(world: World, center: DataCenter, now: float) -> list[dict]:
    """Of one GPU each: this call has no count."""
    described = []
    for gpu in world.catalog.gpu_types:
        hosts = [host for host in world.catalog.hosts if (host.data_center, host.gpu_id) == (center.id, gpu.id)]
        if hosts:
            pods = sum(world.free_gpus(host, now) for host in hosts)
            described.append({"id": gpu.id, "name": gpu.name, "availability": level(pods)})
    return described


def _is_wanted(center: DataCenter, query: dict) -> bool:
    return (
        ("regions" not in query or center.region in query["regions"])
        and set(query.get("networkVolumeTypes", ())) <= set(center.volume_types)
        and set(query.get("compliance", ())) <= set(center.compliance)
        and query.get("globalNetwork", center.global_network) == center.global_network
    )
