"""Files that an order takes in: the public key for SSH, and variables for the pod."""

import os
import re
from pathlib import Path

from infra.errors import GuardRefused

PUBLIC_KEY = re.compile(r"(ssh|ecdsa|sk)-\S+ \S+([ \t].*)?")
MOST_FILE_BYTES = 64 << 10


def read_public_key(path: Path) -> str:
    """One key or more, one a line. Raises GuardRefused for anything else, above all for a private key."""
    text = _read(path, "--ssh-public-key")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "PRIVATE KEY" in text:
        raise GuardRefused(f"--ssh-public-key {path}: this is the private key, which goes nowhere: name the .pub file")
    if not lines:
        raise GuardRefused(f"--ssh-public-key {path}: the file is empty: name the .pub file of a key")
    for number, line in enumerate(lines, 1):
        if not PUBLIC_KEY.fullmatch(line):
            raise GuardRefused(
                f"--ssh-public-key {path}: line {number} is no public key: it begins with its kind, ssh-ed25519 AAAA..."
            )
    return "\n".join(lines)


def read_env_file(path: Path) -> dict[str, str]:
    """Lines NAME=VALUE; empty ones and those that begin with # are left out. Raises GuardRefused, without a value."""
    if os.name == "posix" and path.exists() and path.stat().st_mode & 0o077:
        raise GuardRefused(f"--env-file {path}: others may read it, and it may hold secrets: chmod 600 {path}")
    env: dict[str, str] = {}
    for number, line in enumerate(_read(path, "--env-file").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, value = line.partition("=")
        if not separator or name.strip() in env:
            what = "twice" if separator else "not as NAME=VALUE"
            raise GuardRefused(f"--env-file {path}: line {number} has a variable {what}")
        env[name.strip()] = value.strip()
    return env


def _read(path: Path, flag: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
    except OSError as exc:
        raise GuardRefused(f"{flag} {path}: {exc.strerror or exc}") from exc
    if len(content) > MOST_FILE_BYTES:
        raise GuardRefused(f"{flag} {path}: the file has more than {MOST_FILE_BYTES >> 10} KiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise GuardRefused(f"{flag} {path}: the file is no text in UTF-8: save it so") from None
