"""Operations of asyncio clients end when their task is canceled, whatever a library makes of that."""

import asyncio

import pytest

from jobs.errors import RedisUnavailable
from jobs.operation import run_async


def asking(call):
    """An operation of one call."""
    return (yield call)


async def forget_cancel(_):
    """As redis-py does now and then."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "an answer"


async def answer(_):
    await asyncio.sleep(0)
    return "an answer"


def test_a_cancel_that_a_library_forgets_is_heeded_and_what_cleans_up_after_it_goes_on():
    async def work():
        try:
            await run_async(asking(forget_cancel), None)
        finally:
            cleaned.append(await run_async(asking(answer), None))

    async def begin_and_cancel():
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    cleaned = []
    asyncio.run(begin_and_cancel())
    assert cleaned == ["an answer"]


def test_a_connection_that_uvloop_finds_closed_is_redis_being_away():
    async def write_to_closed(_):
        raise RuntimeError("unable to perform operation on <UnixTransport closed=True>; the handler is closed")

    with pytest.raises(RedisUnavailable, match="has closed the connection"):
        asyncio.run(run_async(asking(write_to_closed), None))


def test_what_else_goes_wrong_is_told_as_it_is():
    async def fail(_):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        asyncio.run(run_async(asking(fail), None))
