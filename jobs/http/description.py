"""The service's description of itself, OpenAPI 3.1, of which `/docs` is made."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from jobs.http.bodies import FORMS
from jobs.http.wishes import VideoWish

DOCS = "/docs"
TEXT = """
Renders of MiniMax H3: text to video with sound. The paths of `/v1/videos` are those of OpenAI's clients; what is ours
besides: events as they happen, a stream that plays while it is still decoded, cancel.
"""


def describe(app: FastAPI) -> dict[str, Any]:
    """Made once."""
    if app.openapi_schema is None:
        told = get_openapi(title=app.title, version="1", description=TEXT, routes=app.routes)
        _add_wish(told)
        _remove_422(told)
        told["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        told["security"] = [{"token": []}]
        app.openapi_schema = told
    return app.openapi_schema


def _add_wish(told: dict[str, Any]) -> None:
    """The body of a submit, which is read by hand: it comes in several forms."""
    wish = VideoWish.model_json_schema(ref_template="#/components/schemas/{model}")
    told["components"]["schemas"] |= wish.pop("$defs", {}) | {"VideoWish": wish}
    body = {"schema": {"$ref": "#/components/schemas/VideoWish"}}
    told["paths"]["/v1/videos"]["post"]["requestBody"] = {
        "required": True,
        "content": dict.fromkeys(("application/json", *FORMS), body),
    }


def _remove_422(told: dict[str, Any]) -> None:
    """FastAPI's own answer to what it cannot read, which here is a 400."""
    for path in told["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        told["components"]["schemas"].pop(name, None)
