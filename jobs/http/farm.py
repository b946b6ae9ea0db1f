"""What every part of the service works with."""

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request
from redis.asyncio import Redis

from jobs.async_client import AsyncClient
from jobs.http.rates import Rates
from jobs.http.settings import ServeSettings
from jobs.http.store_threads import StoreThreads
from jobs.http.tokens import Tokens
from jobs.http.webhooks.settings import WebhookSettings


@dataclass(frozen=True, slots=True)
class Farm:
    """One farm: its queue, its store, and who may use them."""

    client: AsyncClient
    store: StoreThreads
    settings: ServeSettings
    tokens: Tokens | None  # None: whoever is on this machine
    rates: Rates
    webhooks: WebhookSettings | None  # None: nobody is called

    @property
    def redis(self) -> Redis:
        return self.client.redis


async def farm_of(request: Request) -> Farm:  # not `def`: that costs each request a way through the thread pool
    return cast(Farm, request.app.state.farm)


FarmOf = Annotated[Farm, Depends(farm_of)]
