"""The client against RunPod's published contract: every request and every answer is checked by the document.

In this process, where time is the server's and goes on when the client sleeps; and as the real commands.
"""

import json

import pytest
from pydantic import SecretStr

from infra.cli import pods_app
from infra.create import Creator
from infra.errors import (
    ApiError,
    ConnectionLost,
    GuardRefused,
    ListIncomplete,
    NoCapacity,
    NotAsOrdered,
    OutcomeUnknown,
    RateLimited,
)
from infra.ledger import Ledger, RowState
from infra.order import VolumeMount
from infra.plan import read_create_plan, settle_rows
from infra.runpod import RunPod
from infra.terminate import ask_end, terminate_pod
from infra.transport import Limits
from jobs.workers import server_time, write_worker
from tests.in_process import call
from tests.infra.pod_commands import make_environment, run_command
from tests.infra.pods import make_order, make_worker
from tests.infra.runpod.clients import body
from tests.infra.runpod.clock import WallClock
from tests.infra.runpod.faults import Fault
from tests.infra.runpod.pods import QUICK, Course
from tests.infra.runpod.server import running_runpod
from tests.infra.runpod.world import World

PODS, POD = "/v2/pods", "/v2/pods/{id}"
AT_ONCE = {"sends": 1, "looks_s": (), "settles_s": (), "awaits_end": False}


@pytest.fixture
def runpod(runpod):
    """No request but what the document has."""
    yield runpod
    assert runpod.outside() == []


@pytest.fixture
def ledger(tmp_path, clock):
    return Ledger(tmp_path / "pods.jsonl", clock)


@pytest.fixture
def create(api, ledger, clock):
    """Plan and create; returns the pod."""

    def create(data_center=None, cap=40.0, patience=None, **fields):
        plan = read_create_plan(api, ledger, clock, make_order(**fields), data_center=data_center, cap=cap, max_hours=6)
        creator = Creator(api, ledger, clock, tell_pod=told.append, tell=told.append, **(patience or {}))
        return creator.create(plan)

    told = []
    create.told = told
    return create


def states(ledger):
    return [row.state for row in ledger.read()]


def posts(runpod):
    return [seen for seen in runpod.changes() if seen.method == "POST"]


# --- creating


def test_a_pod_is_created_once_as_ordered_and_terminated_until_it_is_gone(runpod, api, ledger, clock, create):
    pod = create()
    assert create.told[0] == pod.id
    [post] = posts(runpod)
    assert post.body["gpu"]["count"] == 8
    assert post.body["env"].keys() >= {"FLEET_TOKEN", "LEASE_UNTIL"}
    assert [alive.id for alive in runpod.alive()] == [pod.id]
    terminate_pod(api, ledger, clock, pod.id)
    assert runpod.alive() == []
    assert states(ledger)[-1] is RowState.GONE


LOST = [
    Fault.SERVER_ERROR_AFTER_EFFECT,
    Fault.HTML_ERROR_AFTER_EFFECT,
    Fault.CLOSE_AFTER_EFFECT,
    *(Fault.HALF_BODY, Fault.NOT_JSON, Fault.HUGE, Fault.DEEP),
]


@pytest.mark.parametrize("fault", LOST, ids=str)
def test_a_lost_answer_is_looked_for_by_name_and_never_asked_for_again(runpod, ledger, create, fault):
    runpod.script("POST", PODS, fault)
    with runpod.changing() as world:
        world.listing_lag_s = 7
    pod = create()
    assert len(posts(runpod)) == 1
    assert [alive.id for alive in runpod.alive()] == [pod.id]
    assert states(ledger) == [RowState.CREATED]


@pytest.mark.parametrize("fault", [Fault.HTML_ERROR, Fault.CLOSE], ids=str)
def test_an_order_that_nobody_can_find_stays_unknown_and_counts(runpod, api, ledger, clock, create, fault):
    runpod.script("POST", PODS, fault)
    with pytest.raises(OutcomeUnknown, match="h3render-manual-pod-"):
        create()
    assert len(posts(runpod)) == 1
    assert states(ledger)[-1] is RowState.UNKNOWN
    with pytest.raises(GuardRefused, match="USD"):  # its price is still held against the cap
        create(cap=20.0)
    runpod.advance(15 * 60)
    settle_rows(ledger, api.list_pods(), clock.now())
    assert states(ledger) == [RowState.FAILED]
    create(cap=20.0)


