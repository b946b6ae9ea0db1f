"""The JSON Schemas against the models that they are made of, and the command that prints them."""

import json
from typing import get_args

import pytest
import typer
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

import jobs.cli
import jobs.schema_cli
from jobs import events
from jobs.errors import RequestInvalid
from jobs.pieces import StoredPiece
from jobs.request import GenerateRequest
from jobs.result import Result
from jobs.schema import DRAFT, event_schema, request_schema, result_schema

SCHEMAS = {"request": request_schema(), "event": event_schema(), "result": result_schema()}
PROMPT = {"prompt": "a red kite"}
REQUEST = GenerateRequest(**PROMPT).resolve()

VALID = {
    "prompt": ["x", " x\n", "\N{KITE}" * 20_000],
    "steps": [1, 50, 1000],
    "preview_every": [0, 1, 1000],
    "checkpoint_every": [0, 1000],
    "mode": ["auto", "ulysses", "tensor"],
    "precision": ["auto", "bf16", "nvfp4", "fp8"],
    "attention": ["auto", "sdpa", "cudnn", "flash", "efficient", "fa3", "fa3-fp8", "sage"],
    "deadline_s": [0.001, 3, 30 * 24 * 3600, None],
    "first_frame": ["inputs/kite.png", "inputs/_", None],
    "last_frame": ["inputs/K..png", "inputs/" + "a" * 493],
    "preempt": [True, False],
    "aspect": ["16:9", "1:4", "4:1", "400:101", None],
    "short_side": [32, 33, 4096, None],
    "frames": [22, 39, 124, 362, None],
    "seconds": [0.01, 5, 15, 362 / 24, None],
    "seed": [0, 2**63 - 1, None],
}
WRONG = {
    "prompt": ["", " \n\t", "x" * 20_001, 3, None],
    "steps": [0, 1001, 2.5, "2", True, None],
    "preview_every": [-1, 1001, "5"],
    "checkpoint_every": [-1, 1001],
    "mode": ["", "Tensor", "fast", None],
    "precision": ["fp16", 4],
    "attention": ["hyper", "FA3", None],
    "deadline_s": [0, -1, 30 * 24 * 3600 + 1, "soon"],
    "first_frame": ["kite.png", "inputs/", "inputs/.", "inputs/a/b.png", "inputs/a.png\n", "x inputs/a.png", 3],
    "last_frame": ["inputs/\N{KITE}.png", "inputs/" + "a" * 494],
    "preempt": ["yes", 1, None],
    "width": [100, 0, -32, 4128, 64.5],
    "height": [33, 1_000_000],
    "aspect": ["wide", "16:9\n", "0:1", "16/9", "01:1", "10000:9999"],
    "short_side": [31, 4097],
    "frames": [0, 5, 21, 40, 363, 379, "39"],
    "seconds": [0, -1, 15.09, "long"],
    "seed": [-1, 2**63, 0.5],
    "stepz": [3],
    "version": [2],
}
OF_MODELS_ALONE = [
    {"aspect": "9:1"},
    {"width": 64},
    {"width": 64, "height": 64, "aspect": "1:1"},
    {"frames": 39, "seconds": 2.0},
]

EVENTS = [
    events.Queued(queue="default", request=REQUEST),
    events.Started(attempt=1, worker="w"),
    events.TextEncoded(tokens=9, seconds=0.5),
    events.StepDone(step=1, steps=2, sigma=1.0, seconds=0.1),
    events.PreviewReady(step=1, key="job/attempts/1/preview.png"),
    events.CheckpointSaved(step=1, key="job/attempts/1/checkpoint"),
    events.StreamOpened(segments=3, playlist_key="job/attempts/1/playlist.m3u8"),
    events.SegmentReady(index=0, key="s", duration_s=0.7, playlist_key="p"),
    events.Finished(attempt=1, store_url="s3://b", result_key="r", video_key="v", report_key="p", playlist_key=None),
    events.AttemptLost(attempt=1, reason="rank 1 died", charge="fatal"),
    events.Failed(attempt=1, cause="deadline", reason="too late"),
    events.Canceled(attempt=0),
    events.Dead(attempt=3, losses=[events.Loss(attempt=1, worker="w", kind="fatal", reason="rank 1 died")]),
    events.Retried(),
    events.Unknown(told="'teleported', version 1"),
]
PIECE = StoredPiece(key="job/attempts/1/video.mp4", size_bytes=1, sha256="0")
RESULT = Result(
    job_id="job", attempt=1, request=REQUEST, video_key="v", report_key="r", playlist_key=None, pieces=[PIECE]
)


