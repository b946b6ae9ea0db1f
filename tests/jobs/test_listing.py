"""The latest jobs of a farm, on a real Redis; and how they are shown."""

import io
import json
import time

import pytest
from rich.cells import cell_len
from rich.console import Console

from jobs.client import Client
from jobs.events import StepDone
from jobs.job_status import JobState
from jobs.lease import Charge
from jobs.list_cli import show_jobs
from jobs.listing import list_jobs
from jobs.operation import run
from jobs.request import GenerateRequest
from jobs.submission import Submission
from jobs.workers import WorkerState, pause_queue, server_time, write_worker
from tests.jobs.commands import invoke
from tests.jobs.leasing import FAILED, FINISHED, RESULT, claim_job
from tests.jobs.records import record
from tests.waiting import eventually


@pytest.fixture
def listed(redis):
    return lambda **options: run(list_jobs(**options), redis)


@pytest.fixture
def show(redis_url):
    return lambda *arguments, code=0: invoke("list", *arguments, "--url", redis_url, code=code)


@pytest.fixture
def submit_all(redis):
    """Queue so many jobs; their ids."""

    def submit_all(count, queue="default"):
        requests = [GenerateRequest(prompt=f"shot {number}") for number in range(count)]
        return [one.job_id for one in Client(redis).submit_many([Submission(request, queue) for request in requests])]

    return submit_all


def await_next_ms(redis):
    """A job's time of submission is told in milliseconds: the next one has another."""
    now_ms = int(server_time(redis) * 1000)
    eventually(lambda: int(server_time(redis) * 1000) > now_ms, interval_s=0.0005)


def counted(talk, ways):
    """The same operation; each way to Redis is noted in `ways`."""
    answer = None
    try:
        while True:
            call = talk.send(answer)
            ways.append(call)
            answer = yield call
    except StopIteration as end:
        return end.value


@pytest.fixture
def farm(redis, submit, claim, leases, use_up):
    """A job of each state, in the order of their submission."""
    jobs = {}
    for state in ("finished", "failed", "dead", "canceled", "running"):
        lease = claim(submit())
        jobs[state] = lease.job_id
        match state:
            case "finished":
                lease.finish(FINISHED, RESULT)
            case "failed":
                lease.fail(FAILED, "refused")
            case "dead":
                use_up(lease)
            case "canceled":
                Client(redis).job(lease.job_id).cancel()
                lease.hand_back(Charge.DRAINED, "stopped")
            case "running":
                lease.tell(StepDone(step=2, steps=50, sigma=1.0, seconds=2.0))
        await_next_ms(redis)
    return jobs | {"waiting": submit(queue="batch")}


def test_each_state_is_listed_as_status_tells_it(redis, farm, listed):
    found = listed()
    assert [(job.id, job.state) for job in found] == [(job_id, state) for state, job_id in reversed(farm.items())]
    for job in found:
        alone = Client(redis).job(job.id).status()
        assert job.model_dump(include=set(type(alone).model_fields), exclude={"eta_s"}) == alone.model_dump(
            exclude={"eta_s"}
        )
        assert job.prompt == "a red kite"
        assert abs(job.submitted_at.timestamp() - time.time()) < 60


@pytest.mark.parametrize("state", ["finished", "failed", "dead", "canceled", "running", "waiting"])
def test_one_state_can_be_asked_for(farm, show, state):
    [job] = json.loads(show("--state", state, "--json").stdout)
    assert (job["id"], job["state"]) == (farm[state], state)


def test_states_and_queues_can_be_combined(farm, listed, submit, claim):
    claim(submit(queue="high"), queue="high")
    assert [job.queue for job in listed(queues=["high", "batch"])] == ["high", "batch"]
    assert [job.id for job in listed(states=[JobState.RUNNING], queues=["default"])] == [farm["running"]]
    assert listed(states=[JobState.DEAD], queues=["high"]) == []


