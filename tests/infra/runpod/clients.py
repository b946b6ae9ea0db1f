"""A plain HTTP client of the server, and a create that it accepts."""

import httpx2

from tests.infra.runpod.catalog import SERVER_EDITION
from tests.infra.runpod.server import RunPod


def client_of(runpod: RunPod) -> httpx2.Client:
    # Without TLS to check: to load the certificates takes longer than most of these tests.
    headers = {"Authorization": f"Bearer {runpod.key}"}
    return httpx2.Client(base_url=runpod.url, headers=headers, verify=False, trust_env=False, timeout=5.0)


def body(**fields: object) -> dict:
    """A create that RunPod accepts, with other fields on top."""
    return {"name": "h3-1", "image": "h3:1", "gpu": {"id": SERVER_EDITION, "count": 8}} | fields
