"""What RunPod answers: read, judged, and refused without showing what is nobody's business."""

import json
import traceback
from datetime import timedelta

import pytest

from infra.answers import DataCenters, Pod, PodPage, parse_answer
from infra.errors import (
    AccessDenied,
    AnswerInvalid,
    BalanceTooLow,
    ContractBroken,
    KeyRefused,
    NotFound,
    RateLimited,
    RefusedByRunPod,
    RequestRejected,
    ServerFailed,
    VersionRetired,
)
from infra.log_stream import parse_events, split_lines
from infra.rates import find_pause_s, read_retry_after
from infra.refusals import describe_refusal, judge_status
from infra.transport import choose_pause_s
from infra.views import describe_pod, pod_to_dict
from tests.infra.pods import NOW, SSH, TOKEN, make_body, make_pod

CANARY = "canary-of-env"


def write_pod(**fields):
    return json.dumps(json.loads(make_pod().model_dump_json(by_alias=True)) | fields)


# --- pods


def test_env_of_a_pod_is_not_even_read():
    pod = parse_answer(Pod, write_pod(env={"SECRET": CANARY}), "get pod")
    assert CANARY not in f"{pod!r} {pod.env!r} {pod_to_dict(pod)} {describe_pod(pod, NOW)}"


def test_but_for_what_an_order_says_there_of_itself():
    env = make_body().env | {"SECRET": CANARY}
    pod = parse_answer(Pod, write_pod(env=env), "get pod")
    assert (pod.env.fleet, pod.env.token, pod.env.lease_until) == ("manual", TOKEN, NOW + timedelta(hours=6))
    assert "env" not in pod_to_dict(pod)


@pytest.mark.parametrize(
    "env",
    [
        {},
        None,
        [CANARY],
        {"FLEET_ID": CANARY, "FLEET_TOKEN": CANARY, "LEASE_UNTIL": CANARY},
        {"FLEET_ID": 1, "FLEET_TOKEN": ["x"], "LEASE_UNTIL": 1800000000},
        {"FLEET_ID": "a" * 13, "FLEET_TOKEN": TOKEN.upper(), "LEASE_UNTIL": "2026-11-30T12:00:00"},
        {"LEASE_UNTIL": "0001-01-01T00:00:00+23:00"},
    ],
)
def test_nonsense_there_is_as_good_as_nothing(env):
    pod = parse_answer(Pod, write_pod(env=env), "get pod")
    assert (pod.env.fleet, pod.env.token, pod.env.lease_until) == (None, None, None)


def test_what_is_missing_is_named_and_no_value_is_shown():
    written = json.loads(write_pod(env={"SECRET": CANARY}, cost=CANARY))
    del written["status"]
    with pytest.raises(AnswerInvalid, match=r"get pod: .*status: field required") as caught:
        parse_answer(Pod, json.dumps(written), "get pod")
    assert "cost: input should be a valid number" in str(caught.value)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("cost", ["NaN", "Infinity", "-1"])
def test_a_cost_that_is_no_amount_is_refused(cost):
    with pytest.raises(AnswerInvalid, match="cost"):
        parse_answer(Pod, write_pod().replace('"cost": 15.12', f'"cost": {cost}'), "get pod")


@pytest.mark.parametrize("body", ["[" * 100_000, '{"pods":' * 10_000, "", "<html>", "null"])
def test_what_nests_too_deep_or_is_no_json_is_refused(body):
    with pytest.raises(AnswerInvalid):
        parse_answer(PodPage, body, "list pods")


def test_both_versions_of_a_list_are_read():
    pod = json.loads(write_pod())
    pages = {"nextCursor": "x", "hasNextPage": True}
    assert parse_answer(PodPage, json.dumps({"pods": [pod]}), "list pods").pagination is None
    later = json.dumps(
        {"pods": [pod | {"gpu": {"id": "x", "count": 1, "vcpuCount": 8, "memory": 9}}], "pagination": pages}
    )
    assert parse_answer(PodPage, later, "list pods").pagination.next_cursor == "x"
    assert parse_answer(DataCenters, '{"dataCenters": [], "new": 1}', "list").data_centers == ()


@pytest.mark.parametrize(
    ("fields", "is_up", "has_failed"),
    [
        ({}, True, False),
        ({"runtime": {}}, False, False),
        ({"runtime": None}, False, False),
        ({"ssh": SSH | {"direct": None}}, False, False),
        ({"ssh": SSH | {"direct": None}, "ports": []}, True, False),
        ({"status": "STARTING"}, False, False),
        ({"status": "NAPPING"}, False, False),  # a word that is new is neither ready nor dead
        ({"status": "EXITED"}, False, True),
        ({"status": "ERROR"}, False, True),
        ({"status": "TERMINATED"}, False, True),
    ],
)
def test_a_pod_is_up_only_with_all_signs_of_it(fields, is_up, has_failed):
    pod = make_pod(**fields)
    assert (pod.is_up, pod.has_failed) == (is_up, has_failed)


