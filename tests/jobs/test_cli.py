"""The commands of a client, in this process, on a real Redis and a store in a folder."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console

import h3render
from jobs.client import Client
from jobs.events import AttemptLost, SegmentReady, Started, StepDone, StreamOpened
from jobs.job_status import JobState, JobStatus, Phase
from jobs.progress import open_display
from jobs.result import Result
from jobs.store import open_store
from jobs.workers import pause_queue
from tests.jobs.commands import CONTENTS, commit, invoke
from tests.jobs.leasing import FAILED, STEP

PNG = b"\x89PNG\r\n\x1a\n a picture"
PROMPT = "a red kite over the sea"


@pytest.fixture
def store(redis_url, file_store_url, monkeypatch):
    """Which the commands find, as they do the Redis."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("H3_STORE_URL", file_store_url)
    return open_store(file_store_url)


@pytest.fixture
def finished(redis, store, file_store_url, claim):
    """A job with a result."""
    lease = claim()
    lease.tell(STEP)
    return commit(lease, Client(redis).job(lease.job_id).request(), store, file_store_url)


def lines_of(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


# --- submit


def test_submit_prints_the_id_and_tells_what_was_decided(redis, store):
    done = invoke("submit", PROMPT, "--aspect", "1:1", "--short-side", 100, "--seconds", 1.2, "--seed", 7)
    assert Client(redis).job(done.stdout.strip()).status().state.is_queued
    assert done.stderr == "queued in default: 96x96, 39 frames, 50 steps, seed 7\n"


def test_submit_prints_json_with_the_request_as_it_was_decided(store):
    [told] = lines_of(invoke("submit", PROMPT, "--attention", "sdpa", "--json"))
    assert told["request"]["attention"] == "sdpa"
    assert told["request"]["seed"] >= 0
    assert set(told) == {"id", "request"}


def test_a_picture_is_a_file_a_key_or_a_url_of_the_store(redis, store, tmp_path):
    path = tmp_path / "kite.png"
    path.write_bytes(PNG)
    first, last = "--first-frame", "--last-frame"
    requests = [lines_of(invoke("submit", PROMPT, first, path, last, path, "--json"))[0]["request"]]
    key = requests[0]["first_frame"]
    assert store.get(key) == PNG
    for text in (key, store.url(key), (tmp_path / "store" / key).as_uri()):
        requests += [lines_of(invoke("submit", PROMPT, first, text, last, text, "--json"))[0]["request"]]
    assert {(request["first_frame"], request["last_frame"]) for request in requests} == {(key, key)}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--steps", "0"], "steps 0 is too small; nearest: 1"),
        (["--url", "redis://127.0.0.1:1/0"], "does not answer"),
        (["--webhook", "ftp://host"], "webhook 'ftp://host' is no URL that can be called"),
        (["--last-frame", "nowhere.png"], "nowhere.png does not exist"),
    ],
)
def test_nothing_is_uploaded_or_queued_if_anything_is_wrong(redis, store, tmp_path, arguments, told):
    path = tmp_path / "kite.png"
    path.write_bytes(PNG)
    assert told in invoke("submit", PROMPT, "--first-frame", path, *arguments, code=2).stderr
    assert [*store.scan()] == []
    assert redis.keys() == []


def test_a_webhook_is_kept_with_the_job(redis, store):
    job_id = invoke("submit", PROMPT, "--webhook", "https://host/done").stdout.strip()
    assert redis.hget(f"rq:job:{job_id}", "h3_webhook") == b"https://host/done"


# --- watch


def test_watch_prints_an_event_a_line_and_the_result_at_the_end(store, finished):
    *told, last = lines_of(invoke("watch", finished.job_id, "--json"))
    assert [event["kind"] for event in told] == ["queued", "started", "step_done", "finished"]
    assert all(event["id"] and event["at"].endswith("+00:00") for event in told)
    assert Result.model_validate(last["result"]) == finished
    assert last["video"] == store.url(finished.video_key)


