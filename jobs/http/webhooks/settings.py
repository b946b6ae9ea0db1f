"""What the service is told about webhooks."""

import ssl
from dataclasses import dataclass, field

import httpx2

from jobs.http.webhooks.addresses import AddressPolicy

BACKOFF_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 6 * 3600.0)  # after each failed try; then it is given up


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """How notices are signed, and whom they may reach."""

    secret: bytes = field(repr=False)  # of `parse_secret`
    policy: AddressPolicy = field(default_factory=AddressPolicy)
    timeout_s: float = 10.0  # of a try, from the look-up of the host's name to the head of the answer
    describe_timeout_s: float = 20.0  # to find out what there is to tell; with the other well within a lease
    backoff_s: tuple[float, ...] = BACKOFF_S
    # Trusts what SSL_CERT_FILE or SSL_CERT_DIR name, else what this machine trusts. Made once: it reads them all.
    tls: ssl.SSLContext = field(default_factory=httpx2.create_ssl_context, repr=False)