def test_what_others_wrote_moves_no_cursor():
    assert "\x1b" not in "".join(describe_pod(make_pod(name="\x1b[2Jx", status="\x1b[1m", dataCenterId="\x1b"), NOW))


# --- refusals


@pytest.mark.parametrize(
    ("status", "kind", "exit_code", "may_repeat", "changed_nothing", "tries_next_place"),
    [
        (307, AnswerInvalid, 1, False, False, False),
        (400, RequestRejected, 5, False, True, True),
        (401, KeyRefused, 3, False, True, False),
        (402, BalanceTooLow, 5, False, True, False),
        (403, AccessDenied, 5, False, True, True),
        (404, NotFound, 1, False, True, False),
        (409, RefusedByRunPod, 5, False, True, False),
        (410, VersionRetired, 5, False, True, False),
        (413, RefusedByRunPod, 5, False, True, False),
        (422, ContractBroken, 5, False, True, False),
        (429, RateLimited, 1, True, True, False),
        (500, ServerFailed, 1, True, False, False),
        (503, ServerFailed, 1, True, False, False),
    ],
)
def test_a_status_decides_what_is_done(status, kind, exit_code, may_repeat, changed_nothing, tries_next_place):
    assert judge_status(status) is kind
    assert kind.exit_code == exit_code
    assert (kind.may_repeat, kind.changed_nothing, kind.tries_next_place) == (
        may_repeat,
        changed_nothing,
        tries_next_place,
    )


def test_what_runpod_says_is_told_with_what_is_missing_first():
    body = {"title": "x", "status": 422, "detail": "invalid", "errors": ["$: 'gpu' not allowed", "$: missing 'name'"]}
    assert describe_refusal(422, json.dumps(body).encode()).startswith(
        "RunPod answers 422: invalid; $: missing 'name'; $: 'gpu' not allowed: "
    )
    assert describe_refusal(502, b"<html>\x1b[2J") == "RunPod answers 502"


# --- pauses


@pytest.mark.parametrize(
    ("policy", "left", "pause_s"),
    [
        ("", "", 0),
        ('"minute";q=60;w=60', '"minute";r=12;t=30', 0),
        ('"minute";q=60;w=60', '"minute";r=10;t=30', 3),
        ('"minute";q=60;w=60', '"minute";r=0;t=12', 12),
        ('"minute";q=60;w=60, "hour";q=3000;w=3600', '"minute";r=60;t=60, "hour";r=100;t=1800', 18),
        ('"day";q=50000;w=86400', '"day";r=0;t=45012', 60),
        ("nonsense", '"minute";r=x', 0),
    ],
)
def test_calls_slow_down_when_few_are_left(policy, left, pause_s):
    assert find_pause_s({"ratelimit-policy": policy, "ratelimit": left}) == pytest.approx(pause_s)


@pytest.mark.parametrize(("text", "seconds"), [("7", 7.0), ("", None), ("soon", None), ("-1", None), ("²", None)])
def test_retry_after_is_read_in_seconds(text, seconds):
    assert read_retry_after({"retry-after": text}) == seconds


def test_a_pause_is_what_runpod_asks_for_or_a_random_part_of_a_growing_span():
    assert choose_pause_s(RateLimited("", retry_after_s=7), 1, 0.5) == 7.5
    assert choose_pause_s(RateLimited("", retry_after_s=4000), 1, 0.5) == 120.5
    assert [choose_pause_s(ServerFailed(""), tried, 1.0) for tried in (1, 2, 3, 10)] == [0.5, 1, 2, 20]
    assert choose_pause_s(ServerFailed(""), 5, 0.0) == 0


# --- logs


def test_lines_of_a_log_are_found_however_they_are_cut():
    stream = b'id: 1\r\ndata: {"ts":"2026-06-01T12:02:03Z","source":"container","line":"a"}\n\n: still here\n\n'
    stream += b'data:{"ts":"2026-06-01T12:02:04Z","source":"system","line":"b"}\n'
    for size in (1, 7, len(stream)):
        chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [line.line for line in parse_events(chunks)] == ["a", "b"]


def test_a_line_without_an_end_is_refused():
    with pytest.raises(AnswerInvalid, match="a line has more than"):
        list(split_lines([b"x" * (1 << 20), b"x"]))
