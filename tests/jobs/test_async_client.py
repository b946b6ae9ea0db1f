"""The asyncio client does what the blocking one does, on the same Redis; each test drives both or compares them."""

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.asyncio import Redis as AsyncRedis

from jobs import AsyncClient, Client, GenerateRequest
from jobs.async_client import AsyncJobHandle
from jobs.client import JobHandle
from jobs.errors import CancelRefused, EventIdInvalid, JobFailed, JobNotFound, KeyConflict, RedisUnavailable
from jobs.events import StepDone
from jobs.result import Result, result_key
from jobs.store import open_store
from jobs.submission import Outcome, Submission
from tests.jobs.leasing import FAILED, FINISHED, KEPT, REQUEST, RESULT, SAVED, STEP, without_ids
from tests.waiting import eventually

FIRST_ONLY = Submission(GenerateRequest.parse(REQUEST), "high", "order 7")


@pytest.fixture
def talk(redis_url):
    """Run a coroutine function with a client of its own event loop; its result."""

    def talk(tell, *arguments, **options):
        async def held():
            async with await AsyncClient.open(redis_url, **options) as client:
                return await tell(client, *arguments)

        return asyncio.run(asyncio.wait_for(held(), 30))

    return talk


@pytest.mark.parametrize(("blocking", "waiting"), [(Client, AsyncClient), (JobHandle, AsyncJobHandle)])
def test_both_clients_have_the_same_methods_with_the_same_arguments(blocking, waiting):
    def methods(kind):
        return {name: value for name, value in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}

    ours, twin = methods(blocking), methods(waiting)
    assert set(twin) - {"aclose"} == set(ours) - {"close"}
    for name, method in ours.items() - {("close", ours.get("close"))}:
        arguments = {key: value.default for key, value in inspect.signature(method).parameters.items()}
        arguments.pop("while_waiting", None)  # an asyncio program has tasks
        assert {key: value.default for key, value in inspect.signature(twin[name]).parameters.items()} == arguments


def test_a_job_is_submitted_followed_and_read(talk, redis, leases, claim, file_store_url):
    store = open_store(file_store_url)

    async def submit(client):
        job = await client.submit(REQUEST, idempotency_key="order 7")
        again = await client.submit(GenerateRequest.parse(REQUEST), idempotency_key="order 7")
        assert again.id == job.id
        with pytest.raises(KeyConflict):
            await client.submit({"prompt": "another"}, idempotency_key="order 7")
        assert (await job.status()).position == 1
        assert (await job.request()).seed == 3
        return job.id

    job_id = talk(submit)
    lease = claim(job_id)
    lease.keep(KEPT, SAVED)
    store.put("v", b"video", content_type="video/mp4")
    store.put("p", b"{}", content_type="application/json")
    result = Result(
        job_id=job_id, attempt=1, request=Client(redis).job(job_id).request(), video_key="v", report_key="p",
        playlist_key=None, pieces=[],
    )  # fmt: skip
    store.put_once(result_key(job_id), result.model_dump_json().encode(), content_type="application/json")
    lease.finish(FINISHED.model_copy(update={"store_url": file_store_url}), RESULT)

    async def read(client, folder):
        job = await client.job(job_id)
        finished = await job.wait(timeout_s=10)
        assert [event.kind async for event in job.events(timeout_s=10)] == [e.kind for e in await job.news()]
        assert (await job.kept(), await job.result()) == (KEPT, result)
        assert (await job.fetch(folder)).read_bytes() == b"video"
        assert (await job.urls()).video.startswith("file://")
        with pytest.raises(CancelRefused):
            await job.cancel()
        return finished

    assert talk(read, open_folder(file_store_url)).store_url == file_store_url
    assert Client(redis).job(job_id).urls() == talk(lambda client: links(client, job_id), store_url=file_store_url)


def open_folder(url):
    return open_store(url)._root / "fetched"


async def links(client, job_id):
    return await (await client.job(job_id)).urls()