@pytest.mark.parametrize("fault", [Fault.SERVER_ERROR_AFTER_EFFECT, Fault.CLOSE_AFTER_EFFECT], ids=str)
def test_who_lists_pods_all_the_time_does_not_wait_for_a_lost_answer(runpod, api, ledger, clock, create, fault):
    runpod.script("POST", PODS, fault)
    begun_at = runpod.now
    with pytest.raises(OutcomeUnknown, match="h3render-manual-pod-"):
        create(patience=AT_ONCE)
    assert runpod.now == begun_at
    assert states(ledger) == [RowState.UNKNOWN]
    settle_rows(ledger, api.list_pods(), clock.now(), in_flight_s=0)
    assert states(ledger) == [RowState.CREATED]
    assert len(posts(runpod)) == len(runpod.alive()) == 1


def test_nor_for_places_to_be_told_nor_to_send_it_again(runpod, ledger, create):
    begun_at = runpod.now
    runpod.script("POST", PODS, Fault.RATE_LIMITED, seconds=30)
    with pytest.raises(RateLimited):
        create(patience=AT_ONCE)
    runpod.next_pods(Course(placed_s=60))
    assert create(patience=AT_ONCE).data_center_id is None
    assert runpod.now == begun_at
    assert states(ledger) == [RowState.FAILED, RowState.CREATED]


def test_nor_for_the_end_of_what_was_not_ordered(runpod, ledger, create):
    runpod.next_pods(Course(differs={"cloud": "COMMUNITY"}))
    runpod.script("DELETE", POD, Fault.STILL_LISTED, seconds=1e6)
    with pytest.raises(NotAsOrdered, match="asked to end"):
        create(patience=AT_ONCE)
    assert states(ledger) == [RowState.TERMINATING]


def test_of_two_pods_for_one_order_the_older_is_kept(runpod, api, ledger, clock, create):
    """An API that, against its document, does a call twice."""

    class Doubling:
        def __getattr__(self, name):
            return getattr(api, name)

        def create_pod(self, body):
            try:
                return api.create_pod(body)
            finally:
                runpod.advance(1)
                runpod.add_pod(json.loads(body.to_json()))

    plan = read_create_plan(api, ledger, clock, make_order(), data_center=None, cap=40.0, max_hours=6)
    runpod.script("POST", PODS, Fault.CLOSE_AFTER_EFFECT)
    pod = Creator(Doubling(), ledger, clock, tell_pod=lambda _: None, tell=lambda _: None).create(plan)
    assert [alive.id for alive in runpod.alive()] == [pod.id] == ["pod0000001"]


def test_without_capacity_the_next_data_center_is_tried_each_with_its_own_token(runpod, ledger, create):
    runpod.script("POST", PODS, Fault.NO_CAPACITY)
    create()
    first, second = posts(runpod)
    assert first.body["dataCenterIds"] != second.body["dataCenterIds"]
    assert first.body["env"]["FLEET_TOKEN"] != second.body["env"]["FLEET_TOKEN"]
    assert len(runpod.alive()) == 1


def test_without_capacity_anywhere_nothing_is_left_behind(runpod, ledger, create):
    runpod.script("POST", PODS, Fault.NO_CAPACITY, times=50)
    with pytest.raises(NoCapacity):
        create()
    assert runpod.alive() == []
    assert RowState.UNKNOWN not in states(ledger)


@pytest.mark.parametrize(("fault", "exit_code"), [(Fault.UNAUTHORIZED, 3), (Fault.NO_BALANCE, 5)], ids=str)
def test_a_refusal_that_no_other_place_mends_ends_it(runpod, create, fault, exit_code):
    runpod.script("POST", PODS, fault, times=50)
    with pytest.raises(ApiError) as caught:
        create()
    assert caught.value.exit_code == exit_code
    assert len(posts(runpod)) == 1
    assert runpod.alive() == []


def test_a_pod_that_is_not_what_was_ordered_is_ended_at_once(runpod, ledger, create):
    runpod.next_pods(Course(differs={"cloud": "COMMUNITY"}))
    with pytest.raises(NotAsOrdered):
        create()
    assert runpod.alive() == []


