"""Where an order may be placed, by the catalog. Stock is a hint: what is read may be gone a moment later."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from infra.answers import DataCenter, GpuType, NetworkVolume, Stock
from infra.errors import GuardRefused, NoCapacity

MOST_NEAR = 5  # ids that are told instead of one that is unknown


@dataclass(frozen=True, slots=True)
class Place:
    """A data center that a create is tried in."""

    data_center: str
    availability: str


def find_gpu(gpus: Sequence[GpuType], gpu_id: str) -> GpuType:
    """By its whole id: others begin with the same words. Raises GuardRefused."""
    gpu = next((gpu for gpu in gpus if gpu.id == gpu_id), None)
    if gpu is None:
        raise GuardRefused(f"--gpu {gpu_id!a} is not in the catalog; near it: {_find_near(gpu_id, gpus)}")
    return gpu


def check_count(gpu: GpuType, count: int) -> None:
    """Raises GuardRefused for more GPUs than any machine has."""
    if count > gpu.max_count.secure:
        raise GuardRefused(f"--count {count}: the largest machine has {gpu.max_count.secure} GPUs of type {gpu.name}")


def _find_near(text: str, gpus: Sequence[GpuType]) -> str:
    ids = [gpu.id for gpu in gpus]
    near = [known for known in ids if text.lower() in known.lower()] or get_close_matches(text, ids, cutoff=0.3)
    return ", ".join(map(repr, near[:MOST_NEAR])) or "nothing"


def price_machine(gpu: GpuType, count: int) -> float:
    """USD per hour of so many on one machine. Raises GuardRefused where there is no price."""
    if gpu.price.secure <= 0:
        raise GuardRefused(f"the catalog has no price for {gpu.id}: nothing is ordered without one")
    return gpu.price.secure * count


def choose_data_center(
    data_centers: Sequence[DataCenter], wanted: str | None, volume: NetworkVolume | None
) -> str | None:
    """The one that it has to be, if it has to be one. Raises GuardRefused."""
    if wanted is not None and all(place.id != wanted for place in data_centers):
        near = get_close_matches(wanted.upper(), [place.id for place in data_centers], n=3, cutoff=0.3)
        raise GuardRefused(f"--datacenter {wanted!a} is not in the catalog; near it: {', '.join(near) or 'nothing'}")
    if volume is None:
        return wanted
    if wanted not in (None, volume.data_center):
        raise GuardRefused(
            f"--datacenter {wanted}: network volume {volume.id} is in {volume.data_center}, and a pod has to be where "
            "its volume is: leave --datacenter out, or take another volume"
        )
    return volume.data_center


def choose_places(gpu: GpuType, count: int, only: str | None) -> list[Place]:
    """Where to try, most stock first. Raises NoCapacity if the catalog has none there."""
    places = [Place(place.id, place.availability) for place in gpu.places if only in (None, place.id)]
    if not places:
        where = f"in {only}" if only is not None else "in any data center"
        raise NoCapacity(
            f"no machine with {count} x {gpu.id} is free {where}: {_say_elsewhere(gpu.places)}; "
            f"`catalog --count {count}` tells how that changes"
        )
    return places


def _say_elsewhere(places: Sequence[Stock]) -> str:
    found = ", ".join(f"{place.id} ({place.availability})" for place in places)
    return f"there are some in {found}" if found else "there are none elsewhere, either"