def test_what_waits_for_a_worker_is_told_from_what_waits_its_turn(redis, listed, submit):
    write_worker(redis, record(redis, state=WorkerState.BUSY))
    turn, paused = submit(), submit(queue="batch")
    pause_queue(redis, "batch")
    assert [job.id for job in listed(states=[JobState.QUEUED])] == [turn]
    [job] = listed(states=[JobState.WAITING])
    assert (job.id, job.waiting_for, job.position) == (paused, "waiting: queue batch is paused", 1)


def test_a_job_that_was_given_back_to_the_head_of_its_queue_is_listed_by_its_submission(
    redis, listed, submit_all, claim
):
    ids = submit_all(150)
    await_next_ms(redis)
    [late] = submit_all(1)
    claim(late).hand_back(Charge.DRAINED, "stopped")  # and is the first of 151 now
    found = listed(limit=1)
    assert [(job.id, job.position) for job in found] == [(late, 1)]
    assert {job.id for job in listed(limit=200)} == {late, *ids}


def test_a_farm_of_thousands_of_jobs_is_listed_on_a_few_ways_at_once(redis, leases, submit_all):
    ids = submit_all(2000)
    for job_id in ids[:200]:
        claim_job(leases, job_id).finish(FINISHED, RESULT)
    last = claim_job(leases, submit_all(1)[0])
    last.fail(FAILED, "refused")
    ways = []
    began = time.monotonic()
    found = run(counted(list_jobs(), ways), redis)
    assert time.monotonic() - began < 1.0
    assert len(ways) <= 6
    assert found[0].id == last.job_id
    assert {job.prompt for job in found[1:]} <= {f"shot {number}" for number in range(1900, 2000)}
    # One that is far behind many others is found, too: there more is looked at.
    assert [job.id for job in run(list_jobs(states=[JobState.FAILED]), redis)] == [last.job_id]


def test_records_that_are_gone_or_damaged_are_no_jobs(redis, listed, submit):
    gone, damaged, kept = submit(), submit(), submit()
    redis.delete(f"rq:job:{gone}")
    redis.hset(f"rq:job:{damaged}", mapping={"status": "scheduled"})
    redis.rpush("rq:queue:default", b"\xff\xfe")
    redis.hset(f"rq:job:{kept}", mapping={"h3_queued_ms": "soon", "h3_attempts": "many"})
    redis.delete(f"h3:events:{kept}")
    [job] = listed()
    assert (job.id, job.submitted_at, job.attempt, job.prompt) == (kept, None, 0, "")


# --- how it is shown


def test_a_pipe_gets_aligned_lines_without_tabs(redis, farm, show):
    Client(redis).submit({"prompt": "a\tred\nkite \x1b[31m" + 90 * "x"})
    lines = show().stdout.splitlines()
    assert len(lines) == 1 + 7
    heading, first, *rest = lines
    assert heading.split("  ")[0] == "id"
    assert "\\tred\\nkite \\x1b[31m" in first
    for name, text in (("state", "waiting"), ("step or reason", "no worker is alive"), ("prompt", "a\\tred")):
        assert first.index(text) == heading.index(name)
    for text in ("running", "denoise 2/50, ", "failed", "the prompt is refused", "dead", "attempt 1 on w: first"):
        assert any(text in line for line in rest)
    assert not any(set(line) & set("\t\x1b") or line.endswith(" ") for line in lines)


def test_a_narrow_terminal_cuts_the_end_of_a_line_and_no_id(listed, farm):
    screen = io.StringIO()
    show_jobs(listed(), time.time(), Console(file=screen, force_terminal=True, width=80, color_system=None))
    lines = screen.getvalue().splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*reversed(farm.values())]
    assert max(map(cell_len, lines)) <= 80


def test_an_empty_list_says_how_to_queue_a_job(show, farm, redis):
    assert show("--state", "queued").stderr == "no such job is known: leave out --state or --queue\n"
    redis.flushall()
    done = show()
    assert (done.stdout, done.stderr) == ("", "no job is known: queue one with `h3render submit PROMPT`\n")
    assert show("--json").stdout == "[]\n"
