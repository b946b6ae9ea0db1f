"""JSON Schema (draft 2020-12) of what people send and read: requests, events, results. Made of the models themselves.

A schema knows what one field may be. What fields say together, and the ratio of an aspect, only the models check.
"""

from pydantic import JsonValue, TypeAdapter

from jobs.events import Event, Queued
from jobs.request import VERSION, GenerateRequest
from jobs.result import Result

DRAFT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, JsonValue]


def request_schema() -> Schema:
    """Of a GenerateRequest: what `jobs.Client.submit` takes, as JSON."""
    return _publish("request", VERSION, GenerateRequest.model_json_schema())


def event_schema() -> Schema:
    """Of each piece of news of a job; its `kind` tells which fields it has."""
    adapter: TypeAdapter[Event] = TypeAdapter(Event)
    return _publish("event", Queued.model_fields["version"].default, adapter.json_schema(mode="serialization"))


def result_schema() -> Schema:
    """Of `<job_id>/result.json` in the store."""
    return _publish("result", Result.model_fields["version"].default, Result.model_json_schema(mode="serialization"))


def _publish(name: str, version: int, schema: Schema) -> Schema:
    head: Schema = {"$schema": DRAFT, "$id": f"urn:h3render:{name}:{version}", "title": f"h3render {name}"}
    return head | {"version": version} | {key: value for key, value in schema.items() if key != "title"}