def test_what_is_told_while_a_task_follows_comes_as_it_is_told(talk, redis, leases, claim, submit):
    job_id = submit()
    with ThreadPoolExecutor(1) as threads:

        async def follow(client):
            seen = []
            async for event in (await client.job(job_id)).events(timeout_s=20):
                seen.append(event)
                if event.kind == "queued":
                    threads.submit(lambda: lease_and_tell(claim, job_id))
            return seen

        seen = talk(follow)
    assert [event.kind for event in seen] == ["queued", "started", "step_done", "failed"]
    assert sorted(event.id for event in seen) == [event.id for event in seen]


def lease_and_tell(claim, job_id):
    lease = claim(job_id)
    lease.tell(STEP)
    lease.fail(FAILED, "refused")


def test_a_job_that_ended_without_a_word_ends_its_follower(talk, redis, submit):
    job_id = submit()
    redis.hset(f"rq:job:{job_id}", "status", "failed")

    async def wait(client):
        with pytest.raises(JobFailed, match="stop before its end"):
            await (await client.job(job_id)).wait(timeout_s=20)

    talk(wait)


def test_errors_are_the_same(talk):
    async def ask(client):
        with pytest.raises(JobNotFound, match="no job nonesuch"):
            await client.job("nonesuch")

    talk(ask)

    async def open_nowhere():
        with pytest.raises(RedisUnavailable, match=r"redis://127\.0\.0\.1:1/0 does not answer"):
            await AsyncClient.open("redis://127.0.0.1:1/0")
        client = AsyncClient(AsyncRedis.from_url("redis://127.0.0.1:1/0", retry=None))
        with pytest.raises(RedisUnavailable):
            await client.submit(REQUEST)

    asyncio.run(open_nowhere())


@pytest.mark.parametrize("seen", range(5))
def test_events_go_on_from_any_event_that_was_seen(talk, redis, claim, submit, seen):
    job_id = submit()
    lease = claim(job_id)
    lease.tell(STEP, StepDone(step=2, steps=2, sigma=0.5, seconds=0.1))
    lease.finish(FINISHED, RESULT)
    job = Client(redis).job(job_id)
    told = job.news()
    since = told[seen].id

    async def follow(client):
        return [event async for event in (await client.job(job_id)).events(since=since, timeout_s=20)]

    assert list(job.events(since=since, timeout_s=20)) == talk(follow) == told[seen + 1 :] == job.news(since=since)


@pytest.mark.parametrize(
    "since",
    [
        *("", "x", "1-", "-1", "1 2", "$", "1-1-1", "\N{FULLWIDTH DIGIT ONE}", "9" * 30, "9" * 20),
        *("18446744073709551616-0", "1-99999999999999999999", "18446744073709551615-18446744073709551615"),
    ],
)
def test_what_is_no_event_id_is_refused_before_an_answer_is_begun(redis, submit, since):
    job = Client(redis).job(submit())
    with pytest.raises(EventIdInvalid):
        job.events(since=since)
    with pytest.raises(EventIdInvalid):
        job.news(since=since)


def test_many_are_queued_in_their_order_and_with_their_outcomes(talk, redis):
    requests = [GenerateRequest.parse(REQUEST | {"seed": seed}) for seed in range(1200)]
    submissions = [Submission(request, "batch", f"night {request.seed}") for request in requests]
    first = Client(redis).submit_many(submissions)
    assert {submitted.outcome for submitted in first} == {Outcome.QUEUED}
    assert [job_id.decode() for job_id in redis.lrange("rq:queue:batch", 0, -1)] == [s.job_id for s in first]
    other = Submission(GenerateRequest.parse({"prompt": "another"}), "batch", "night 7")
    new = Submission(requests[0], "batch", None)

    async def again(client):
        return await client.submit_many([*submissions[5:8], other, new])

    outcomes = talk(again)
    assert [(s.job_id, s.outcome) for s in outcomes[:4]] == [
        *((known.job_id, "known") for known in first[5:8]),
        (first[7].job_id, "conflict"),
    ]
    assert outcomes[4].outcome == "queued"
    assert redis.llen("rq:queue:batch") == 1201


