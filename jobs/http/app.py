"""The service, put together of its parts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware import Middleware

from jobs.async_client import AsyncClient
from jobs.connection import connect_async
from jobs.http import background, health, videos
from jobs.http.description import DOCS, describe
from jobs.http.farm import Farm
from jobs.http.headers import SafeHeaders
from jobs.http.page import routes as page
from jobs.http.rates import Rates
from jobs.http.refusals import add_handlers
from jobs.http.settings import ServeSettings
from jobs.http.store_threads import store_threads
from jobs.http.tokens import read_tokens
from jobs.http.webhooks.addresses import AddressPolicy
from jobs.http.webhooks.settings import WebhookSettings
from jobs.http.webhooks.signature import parse_secret
from jobs.store import open_store

ANSWER_TIMEOUT_S = 4.0  # of a Redis that hangs: a caller is told before they give up themselves


def build_app(settings: ServeSettings) -> FastAPI:
    """The service; what it needs is opened when it starts. Raises SettingsInvalid and StoreUnavailable."""
    tokens = None if settings.tokens_file is None else read_tokens(settings.tokens_file)
    rates = Rates(settings.request_limit, settings.submit_limit, settings.most_streams)
    store, webhooks = open_store(settings.store_url), _read_webhooks(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        redis = await connect_async(settings, answer_timeout_s=ANSWER_TIMEOUT_S, retries=1)
        async with (
            AsyncClient(redis, store) as client,
            store_threads(store) as threads,
            background.reaping(settings),
            background.calling_webhooks(Farm(client, threads, settings, tokens, rates, webhooks)) as farm,
        ):
            app.state.farm = farm
            yield

    app = FastAPIOffline(
        title="h3render",
        docs_url=DOCS,
        redoc_url=None,
        lifespan=lifespan,
        max_body_size=settings.most_body_bytes,
        middleware=[Middleware(SafeHeaders)],
    )
    for router in (videos.router, health.router, page.router):
        app.include_router(router)
    add_handlers(app)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]  # as FastAPI's manual has it
    return app


def _read_webhooks(settings: ServeSettings) -> WebhookSettings | None:
    if settings.webhook_secret is None:
        return None
    secret = parse_secret(settings.webhook_secret.get_secret_value())
    return WebhookSettings(secret, AddressPolicy(allow_private=settings.webhook_private))