def test_a_pod_that_costs_more_than_it_should_is_ended_at_once(runpod, create):
    runpod.next_pods(Course(cost_factor=1.5))
    with pytest.raises(NotAsOrdered):
        create()
    assert runpod.alive() == []


def test_a_volume_decides_where_the_pod_is(runpod, api, create):
    first, second, *_ = (center.id for center in api.list_data_centers())
    with runpod.changing() as world:
        volume = world.add_volume("weights", 100, first, "STANDARD")
    mounted = VolumeMount(volume_id=volume.id, path="/runpod-volume")
    before = len(runpod.changes())
    with pytest.raises(GuardRefused, match=f"{first}.*{second}|{second}.*{first}"):
        create(data_center=second, storage=mounted)
    with pytest.raises(GuardRefused, match="nowhere"):
        create(storage=VolumeMount(volume_id="nowhere", path="/runpod-volume"))
    assert len(runpod.changes()) == before


# --- reading, ending


@pytest.mark.parametrize("fault", [Fault.RATE_LIMITED, Fault.HTML_ERROR, Fault.CLOSE, Fault.HALF_BODY], ids=str)
def test_a_read_is_repeated_through_what_passes(runpod, api, create, fault):
    pod = create()
    runpod.script("GET", POD, fault, times=2)
    assert api.get_pod(pod.id).id == pod.id


def test_from_a_list_that_has_a_pod_twice_nothing_is_concluded(runpod, api, create):
    create()
    runpod.script("GET", PODS, Fault.DUPLICATE_ID)
    with pytest.raises(ListIncomplete, match="comes twice"):
        api.list_pods()


@pytest.mark.parametrize("fault", [Fault.REPEATED_CURSOR, Fault.ENDLESS_CURSOR], ids=str)
def test_a_list_that_leads_in_a_circle_or_on_for_ever_is_incomplete(fault, tmp_path):
    with running_runpod(later=True) as runpod, RunPod(runpod.url, SecretStr(runpod.key)) as api:
        runpod.script("GET", PODS, fault, times=1000)
        with pytest.raises(ListIncomplete):
            api.list_pods()


@pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, Fault.SERVER_ERROR_AFTER_EFFECT, Fault.CLOSE], ids=str)
def test_an_end_that_answers_with_an_error_is_asked_for_again(runpod, api, ledger, clock, create, fault):
    pod = create()
    runpod.script("DELETE", POD, fault, times=2)
    terminate_pod(api, ledger, clock, pod.id)
    assert runpod.alive() == []
    assert states(ledger) == [RowState.GONE]


def test_an_end_may_be_asked_for_and_left_to_later_lists(runpod, api, ledger, clock, create):
    pod = create()
    runpod.script("DELETE", POD, Fault.STILL_LISTED, seconds=30)
    begun_at = runpod.now
    ask_end(api, ledger, pod.id)
    assert runpod.now == begun_at
    assert states(ledger) == [RowState.TERMINATING]
    runpod.advance(15 * 60)
    settle_rows(ledger, api.list_pods(), clock.now())
    assert states(ledger) == [RowState.GONE]


def test_an_end_that_never_comes_is_told_as_unknown(runpod, api, ledger, clock, create):
    pod = create()
    runpod.script("DELETE", POD, Fault.STILL_LISTED, seconds=1e6)
    with pytest.raises(OutcomeUnknown):
        terminate_pod(api, ledger, clock, pod.id)
    assert states(ledger) == [RowState.TERMINATING]


def test_a_log_that_breaks_off_goes_on_with_no_line_lost_or_told_twice(runpod, create):
    pod = create()
    for text in ("one", "two", "two", "three"):
        runpod.log_line(pod.id, text)
    with RunPod(runpod.url, SecretStr(runpod.key)) as api:  # a stream is read in real time
        runpod.script("GET", f"{POD}/logs", Fault.HALF_BODY)
        lines = [line.line for line in api.read_logs(pod.id, for_s=2.0, source="container")]
    assert lines == ["one", "two", "two", "three"]


def test_the_bill_is_of_the_hours_that_a_pod_ran(runpod, api, create):
    pod = create()
    runpod.advance(2 * 3600)
    assert api.read_billing(pod.id, 5).metadata.totals.total_amount == pytest.approx(2 * pod.cost, rel=0.1)


