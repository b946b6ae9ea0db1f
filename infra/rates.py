"""What RunPod's headers say of the calls that an account has left, and how long to pause by that. No numbers of ours:
quotas differ between accounts."""

import re
from collections.abc import Mapping

SCARCE = 0.2  # of a window's quota: with less left, the rest is spread over the rest of the window
LONGEST_PAUSE_S = 60.0

_MEMBER = re.compile(r'"([^"]*)"((?:;[a-z]+=\d+)*)')
_PARAMETER = re.compile(r";([a-z]+)=(\d+)")


def find_pause_s(headers: Mapping[str, str]) -> float:
    """Seconds before the next call; 0 while every window has enough left, or nothing is said.

    headers  `RateLimit-Policy: "minute";q=60;w=60` and `RateLimit: "minute";r=9;t=30`
    """
    quotas, left = (_parse(headers.get(name, "")) for name in ("ratelimit-policy", "ratelimit"))
    pauses = [_pause_in_window(quotas[name].get("q", 0), left[name]) for name in quotas.keys() & left.keys()]
    return min(max(pauses, default=0.0), LONGEST_PAUSE_S)


def _pause_in_window(quota: int, left: Mapping[str, int]) -> float:
    remaining, resets_in_s = left.get("r", quota), left.get("t", 0)
    return resets_in_s / max(remaining, 1) if remaining < SCARCE * quota else 0.0


def _parse(header: str) -> dict[str, dict[str, int]]:
    """Of a structured list: each member's name, with its parameters."""
    return {
        name: {key: int(value) for key, value in _PARAMETER.findall(parameters)}
        for name, parameters in _MEMBER.findall(header)
    }


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, if the header has them."""
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdecimal() else None
