"""A pod's last wish: the command that ends it from inside. It may not work; then it is asked again later."""

import subprocess
from collections.abc import Sequence

import structlog

LIMIT_S = 30.0
SAID_CHARACTERS = 500

log = structlog.get_logger(__name__)


def end_pod(command: Sequence[str]) -> None:
    """Never raises. If it works, this machine is gone soon."""
    if not command:
        log.warning("this pod cannot end itself: there is no runpodctl, and no H3_POD_END_COMMAND")
        return
    try:
        done = subprocess.run(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        log.warning("the command that ends this pod did not work", program=command[0], why=str(exc))
        return
    log.info("asked for this pod's end", exit_code=done.returncode, said=done.stdout.strip()[-SAID_CHARACTERS:])
