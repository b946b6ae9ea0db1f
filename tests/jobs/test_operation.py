"""Operations of asyncio clients end when their task is canceled, whatever a library makes of that."""

import asyncio

import pytest

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
