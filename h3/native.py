"""Whether a device multiplies a number format natively and rightly: tried, never read off a name or version."""

from collections.abc import Callable

import torch


def find_obstacle(measure: Callable[[torch.device], float], device: torch.device, tolerance: float) -> str | None:
    """What speaks against it; None if nothing does.

    `measure` multiplies natively, and gives the relative L2 distance from the product that is right.
    """
    try:
        error = measure(device)
    except Exception as exc:  # torch, cuBLAS and drivers say "not here" by many types
        return f"{type(exc).__name__}: {str(exc).partition(chr(10))[0]}"
    return None if error <= tolerance else f"off by {error:.3g}, allowed {tolerance}"


def is_right(
    measure: Callable[[torch.device], float], device: torch.device, tolerance: float, tell: Callable[[str], object]
) -> bool:
    """Whether nothing speaks against it on a GPU, where `tell` hears what does. No CPU has anything of the kind."""
    if device.type != "cuda":
        return False
    obstacle = find_obstacle(measure, device, tolerance)
    if obstacle is not None:
        tell(obstacle)
    return obstacle is None
