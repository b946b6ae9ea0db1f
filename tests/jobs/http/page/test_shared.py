"""What many look at is read once, and no longer than it is good."""

import asyncio
import itertools
import threading

import pytest
from markupsafe import Markup

from jobs.errors import RedisUnavailable
from jobs.http.page import batch_reading, shared
from jobs.http.page.batch_reading import Remembered
from jobs.http.page.shared import SharedLooks


@pytest.fixture
def count():
    numbers = itertools.count(1)
    return lambda: next(numbers)


def test_of_many_who_look_at_once_one_reads_and_whoever_looks_later_reads_anew(count, monkeypatch):
    async def look():
        await asyncio.sleep(0.01)
        return Markup(count())

    async def look_together():
        return await asyncio.gather(*(looks.get(key, look) for key in ("all", "all", "own ada")))

    async def run():
        seen = [await look_together()]
        looks.forget()
        seen.append(await look_together())
        monkeypatch.setattr(shared, "GOOD_FOR_S", 0.0)
        looks.forget()
        seen += [[await looks.get("all", look)], [await looks.get("all", look)]]
        return seen

    monkeypatch.setattr(shared, "GOOD_FOR_S", 60.0)
    looks = SharedLooks()
    first, second, third, fourth = asyncio.run(run())
    assert first[0] == first[1]
    assert len({*first, *second, *third, *fourth}) == 6


def test_what_is_seen_while_something_is_done_is_not_shown_to_whoever_did_it(count, monkeypatch):
    async def look():
        began.set()
        await done.wait()
        return Markup(count())

    async def run():
        before = asyncio.create_task(looks.get("all", look))
        await began.wait()
        looks.forget()
        after = asyncio.create_task(looks.get("all", look))
        done.set()
        return await before, await after

    monkeypatch.setattr(shared, "GOOD_FOR_S", 60.0)
    looks, began, done = SharedLooks(), asyncio.Event(), asyncio.Event()
    assert asyncio.run(run()) == ("1", "2")


def test_many_who_look_while_the_farm_is_away_wait_for_one_failure(count, monkeypatch):
    async def fail():
        count()
        await asyncio.sleep(0.01)
        raise RedisUnavailable("away")

    async def look():
        return Markup(count())

    async def run():
        asked = [looks.get("all", fail) for _ in range(8)]
        failures = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(failure) for failure in failures] == ["away"] * 8
        monkeypatch.setattr(shared, "GOOD_FOR_S", 0.0)
        with pytest.raises(RedisUnavailable):
            await looks.get("all", look)
        looks.forget()
        with pytest.raises(RedisUnavailable):
            await looks.get("all", fail)
        return await looks.get("all", look)

    monkeypatch.setattr(shared, "GOOD_FOR_S", 60.0)
    looks = SharedLooks()
    assert asyncio.run(run()) == "3"


def test_what_fails_for_one_alone_is_not_kept(count, monkeypatch):
    async def fail():
        raise asyncio.CancelledError  # they have gone

    async def look():
        return Markup(count())

    async def run():
        with pytest.raises(asyncio.CancelledError):
            await looks.get("all", fail)
        return await looks.get("all", look)

    monkeypatch.setattr(shared, "GOOD_FOR_S", 60.0)
    looks = SharedLooks()
    assert asyncio.run(run()) == "1"


def test_a_batch_is_read_once_for_all_threads(count, monkeypatch):
    monkeypatch.setattr(batch_reading, "SHORTEST_REST_S", 60.0)
    remembered, seen = Remembered(), []
    threads = [threading.Thread(target=lambda: seen.append(remembered.get("trailer", count))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 8
    remembered.forget()
    assert remembered.get("trailer", count) == 2
    for number in range(2 * batch_reading.KEPT):
        remembered.get(str(number), count)
    assert remembered.get("trailer", lambda: "forgotten") == "forgotten"


def test_threads_that_ask_for_batches_while_redis_is_away_wait_for_one_failure(count, monkeypatch):
    def fail():
        count()
        raise RedisUnavailable("away")

    monkeypatch.setattr(batch_reading, "SHORTEST_REST_S", 60.0)
    remembered = Remembered()
    for _ in range(8):
        with pytest.raises(RedisUnavailable):
            remembered.get("trailer", fail)
    remembered.forget()
    assert remembered.get("trailer", count) == 2
