"""The service, put together of its parts."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi_offline import FastAPIOffline
from starlette.middleware import Middleware

from jobs.async_client import AsyncClient
from jobs.connection import connect, connect_async
from jobs.http import background, health, videos
from jobs.http.bodies import FORMS
from jobs.http.farm import Farm
from jobs.http.headers import SafeHeaders
from jobs.http.page import routes as page
from jobs.http.rates import Rates
from jobs.http.refusals import add_handlers
from jobs.http.settings import ServeSettings
from jobs.http.tokens import read_tokens
from jobs.http.webhooks.addresses import AddressPolicy
from jobs.http.webhooks.settings import WebhookSettings
from jobs.http.webhooks.signature import parse_secret
from jobs.http.wishes import VideoWish
from jobs.store import open_store

DOCS = "/docs"
DESCRIPTION = """
Renders of MiniMax H3: text to video with sound. The paths of `/v1/videos` are those of OpenAI's clients; what is ours
besides: events as they happen, a stream that plays while it is still decoded, cancel.
"""


def build_app(settings: ServeSettings) -> FastAPI:
    """The service; what it needs is opened when it starts. Raises SettingsInvalid and StoreUnavailable."""
    tokens = None if settings.tokens_file is None else read_tokens(settings.tokens_file)
    rates = Rates(settings.request_limit, settings.submit_limit, settings.most_streams)
    store, webhooks = open_store(settings.store_url), _read_webhooks(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncClient(await connect_async(settings), store) as client:
            app.state.farm = Farm(client, store, settings, tokens, rates, webhooks)
            with connect(settings) as redis:
                async with background.running(app.state.farm, redis):
                    yield

    app = FastAPIOffline(
        docs_url=DOCS,
        redoc_url=None,
        title="h3render",
        summary="A render farm for MiniMax H3",
        description=DESCRIPTION,
        lifespan=lifespan,
        max_body_size=settings.most_body_bytes,
        middleware=[Middleware(SafeHeaders)],
    )
    for router in (videos.router, health.router, page.router):
        app.include_router(router)
    add_handlers(app)
    app.openapi = _describing(app)  # type: ignore[method-assign]  # as FastAPI's manual has it
    return app


def _read_webhooks(settings: ServeSettings) -> WebhookSettings | None:
    if settings.webhook_secret is None:
        return None
    secret = parse_secret(settings.webhook_secret.get_secret_value())
    return WebhookSettings(secret, AddressPolicy(allow_private=settings.webhook_private))


def _describing(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The OpenAPI document: with the body of a wish, which is read by hand, and without the 422 that never comes."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            told = get_openapi(title=app.title, version="1", description=app.description, routes=app.routes)
            schemas = told["components"]["schemas"]
            wish = VideoWish.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= wish.pop("$defs", {}) | {"VideoWish": wish}
            body = {"schema": {"$ref": "#/components/schemas/VideoWish"}}
            told["paths"]["/v1/videos"]["post"]["requestBody"] = {
                "required": True,
                "content": dict.fromkeys(("application/json", *FORMS), body),
            }
            for path in told["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            _add_security(told)
            app.openapi_schema = told
        return app.openapi_schema

    return describe


def _add_security(told: dict[str, Any]) -> None:
    told["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    told["security"] = [{"token": []}]