def test_watch_goes_on_from_an_event(store, finished):
    *told, _ = lines_of(invoke("watch", finished.job_id, "--json"))
    *rest, last = lines_of(invoke("watch", finished.job_id, "--json", "--since", told[1]["id"]))
    assert rest == told[2:]
    [alone] = lines_of(invoke("watch", finished.job_id, "--json", "--since", told[-1]["id"]))
    assert alone == last
    assert "give the `id` of an event" in invoke("watch", finished.job_id, "--since", "x", code=2).stderr


def test_watch_finds_the_result_where_the_worker_has_put_it(store, finished, monkeypatch):
    monkeypatch.delenv("H3_STORE_URL")
    done = invoke("watch", finished.job_id)
    assert done.stdout.splitlines()[0] == f"video     {store.url(finished.video_key)}"
    assert done.stderr.splitlines()[1] == "attempt 1 on w"


def test_watch_of_a_failed_job_ends_with_the_reason(store, claim):
    lease = claim()
    lease.fail(FAILED, "refused")
    for flags in ([], ["--json"]):
        done = invoke("watch", lease.job_id, *flags, code=1)
        assert f"job {lease.job_id} failed in attempt 1: the prompt is refused" in done.stderr


# --- status and cancel


def test_status_tells_what_a_job_waits_for_and_what_it_does(redis, store, submit, claim):
    assert (
        invoke("status", submit()).stdout.splitlines()[0].endswith(" waiting: no worker is alive; in default, number 1")
    )
    lease = claim()
    lease.tell(StepDone(step=3, steps=50, sigma=1.0, seconds=2.0))
    where, last = invoke("status", lease.job_id).stdout.splitlines()
    assert where.startswith(f"{lease.job_id} running on w, attempt 1, denoise 3/50, 9")
    assert last == "denoise: 3/50, sigma 1.000, 2.00 s/step"
    pause_queue(redis, "default")
    [told] = lines_of(invoke("status", submit(), "--json"))
    assert (told["state"], told["position"]) == ("waiting", 2)
    assert told["waiting_for"] == "waiting: queue default is paused"
    assert [event["kind"] for event in told["events"]] == ["queued"]


def test_an_unknown_job_is_no_success(redis, store, submit):
    assert "no job nonesuch: ids are printed by `h3render submit`" in invoke("status", "nonesuch", code=2).stderr
    job_id = submit()
    redis.hset(f"rq:job:{job_id}", "status", "scheduled")
    assert "its record says 'scheduled'" in invoke("status", job_id, code=2).stderr


def test_cancel_tells_whether_the_job_has_ended(store, submit, claim):
    waiting, running = submit(), claim().job_id
    assert lines_of(invoke("cancel", waiting, "--json")) == [{"id": waiting, "outcome": "canceled"}]
    assert lines_of(invoke("cancel", running, "--json")) == [{"id": running, "outcome": "stopping"}]


# --- fetch


def test_fetch_copies_the_video_and_prints_where_it_is(store, finished, tmp_path):
    folder = tmp_path / "new" / "folder"
    done = invoke("fetch", finished.job_id, "--to", folder)
    assert done.stdout == f"{folder / finished.job_id}.mp4\n"
    assert Path(done.stdout.strip()).read_bytes() == CONTENTS["video.mp4"]


def test_fetch_copies_every_piece_under_its_name(store, finished, tmp_path):
    [told] = lines_of(invoke("fetch", finished.job_id, "--to", tmp_path, "--all", "--json"))
    attempt = tmp_path / finished.job_id / "attempts" / "1"
    assert {path.name: path.read_bytes() for path in attempt.iterdir()} == {
        name: body for name, body in CONTENTS.items() if name != "video.mp4"
    }
    assert told["paths"][:2] == [told["video"], str(tmp_path / finished.job_id / "result.json")]
    assert all(map(os.path.exists, told["paths"]))


def test_fetch_says_why_there_is_nothing_to_fetch(store, submit, claim):
    assert "follow it with `h3render watch" in invoke("fetch", submit(), code=2).stderr
    lease = claim()
    lease.fail(FAILED, "refused")
    assert "failed in attempt 1: the prompt is refused" in invoke("fetch", lease.job_id, code=1).stderr
    assert "no job nonesuch" in invoke("fetch", "nonesuch", code=2).stderr


# --- a terminal


