"""The service from its own description: asked whatever that allows, and much that it does not."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.jobs.http.conftest import WISH
from tests.jobs.http.serving import ADA, BOB

SECRET = b"a secret of the machine"
OPEN = "GET /healthz"  # to everybody
OPERATIONS = [
    "POST /v1/videos",
    "GET /v1/videos",
    "GET /v1/videos/{video_id}",
    "DELETE /v1/videos/{video_id}",
    "POST /v1/videos/{video_id}/cancel",
    "GET /v1/videos/{video_id}/content",
    "GET /v1/videos/{video_id}/events",
    "GET /v1/videos/{video_id}/hls/playlist.m3u8",
    "GET /v1/videos/{video_id}/hls/{attempt}/{name}",
    "GET /v1/models",
    OPEN,
]
every_operation = pytest.mark.parametrize("operation", OPERATIONS)


@pytest.fixture(scope="module")
def described(shared_service):
    """Every operation that the service describes."""
    import schemathesis  # here, because each test process would load it to collect

    description = schemathesis.openapi.from_url(f"{shared_service.url}/openapi.json")
    return {found.ok().label: found.ok() for found in description.get_all_operations()}


@pytest.fixture(scope="module")
def asking(full):
    """How many examples of each."""
    number = 300 if full else 15
    return settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@pytest.fixture
def job_id(finished, service):
    """Of ada; in the store there is what nobody is to get."""
    for key in ("inputs/secret.png", "other/attempts/1/secret.mp4"):
        service.store.put(key, SECRET, content_type="image/png")
    return finished


def draw(data, operation, job_id):
    """One of the calls that the description allows; often of that job, and of what lies beside it."""
    case = data.draw(operation.as_strategy())
    places = case.path_parameters or {}
    if "video_id" in places and data.draw(st.booleans()):
        places["video_id"] = data.draw(st.sampled_from([job_id, f"{job_id}%2f..%2fother", "inputs", f"{job_id}\0"]))
    if "name" in places and data.draw(st.booleans()):
        beside = ["init.mp4", "../../../other/attempts/1/secret.mp4", "..%2f..%2fresult.json", "../../result.json"]
        places["name"] = data.draw(st.sampled_from(beside))
    return case


def ask(case, token):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = case.call(headers=headers, timeout=20)
    assert SECRET not in answer.content
    return answer


def leads_nowhere(answer):
    """Whether there is no such path, as where a part of it has a slash."""
    return answer.status_code in (404, 405) and answer.json()["error"]["code"] == "http"


@every_operation
def test_whatever_is_asked_is_answered_as_described(described, asking, job_id, operation):
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    @asking
    @given(data=st.data())
    def check(data):
        case = draw(data, described[operation], job_id)
        # What goes with what in a wish, no schema tells.
        too_much = [positive_data_acceptance] if operation == "POST /v1/videos" else []
        case.validate_response(ask(case, ADA), excluded_checks=too_much)

    check()


@every_operation
def test_nothing_is_told_or_done_without_a_token(described, asking, job_id, ada, operation):
    @asking
    @given(data=st.data())
    def check(data):
        answer = ask(draw(data, described[operation], job_id), None)
        assert answer.status_code == (200 if operation == OPEN else 401) or leads_nowhere(answer)

    check()
    assert ada.get(f"/v1/videos/{job_id}").json()["status"] == "completed"


@every_operation
def test_another_ones_video_is_neither_seen_nor_touched(described, asking, job_id, ada, operation):
    @asking
    @given(data=st.data())
    def check(data):
        case = draw(data, described[operation], job_id)
        answer = ask(case, BOB)
        assert WISH["prompt"].encode() not in answer.content
        if (case.path_parameters or {}).get("video_id") == job_id:
            assert answer.status_code in (400, 404)

    check()
    assert ada.get(f"/v1/videos/{job_id}").json()["status"] == "completed"


def test_all_that_is_described_is_asked(described):
    assert sorted(described) == sorted(OPERATIONS)
