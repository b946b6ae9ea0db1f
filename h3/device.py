"""What is asked of a device, be it a GPU or the CPU: that its work is done, and how much memory that took."""

import torch


def synchronize(device: torch.device) -> None:
    """Wait for what it was given; a CPU has done it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def take_peak(device: torch.device) -> int:
    """The most bytes of GPU memory since the last time; 0 on the CPU."""
    if device.type != "cuda":
        return 0
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak
