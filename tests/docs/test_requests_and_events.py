"""docs/requests-and-events.md against the models: every field, default, limit, kind of event, and each example."""

import json
import os
import subprocess
import sys
from typing import get_args

import pytest
from jsonschema import Draft202012Validator

from jobs import events
from jobs.client import Client
from jobs.errors import RequestTooNew
from jobs.events import Event
from jobs.job_status import JobStatus
from jobs.offers import Offer
from jobs.request import (
    DEFAULT_ASPECT,
    DEFAULT_SECONDS,
    DEFAULT_SHORT_SIDE,
    VERSION,
    GenerateRequest,
    ResolvedRequest,
    parse_resolved,
)
from jobs.result import Result
from jobs.schema import event_schema, request_schema, result_schema
from jobs.workers import write_worker
from tests.docs.pages import read_table, section, take
from tests.docs.terminal import Terminal
from tests.jobs.records import record

PAGE = "requests-and-events.md"
SCHEMA = take(PAGE, "schema")
REFUSED, REFUSED_TEXT, PICTURE = (take(PAGE, name) for name in ("refused.py", "refused.txt", "picture.py"))
REQUEST, RESOLVED, STATUS, RESULT = (
    json.loads(take(PAGE, f"{name}.json")) for name in ("request", "resolved", "status", "result")
)
EVENTS = [json.loads(line) for line in take(PAGE, "events.jsonl").splitlines()]
# What is chosen where neither this field nor another one says it.
CHOSEN = {
    "aspect": DEFAULT_ASPECT,
    "short_side": str(DEFAULT_SHORT_SIDE),
    "frames": f"of {DEFAULT_SECONDS:g} seconds",
    "seconds": f"{DEFAULT_SECONDS:g}",
    "seed": "drawn",
}
TYPES = {"string": "text", "integer": "whole number", "number": "number"}


def names(cell):
    """Those in a table's cell."""
    return [name.strip("`") for name in cell.split(", ")] if cell else []


def tell_limits(field):
    """Of a field's schema, as the table has them."""
    field = field["anyOf"][0] if "anyOf" in field else field
    if "$ref" in field:
        field = request_schema()["$defs"][field["$ref"].rpartition("/")[2]]
    if field["type"] == "boolean":
        return "`true`, `false`"
    if field.get("enum") and field["type"] == "string":
        return ", ".join(f"`{value}`" for value in field["enum"])
    return ", ".join([TYPES[field["type"]], *_tell_range(field)])


def _tell_range(field):
    if "maxLength" in field:
        yield f"at most {field['maxLength']} characters"
    if "minimum" in field:
        yield f"{field['minimum']} to {field['maximum']}"
    if "exclusiveMinimum" in field:
        yield f"above {field['exclusiveMinimum']}"
        yield f"to {field['maximum']:.2f}".removesuffix(".00")
    if "multipleOf" in field:
        yield f"a multiple of {field['multipleOf']}"
    if values := field.get("enum"):
        assert [value % 17 for value in values] == [5] * len(values)
        yield f"17n + 5, {values[0]} to {values[-1]}"
    yield from [PATTERNS[field["pattern"]]] if "pattern" in field else []


PATTERNS = {
    r"\S": "not blank",
    request_schema()["properties"]["first_frame"]["anyOf"][0]["pattern"]: "a key",
    request_schema()["properties"]["aspect"]["anyOf"][0]["pattern"]: "a ratio",
}


def tell_default(name):
    field = GenerateRequest.model_fields[name]
    if field.is_required():
        return "required"
    if name in CHOSEN or field.default is None:
        return CHOSEN.get(name, "none")
    return str(field.default) if type(field.default) is int else f"`{json.dumps(field.default)}`".replace('"', "")


def test_each_field_of_a_request_is_told_with_its_default_and_limits():
    told = {cells[0].strip("`"): cells[1:3] for cells in read_table(section(PAGE, "A request"))}
    fields = request_schema()["properties"]
    assert told == {name: [tell_default(name), tell_limits(fields[name])] for name in GenerateRequest.model_fields}


def test_what_is_chosen_is_what_the_table_says():
    chosen = GenerateRequest(prompt="x").resolve()
    asked = GenerateRequest(prompt="x", aspect=CHOSEN["aspect"], short_side=768, seconds=5.0, seed=chosen.seed)
    assert asked.resolve() == chosen


def test_a_wrong_request_prints_what_the_page_says():
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True)
    assert done.stdout == REFUSED_TEXT


def test_the_request_of_the_page_becomes_what_the_page_says():
    Draft202012Validator(request_schema()).validate(REQUEST)
    assert json.loads(GenerateRequest.parse(REQUEST).resolve().model_dump_json()) == RESOLVED
    assert parse_resolved(RESOLVED).version == RESOLVED["version"] == VERSION
    assert list(RESOLVED) == list(ResolvedRequest.model_fields)


def test_a_picture_is_uploaded_and_named(redis, redis_url, file_store_url, tmp_path):
    (tmp_path / "kite.png").write_bytes(b"\x89PNG\r\n\x1a\n a picture")
    environment = os.environ | {"REDIS_URL": redis_url, "H3_STORE_URL": file_store_url}
    done = subprocess.run(
        [sys.executable, "-c", PICTURE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    [job_id] = redis.lrange("rq:queue:default", 0, -1)
    assert Client(redis).job(job_id.decode()).request().first_frame == done.stdout.strip()


def test_the_commands_of_the_page_print_what_it_says(tmp_path):
    Terminal(tmp_path, {}).run(SCHEMA)
    assert json.loads((tmp_path / "event.json").read_text()) == event_schema()
    assert json.loads((tmp_path / "result.json").read_text()) == result_schema()


def test_each_kind_of_event_is_told_with_its_fields():
    told = {cells[0].strip("`"): names(cells[1]) for cells in read_table(section(PAGE, "Events"))}
    kinds = get_args(get_args(Event)[0])
    assert told == {
        kind.model_fields["kind"].default: [name for name in kind.model_fields if name not in ("version", "id", "kind")]
        for kind in kinds
    }
    for field, kind in (("charge", events.AttemptLost), ("cause", events.Failed)):
        for value in get_args(kind.model_fields[field].annotation):
            assert f"`{value}`" in section(PAGE, "Events")
    assert all(f"`{name}`" in section(PAGE, "Events") for name in events.Loss.model_fields)


def test_the_last_events_are_told_to_be_that():
    lasting = {
        kind.model_fields["kind"].default for kind in get_args(get_args(Event)[0]) if kind.model_construct().is_last
    }
    table = read_table(section(PAGE, "Events"))
    assert {cells[0].strip("`") for cells in table if "Last" in cells[2]} == lasting


@pytest.mark.parametrize("told", EVENTS, ids=[told["kind"] for told in EVENTS])
def test_the_events_of_the_page_are_events(told):
    Draft202012Validator(event_schema()).validate(told)
    [event] = events.parse_entries([(b"1764512345678-0", {b"event": json.dumps(told).encode()})])
    assert (event.kind, event.id) == (told["kind"], "1764512345678-0")


def test_each_field_of_a_status_is_told():
    told = [name for cells in read_table(section(PAGE, "Status")) for name in names(cells[0])]
    assert told == list(JobStatus.model_fields) == list(STATUS)
    JobStatus.model_validate(STATUS)


def test_each_field_of_a_result_is_told():
    told = [name for cells in read_table(section(PAGE, "result.json")) for name in names(cells[0])]
    assert told == list(Result.model_fields) == list(RESULT)
    Draft202012Validator(result_schema()).validate(RESULT)
    Result.model_validate_json(json.dumps(RESULT))


def test_a_later_request_waits_for_a_worker_that_reads_it(redis):
    text = section(PAGE, "Versions")
    write_worker(redis, record(redis, offer=Offer(request_version=1)))
    waiting_for = Client(redis).submit(REQUEST).status().waiting_for
    assert waiting_for.removeprefix("waiting: ") in text
    assert parse_resolved({name: value for name, value in RESOLVED.items() if name != "attention"} | {"version": 1})
    with pytest.raises(RequestTooNew):
        parse_resolved(RESOLVED | {"version": VERSION + 1})
