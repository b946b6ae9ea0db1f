"""What a client needs: requests, events, the queue, the store. Installs without a GPU stack.

`from jobs import Client, AsyncClient, GenerateRequest`: loaded when they are asked for, so that whoever needs one part
of this package does not wait for Redis' library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs.async_client import AsyncClient as AsyncClient
    from jobs.client import Client as Client
    from jobs.request import GenerateRequest as GenerateRequest

_HOMES = {"AsyncClient": "jobs.async_client", "Client": "jobs.client", "GenerateRequest": "jobs.request"}

__all__ = ["AsyncClient", "Client", "GenerateRequest"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'jobs' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
