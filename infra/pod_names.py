"""What our pods are called: `PREFIX-FLEET-SLOT-TOKEN`. RunPod's names may repeat; the token makes ours unique."""

import re
import secrets

from infra.errors import GuardRefused

TOKEN_BYTES = 8
SLOT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,14}[a-z0-9])?")
FLEET = re.compile(r"[a-z0-9]{1,12}")
TOKEN = re.compile(rf"[0-9a-f]{{{2 * TOKEN_BYTES}}}")
POD_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def make_token() -> str:
    return secrets.token_hex(TOKEN_BYTES)


def make_name(prefix: str, fleet: str, slot: str, token: str) -> str:
    return f"{prefix}-{fleet}-{slot}-{token}"


def check_slot(text: str) -> str:
    """Raises GuardRefused for what would make a name that RunPod may not take."""
    if not SLOT.fullmatch(text):
        raise GuardRefused(
            f"--name {text!a}: use 1 to 16 lower-case letters, digits, dots and hyphens, such as 'render'"
        )
    return text


def is_ours(name: str, prefix: str) -> bool:
    """By its name alone. Whose among ours is the fleet's part."""
    return name.startswith(f"{prefix}-")


def check_pod_id(text: str) -> str:
    """Raises GuardRefused for what is no id of a pod."""
    if not POD_ID.fullmatch(text):
        raise GuardRefused(f"{text!a} is no id of a pod: `h3render pods list` tells them")
    return text


def fleet_of(name: str, prefix: str) -> str | None:
    """The part of the name that says whose pod it is among ours; None for another's."""
    parts = name.removeprefix(f"{prefix}-").split("-")
    return parts[0] if is_ours(name, prefix) and len(parts) >= 3 else None