def draw(*acts):
    """The bars as they are left when the display has been through this, by their phase."""
    screen = io.StringIO()
    with open_display(Console(file=screen, force_terminal=True, width=140, color_system=None)) as display:
        for act in acts:
            act(display)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).splitlines()
    return {phase: next(line for line in reversed(lines) if line.startswith(phase)) for phase in Phase}


def tell(event):
    return lambda display: display.tell(event)


def note(status):
    return lambda display: display.note(status)


def test_a_terminal_shows_the_place_in_the_queue_and_what_the_job_waits_for(redis, submit):
    job = Client(redis).job(submit())
    [queued] = job.news()
    placed = JobStatus(id=job.id, state=JobState.QUEUED, queue="default", position=12)
    assert "queued in default, number 12" in draw(tell(queued), note(placed))[Phase.TEXT]
    shown = draw(tell(queued), note(placed), note(job.status()))[Phase.TEXT]
    assert "waiting: no worker is alive; in default, number 1" in shown
    lost = AttemptLost(attempt=1, reason="rank 1 died", charge="fatal")
    begun = (
        tell(queued),
        tell(Started(attempt=1, worker="w")),
        tell(StepDone(step=3, steps=9, sigma=1.0, seconds=1.0)),
    )
    shown = draw(*begun, tell(lost), note(placed))
    assert "queued in default, number 12" in shown[Phase.TEXT]
    assert "0/50" in shown[Phase.DENOISE]


def test_a_terminal_shows_what_is_left_of_a_phase():
    step = tell(StepDone(step=10, steps=50, sigma=0.9, seconds=3.0))
    status = JobStatus(id="j", state=JobState.RUNNING, phase=Phase.DENOISE, step=10, steps=50, eta_s=118)
    assert "sigma 0.900, 3.00 s/step, 2 min left" in draw(step)[Phase.DENOISE]
    assert "sigma 0.900, 3.00 s/step, 1 min 58 s left" in draw(step, note(status))[Phase.DENOISE]
    opened = tell(StreamOpened(segments=7, playlist_key="p"))
    segment = tell(SegmentReady(index=0, key="k", duration_s=0.7, playlist_key="p"))
    decoding = status.model_copy(update={"phase": Phase.DECODE, "eta_s": 6.2})
    shown = draw(step, opened, segment, note(decoding))
    assert "1/7" in shown[Phase.DECODE]
    assert "playable, 6 s left" in shown[Phase.DECODE]


def test_a_pipe_is_told_once_what_the_job_waits_for(redis, submit):
    screen = io.StringIO()
    job = Client(redis).job(submit())
    with open_display(Console(file=screen, width=60)) as display:
        for _ in range(3):
            display.note(job.status())
        pause_queue(redis, "default")
        display.note(job.status())
    assert screen.getvalue() == "waiting: no worker is alive\nwaiting: queue default is paused\n"


# --- all commands


def test_each_command_of_the_client_prints_json_if_it_is_asked_to():
    commands = typer.main.get_group(h3render.app).commands
    for name in ("submit", "watch", "status", "list", "cancel", "fetch", "play"):
        assert "--json" in [option for parameter in commands[name].params for option in parameter.opts]


def complete(words, tmp_path):
    """What a shell is told, and the processor time it takes."""
    script = "import sys; sys.modules.update(torch=None, boto3=None); import h3render; h3render.main()"
    environment = os.environ | {
        "_H3RENDER_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "H3_STATE_DIR": str(tmp_path),
        "H3_RUNTIME_DIR": str(tmp_path),
        "REDIS_URL": "",
    }
    before = os.times()
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    after = os.times()
    took_s = after.children_user + after.children_system - before.children_user - before.children_system
    return done.stdout.split(), took_s


def test_a_shell_completes_commands_without_a_redis(tmp_path):
    """How quickly is in tests/end_to_end/test_import_time.py."""
    assert complete("h3render can", tmp_path)[0] == ["cancel"]
    assert [*tmp_path.iterdir()] == []  # no server was started


def test_a_shell_is_given_its_script():
    command = f"{sys.executable} -m h3render --show-completion; true"  # `true`: bash stays, to be recognised
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "complete -o default -F _h3render_completion h3render" in done.stdout