def each(values):
    return [pytest.param(name, value, id=f"{name}-{value!r}"[:60]) for name in values for value in values[name]]


def fits(subject, told):
    return Draft202012Validator(SCHEMAS[subject]).is_valid(told)


@pytest.mark.parametrize(("name", "value"), each(VALID))
def test_a_valid_field_is_valid_to_schema_and_program(name, value):
    fields = PROMPT | {name: value}
    assert fits("request", fields)
    GenerateRequest.parse(fields)


@pytest.mark.parametrize(("name", "value"), each(WRONG))
def test_a_wrong_field_is_refused_by_schema_and_program(name, value):
    fields = PROMPT | {name: value}
    assert not fits("request", fields)
    with pytest.raises(RequestInvalid) as refusal:
        GenerateRequest.parse(fields)
    assert any(line.startswith(name) for line in str(refusal.value).splitlines())


def test_a_request_without_a_prompt_is_refused_by_both():
    assert not fits("request", {})
    with pytest.raises(RequestInvalid, match="prompt is missing"):
        GenerateRequest.parse({})


@pytest.mark.parametrize("fields", OF_MODELS_ALONE)
def test_what_fields_say_together_only_the_program_checks(fields):
    assert fits("request", PROMPT | fields)
    with pytest.raises(RequestInvalid):
        GenerateRequest.parse(PROMPT | fields)


def test_every_field_of_a_request_is_tried_and_described():
    properties = SCHEMAS["request"]["properties"]
    assert properties.keys() == (VALID.keys() | {"width", "height"}) == WRONG.keys() - {"stepz", "version"}
    for name, field in properties.items():
        described = SCHEMAS["request"]["$defs"][field["$ref"].rpartition("/")[2]] if "$ref" in field else field
        assert described["description"], name


def test_every_kind_of_event_is_valid():
    kinds = {kind.model_fields["kind"].default for kind in get_args(get_args(events.Event)[0])}
    assert {event.kind for event in EVENTS} == kinds
    for event in EVENTS:
        assert fits("event", json.loads(event.model_dump_json())), event


@pytest.mark.parametrize(
    "change", [{"kind": "teleported"}, {"version": 99}, {"step": "1"}, {"step": -1}, {"kind": "started"}]
)
def test_a_wrong_event_is_refused(change):
    told = EVENTS[3].model_dump() | change
    assert not fits("event", told)


def test_a_result_is_valid_also_one_of_a_request_that_is_older():
    told = json.loads(RESULT.model_dump_json())
    assert fits("result", told)
    old = told["request"] | {"version": 1}
    del old["attention"]
    assert fits("result", told | {"request": old})
    assert not fits("result", told | {"request": old | {"frames": 40}})
    assert not fits("result", told | {"pieces": [{"key": "k"}]})


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one_and_tells_its_name_and_version(name):
    schema = SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DRAFT == Draft202012Validator.META_SCHEMA["$id"]
    assert schema["$id"] == f"urn:h3render:{name}:{schema['version']}"
    assert schema["title"] == f"h3render {name}"
    assert schema["version"] == {"request": 2, "event": 1, "result": 1}[name]


@pytest.mark.parametrize(("arguments", "name"), [([], "request"), *([[name], name] for name in SCHEMAS)])
def test_the_command_prints_a_schema(arguments, name):
    app = typer.Typer()
    for module in (jobs.schema_cli, jobs.cli):
        app.add_typer(module.app)
    done = CliRunner().invoke(app, ["schema", *arguments])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == SCHEMAS[name]


def test_the_command_refuses_what_has_no_schema():
    assert CliRunner().invoke(jobs.schema_cli.app, ["job"]).exit_code == 2