@pytest.mark.parametrize(("fault", "pause_s"), [(Fault.SLOW_DRIP, 0.3), (Fault.STALL, 3.0)], ids=str)
def test_an_answer_that_does_not_come_ends_with_the_deadline(runpod, fault, pause_s):
    runpod.script("GET", PODS, fault, seconds=pause_s, times=100)
    with RunPod(runpod.url, SecretStr(runpod.key), limits=Limits(1, 1, 1, 1.5)) as api, pytest.raises(ConnectionLost):
        api.list_pods()


def test_a_pod_that_is_listed_for_a_while_after_its_end_is_waited_for(runpod, api, ledger, clock, create):
    pod, begun_at = create(), runpod.now
    runpod.script("DELETE", POD, Fault.STILL_LISTED, seconds=30)
    terminate_pod(api, ledger, clock, pod.id)
    assert runpod.now - begun_at >= 30


def test_a_redirect_is_not_followed(runpod, api):
    runpod.script("GET", PODS, Fault.REDIRECT, times=9, target="http://127.0.0.1:9/")
    with pytest.raises(ApiError):
        api.list_pods()


# --- the commands


@pytest.fixture
def quick():
    with running_runpod(clock=WallClock(), world=World(course=QUICK)) as server:
        yield server
        assert server.outside() == []


@pytest.fixture
def run(quick, tmp_path):
    environment = make_environment(tmp_path, quick.environment)

    def run(*arguments, code=0, **variables):
        done = run_command(arguments, environment | variables, [quick.key])
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def ask(quick, tmp_path):
    """The same in this process."""
    environment = make_environment(tmp_path, quick.environment)

    def ask(*arguments, code=0, **variables):
        done = call(pods_app, *arguments, **(environment | {"COLUMNS": "200"} | variables))
        assert done.exit_code == code, done.output
        assert quick.key not in done.output
        return done

    return ask


def test_the_seeds_lines_work_on_a_fresh_machine(quick, run, ask, tmp_path):
    assert "RTX PRO 6000" in ask("catalog", "--count", 8).stdout
    assert "40" in ask("create", "--count", 8, code=2).stdout  # the built-in cap is in the plan
    ask("create", "--count", 8, "--dry-run")
    ask("create", "--count", 8, code=2, H3_PODS_YES="1", H3_YES="1", YES="1", RUNPOD_API_YES="1")
    assert quick.changes() == []
    public_key = tmp_path / "id.pub"
    public_key.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI me@here\n")
    [pod_id] = run("create", "--count", 8, "--ssh-public-key", public_key, "--yes").stdout.split()
    assert [pod.id for pod in quick.alive()] == [pod_id]
    assert "RUNNING" in ask("get", pod_id, "--wait", 30).stdout
    assert pod_id in ask("list").stdout
    ask("logs", pod_id, "--seconds", 1)
    ask("cost", pod_id)
    before = len(quick.changes())
    told = ask("terminate", pod_id, code=2)
    assert "queue" in (told.stdout + told.stderr).lower()  # without REDIS_URL nobody was asked whether it is busy
    assert len(quick.changes()) == before
    run("terminate", pod_id, "--yes")
    assert quick.alive() == []


def test_a_pod_that_is_not_ours_is_left_alone(quick, ask):
    pod = quick.add_pod(body(name="somebody-elses"))
    before = len(quick.changes())
    told = ask("terminate", pod.id, "--yes", code=2)
    assert "--foreign" in told.stderr
    assert len(quick.changes()) == before
    ask("terminate", pod.id, "--foreign", "--yes")
    assert quick.alive() == []


def test_a_pod_that_renders_is_ended_only_by_who_says_now(quick, ask, redis, redis_url):
    pod = quick.add_pod(body(name="h3render-manual-pod-0123456789abcdef"))
    write_worker(redis, make_worker(pod.settings["name"], beat_at=server_time(redis)))
    told = ask("terminate", pod.id, "--yes", code=2, REDIS_URL=redis_url)
    assert "it renders job job1, step 3 of 50" in told.stderr
    assert "--now" in told.stderr
    assert quick.changes() == []
    ask("terminate", pod.id, "--yes", "--now", REDIS_URL=redis_url)
    assert quick.alive() == []
