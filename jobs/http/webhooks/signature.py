"""Signs what is sent as https://www.standardwebhooks.com says, so that receivers' libraries can tell who sent it."""

import base64
import binascii
import hashlib
import hmac

from jobs.errors import SettingsInvalid

_PREFIX = "whsec_"
_LEAST_BYTES, _MOST_BYTES = 24, 64  # as the specification has it


def parse_secret(text: str) -> bytes:
    """The key that a secret stands for. Raises SettingsInvalid, without telling the secret."""
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise SettingsInvalid(
            f"the webhook secret is not {_PREFIX} and the base64 form of {_LEAST_BYTES} to {_MOST_BYTES} bytes: "
            f'make one with `echo "{_PREFIX}$(openssl rand -base64 32)"` and give it to the receivers'
        )
    return key


def sign(secret: bytes, webhook_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The headers that tell a receiver who sent a body, when, and whether it has had it before."""
    signed = f"{webhook_id}.{timestamp_s}.".encode() + body
    mac = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return {"webhook-id": webhook_id, "webhook-timestamp": str(timestamp_s), "webhook-signature": f"v1,{mac}"}