def test_a_redis_that_has_forgotten_the_script_is_told_it_again(redis):
    client = Client(redis)
    client.submit(REQUEST)
    redis.script_flush()
    assert client.submit_many([FIRST_ONLY, FIRST_ONLY])[1].outcome is Outcome.KNOWN


def test_a_webhook_is_noted_when_its_job_ends(redis, claim):
    client = Client(redis)
    job, silent = client.submit(REQUEST, webhook="https://example.org/hook?job=1"), client.submit(REQUEST)
    claim(silent.id).finish(FINISHED, RESULT)
    claim(job.id).hand_back("fatal", "rank 1 died")
    assert redis.xlen("h3:webhooks") == 0
    claim(job.id).finish(FINISHED, RESULT)
    [(_, fields)] = redis.xrange("h3:webhooks")
    url = b"https://example.org/hook?job=1"
    assert fields == {b"job": job.id.encode(), b"url": url, b"outcome": b"finished"}


def test_a_webhook_is_noted_whichever_way_its_job_ends(redis, claim, use_up):
    client = Client(redis)
    failed, dead, canceled = (client.submit(REQUEST, webhook="https://example.org") for _ in range(3))
    claim(failed.id).fail(FAILED, "refused")
    use_up(claim(dead.id))
    canceled.cancel()
    noted = [fields[b"job"].decode() for _, fields in redis.xrange("h3:webhooks")]
    assert noted == [failed.id, dead.id, canceled.id]


def test_an_attempt_that_is_not_the_one_that_is_meant_is_not_canceled(talk, claim, submit):
    job_id = submit()
    claim(job_id)

    async def cancel(client):
        job = await client.job(job_id)
        with pytest.raises(CancelRefused, match=r"attempt 2 of job .* is not running: attempt 1 runs"):
            await job.cancel(attempt=2)
        return await job.cancel(attempt=1)

    assert talk(cancel) is False


def test_many_tasks_follow_one_job_and_the_client_has_time_for_others(talk, redis, claim, submit):
    job_id = submit()

    async def follow_all(client):
        job = await client.job(job_id)

        async def follow():
            return [event async for event in job.events(timeout_s=20)]

        tasks = [asyncio.create_task(follow()) for _ in range(120)]
        # Each has its own connection. That all of them wait at one moment may not be seen on a busy machine.
        await asyncio.to_thread(eventually, lambda: len(redis.client_list()) > 120)
        assert (await (await client.submit(REQUEST)).status()).state == "waiting"
        await asyncio.to_thread(lease_and_tell, claim, job_id)
        return await asyncio.gather(*tasks)

    followed = talk(follow_all)
    assert all(without_ids(told)[-1] == FAILED for told in followed)
    assert {tuple(event.id for event in told) for told in followed} == {tuple(event.id for event in followed[0])}


def test_a_task_that_is_cancelled_leaves_the_client_usable(talk, redis, submit):
    job_id = submit()

    async def follow_and_stop(client):
        job = await client.job(job_id)
        following = asyncio.create_task(anext(job.events(since=(await job.news())[-1].id)))
        await asyncio.to_thread(eventually, lambda: "xread" in str(redis.client_list()))
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        return (await job.status()).position

    assert talk(follow_and_stop) == 1


def test_a_picture_is_put_where_requests_find_it(talk, redis, tmp_path, file_store_url):
    picture = tmp_path / "kite.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n picture")
    store = open_store(file_store_url)
    key = Client(redis, store).put_picture(picture)
    assert store.get(key) == picture.read_bytes()
    assert talk(lambda client: client.put_picture(store.url(key)), store_url=file_store_url) == key
    assert Client(redis).submit(REQUEST | {"first_frame": key}).request().first_frame == key
