import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.waiting import eventually
from worker.lane import Lane

DEADLINE_S = 20.0
MOMENT_S = 0.2  # in which what must wait is seen to wait


class Judged(Exception):
    """What the owner makes of a failure."""


class Gate:
    """Work that goes on until it is let through."""

    def __init__(self):
        self.is_reached, self._open = threading.Event(), threading.Event()

    def __call__(self):
        self.is_reached.set()
        assert self._open.wait(DEADLINE_S)

    def open(self):
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def new_lane():
    """Make lanes that end with the test, each with the failures that its owner heard of."""
    lanes = []

    def make(judge=lambda error: Judged(str(error)), **limits):
        def on_failure(error):
            heard.append((str(error), threading.current_thread().name))
            return judge(error)

        heard, name = [], f"lane-{uuid4().hex}"
        lane = Lane(name, on_failure, **limits)
        lane.heard, lane.name = heard, name
        lanes.append(lane)
        return lane

    yield make
    for lane in lanes:
        lane.close()


@pytest.fixture
def in_thread():
    """Call something in a thread of its own; gives what is set when it has returned."""
    threads = []

    def call(function, *arguments, **keywords):
        def run():
            function(*arguments, **keywords)
            has_returned.set()

        has_returned = threading.Event()
        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return has_returned

    yield call
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def is_running(lane):
    return lane.name in [thread.name for thread in threading.enumerate()]


def fail_with(text):
    def fail():
        raise RuntimeError(text)

    return fail


# --- order


def test_work_is_done_in_order_in_one_thread_that_is_not_the_callers(new_lane):
    lane, done = new_lane(), []
    for number in range(100):
        lane.add(lambda number=number: done.append((number, threading.current_thread().name)))
    lane.drain()
    assert done == [(number, lane.name) for number in range(100)]


def test_whoever_adds_work_does_not_wait_for_it(new_lane, gate):
    lane = new_lane(most_bytes=100)
    for _ in range(10):
        lane.add(gate, size_bytes=10)
    assert gate.is_reached.wait(DEADLINE_S)


def test_drain_waits_for_what_is_being_done_too(new_lane, gate, in_thread):
    lane = new_lane()
    lane.add(gate)
    assert gate.is_reached.wait(DEADLINE_S)
    has_drained = in_thread(lane.drain)
    assert not has_drained.wait(MOMENT_S)
    gate.open()
    assert has_drained.wait(DEADLINE_S)


def test_a_lane_can_be_used_and_drained_again_and_again(new_lane):
    lane, done = new_lane(), []
    lane.drain()  # nothing to wait for
    for number in range(3):
        lane.add(lambda number=number: done.append(number))
        lane.drain()
        assert done == list(range(number + 1))


def test_work_may_add_work(new_lane):
    lane, done = new_lane(), []
    lane.add(lambda: lane.add(lambda: done.append("inner")))
    lane.drain()
    assert done == ["inner"]


# --- several threads


def test_as_much_is_done_at_once_as_there_are_threads(new_lane):
    lane, meeting = new_lane(threads=3), threading.Barrier(3)
    for _ in range(3):
        lane.add(lambda: meeting.wait(DEADLINE_S))
    lane.drain()


def test_what_follows_is_done_in_the_order_of_the_calls_whatever_is_done_first(new_lane, gate):
    lane, followed = new_lane(threads=3), []
    lane.add(lambda: (gate(), "slow")[1], followed.append)
    lane.add(lambda: "quick", followed.append)
    lane.add(lambda: "quick too", followed.append)
    others_are_done = threading.Event()
    lane.add(others_are_done.set)
    assert others_are_done.wait(DEADLINE_S)
    assert followed == []
    gate.open()
    lane.drain()
    assert followed == ["slow", "quick", "quick too"]


def test_what_follows_is_never_done_twice_at_once(new_lane):
    lane, alone, followed = new_lane(threads=4), threading.Lock(), []

    def follow(number):
        assert alone.acquire(blocking=False)
        followed.append(number)
        alone.release()

    for number in range(500):
        lane.add(lambda number=number: number, follow)
    lane.drain()
    assert followed == [*range(500)]


def test_nothing_begins_before_what_must_be_first_is_done(new_lane, gate):
    lane, begun = new_lane(threads=4), threading.Event()
    lane.add(gate, first=True)
    lane.add(begun.set)
    assert gate.is_reached.wait(DEADLINE_S)
    assert not begun.wait(MOMENT_S)
    gate.open()
    lane.drain()
    assert begun.is_set()


def test_nothing_begins_if_what_must_be_first_fails(new_lane):
    lane, done = new_lane(threads=4), []
    lane.add(fail_with("first"), first=True)
    lane.add(lambda: done.append("later"))
    with pytest.raises(Judged, match="first"):
        lane.drain()
    assert done == []


def test_a_failure_of_what_follows_is_a_failure(new_lane):
    lane, followed = new_lane(threads=2), []
    lane.add(lambda: None, lambda _: fail_with("afterwards")())
    with pytest.raises(Judged, match="afterwards"):
        lane.drain()
    lane.add(lambda: None, followed.append)
    assert followed == []


def test_several_failures_at_once_are_heard_of_once(new_lane):
    lane, meeting = new_lane(threads=4), threading.Barrier(4)
    for _ in range(4):
        lane.add(lambda: (meeting.wait(DEADLINE_S), fail_with("together")()))
    with pytest.raises(Judged):
        lane.drain()
    eventually(lambda: not is_running(lane), timeout_s=DEADLINE_S)
    assert len(lane.heard) == 1


def test_what_follows_knows_whether_another_follows_at_once(new_lane, gate):
    """One that has not been done is no reason to wait: it may take long."""
    lane, more = new_lane(threads=2), []
    lane.add(lambda: None, lambda _: (gate(), more.append(lane.has_more())))
    assert gate.is_reached.wait(DEADLINE_S)
    is_done = threading.Event()
    lane.add(is_done.set, lambda _: more.append(lane.has_more()))
    assert is_done.wait(DEADLINE_S)
    slow = Gate()
    lane.add(slow)
    assert slow.is_reached.wait(DEADLINE_S)
    gate.open()
    eventually(lambda: len(more) == 2)
    slow.open()
    assert more == [True, False]


def test_what_has_failed_does_not_follow(new_lane, gate):
    lane, more = new_lane(threads=2), []
    lane.add(lambda: None, lambda _: (gate(), more.append(lane.has_more())))
    assert gate.is_reached.wait(DEADLINE_S)
    lane.add(fail_with("first"))
    with pytest.raises(Judged):
        lane.drain()
    gate.open()
    lane.settle(DEADLINE_S)
    assert more == [False]


# --- failures


def test_nothing_is_done_after_the_first_failure(new_lane, gate):
    lane, done = new_lane(), []
    lane.add(gate)
    lane.add(fail_with("first"))
    lane.add(lambda: done.append("queued before it failed"))
    gate.open()
    with pytest.raises(Judged):
        lane.drain()
    lane.add(lambda: done.append("added afterwards"))
    with pytest.raises(Judged):
        lane.drain()
    assert done == []
    assert lane.heard == [("first", lane.name)]


def test_what_was_begun_before_what_failed_is_done_with_what_follows_it(new_lane, gate, in_thread):
    """Or what a store has taken would be lost, because it has refused something else."""
    lane, followed = new_lane(threads=3), []
    lane.add(lambda: gate() or "before", followed.append)
    lane.add(lambda: "done already", followed.append)
    lane.add(fail_with("first"), followed.append)
    with pytest.raises(Judged, match="first"):  # at once
        lane.drain()
    has_settled = in_thread(lane.settle, DEADLINE_S)
    assert not has_settled.wait(MOMENT_S)
    gate.open()
    assert has_settled.wait(DEADLINE_S)
    assert followed == ["before", "done already"]


def test_nothing_follows_what_comes_after_what_failed(new_lane, gate):
    lane, followed = new_lane(threads=2), []
    lane.add(lambda: (gate(), fail_with("first")()))
    is_done = threading.Event()
    lane.add(is_done.set, followed.append)
    assert is_done.wait(DEADLINE_S)
    gate.open()
    lane.settle(DEADLINE_S)
    with pytest.raises(Judged):
        lane.drain()
    eventually(lambda: not is_running(lane), timeout_s=DEADLINE_S)
    assert followed == []


def test_nothing_begins_while_the_owner_judges(new_lane, gate):
    lane, done = new_lane(lambda error: (gate(), Judged(str(error)))[1], threads=2), []
    lane.add(fail_with("first"))
    assert gate.is_reached.wait(DEADLINE_S)
    lane.add(lambda: done.append("added while it was judged"))
    gate.open()
    with pytest.raises(Judged):
        lane.drain()
    assert done == []


def test_what_the_owner_makes_of_a_failure_is_what_drain_raises(new_lane):
    lane = new_lane(judge=lambda error: Judged(f"judged: {error}"))
    lane.add(fail_with("first"))
    with pytest.raises(Judged, match="judged: first"):
        lane.drain()


def test_the_owner_hears_of_a_failure_without_asking(new_lane):
    lane = new_lane()
    lane.add(fail_with("first"))
    assert eventually(lambda: lane.heard) == [("first", lane.name)]


def test_an_owner_that_fails_to_judge_leaves_nobody_waiting(new_lane, in_thread):
    raised = []

    def judge(error):
        raise Judged("the owner is broken")

    def drain():
        try:
            lane.drain()
        except Judged as exc:
            raised.append(str(exc))

    lane = new_lane(judge)
    lane.add(fail_with("first"))
    assert in_thread(drain).wait(DEADLINE_S)
    assert raised == ["the owner is broken"]


def test_a_failure_releases_whoever_waits_for_room(new_lane, gate, in_thread):
    lane = new_lane(most_bytes=10)
    lane.add(lambda: (gate(), fail_with("first")()), size_bytes=10)
    has_added = in_thread(lane.add, gate, size_bytes=10)
    assert not has_added.wait(MOMENT_S)
    gate.open()
    assert has_added.wait(DEADLINE_S)
    with pytest.raises(Judged):
        lane.drain()


# --- the bound


@pytest.fixture
def filled(new_lane, gate):
    """A lane whose first work goes on, with room for three of ten bytes; and what was done and dropped."""
    lane = new_lane(most_bytes=30)
    lane.done, lane.dropped = [], []
    lane.add(gate, size_bytes=10)
    assert gate.is_reached.wait(DEADLINE_S)

    def add(name, size_bytes=10, *, may_drop=False):
        drop = (lambda: lane.dropped.append(name)) if may_drop else None
        lane.add(lambda: lane.done.append(name), size_bytes=size_bytes, drop=drop)

    lane.add_named = add
    return lane


def finish(lane, gate):
    gate.open()
    lane.drain()
    return lane.done


def test_nothing_is_dropped_while_there_is_room(filled, gate):
    filled.add_named("preview 1", may_drop=True)
    filled.add_named("preview 2", may_drop=True)
    assert filled.dropped == []
    assert finish(filled, gate) == ["preview 1", "preview 2"]


def test_the_oldest_that_may_be_dropped_makes_room(filled, gate):
    filled.add_named("segment")
    filled.add_named("preview 1", may_drop=True)
    for number in (2, 3, 4):
        filled.add_named(f"preview {number}", may_drop=True)
    assert filled.dropped == ["preview 1", "preview 2", "preview 3"]
    assert finish(filled, gate) == ["segment", "preview 4"]


def test_as_many_are_dropped_as_the_room_needs_and_no_more(filled, gate):
    for number in range(1, 5):
        filled.add_named(f"preview {number}", 5, may_drop=True)
    filled.add_named("segment", 8)
    assert filled.dropped == ["preview 1", "preview 2"]
    assert finish(filled, gate) == ["preview 3", "preview 4", "segment"]


def test_what_is_dropped_makes_room_for_good(filled, gate):
    for number in range(50):
        filled.add_named(f"preview {number}", 20, may_drop=True)
    assert finish(filled, gate) == ["preview 49"]
    filled.add_named("segment", 30)
    filled.drain()
    assert filled.done == ["preview 49", "segment"]


def test_add_waits_if_nothing_may_be_dropped(filled, gate, in_thread):
    filled.add_named("segment 1")
    filled.add_named("segment 2")
    has_added = in_thread(filled.add_named, "segment 3")
    assert not has_added.wait(MOMENT_S)
    gate.open()
    assert has_added.wait(DEADLINE_S)
    filled.drain()
    assert filled.done == ["segment 1", "segment 2", "segment 3"]


def test_what_is_being_done_is_never_dropped(new_lane, gate, in_thread):
    lane, dropped, done = new_lane(most_bytes=10), [], []
    lane.add(gate, size_bytes=10, drop=lambda: dropped.append("begun"))
    assert gate.is_reached.wait(DEADLINE_S)
    has_added = in_thread(lane.add, lambda: done.append("next"), size_bytes=10)
    assert not has_added.wait(MOMENT_S)
    gate.open()
    assert has_added.wait(DEADLINE_S)
    lane.drain()
    assert (dropped, done) == ([], ["next"])


def test_work_that_is_larger_than_the_bound_is_done_alone(new_lane, gate, in_thread):
    lane, done = new_lane(most_bytes=10), []
    lane.add(gate, size_bytes=1000)
    has_added = in_thread(lane.add, lambda: done.append("small"), size_bytes=1)
    assert not has_added.wait(MOMENT_S)
    gate.open()
    assert has_added.wait(DEADLINE_S)
    lane.drain()
    assert done == ["small"]


def test_work_of_no_size_never_waits_in_a_lane_without_a_bound(new_lane, gate):
    lane, done = new_lane(), []
    lane.add(gate)
    for number in range(1000):
        lane.add(lambda number=number: done.append(number))
    gate.open()
    lane.drain()
    assert len(done) == 1000


def test_what_may_be_dropped_never_waits_and_is_dropped_if_there_is_no_other(filled, gate):
    filled.add_named("segment 1")
    filled.add_named("segment 2")
    filled.add_named("preview", may_drop=True)
    assert filled.dropped == ["preview"]
    assert finish(filled, gate) == ["segment 1", "segment 2"]


def test_room_is_kept_until_what_follows_is_over(new_lane, gate, in_thread):
    lane = new_lane(most_bytes=10)
    lane.add(lambda: None, lambda _: gate(), size_bytes=10)
    assert gate.is_reached.wait(DEADLINE_S)
    has_added = in_thread(lane.add, lambda: None, size_bytes=10)
    assert not has_added.wait(MOMENT_S)
    gate.open()
    assert has_added.wait(DEADLINE_S)


# --- the end


def test_settle_waits_for_what_is_left_and_no_longer_than_it_may(new_lane, gate, in_thread):
    lane = new_lane()
    lane.settle(DEADLINE_S)  # nothing to wait for
    lane.add(gate)
    assert in_thread(lane.settle, MOMENT_S).wait(DEADLINE_S)
    lane.settle(-1.0)
    has_settled = in_thread(lane.settle, DEADLINE_S)
    assert not has_settled.wait(MOMENT_S)
    gate.open()
    assert has_settled.wait(DEADLINE_S)


def test_settle_does_not_wait_for_what_will_never_be_done(new_lane):
    lane = new_lane()
    lane.add(fail_with("first"))
    lane.add(lambda: None)
    lane.settle(DEADLINE_S)  # says nothing of it
    with pytest.raises(Judged):
        lane.drain()


def test_who_gives_up_waits_for_nothing_and_what_is_there_is_still_done(new_lane, gate, in_thread):
    lane, done = new_lane(most_bytes=10), []
    lane.add(gate, size_bytes=10)
    assert gate.is_reached.wait(DEADLINE_S)
    lane.add(lambda: None, done.append)
    has_added = in_thread(lane.add, lambda: done.append("no room"), size_bytes=10)
    assert not has_added.wait(MOMENT_S)
    lane.give_up(Judged("it takes too long"))
    assert has_added.wait(DEADLINE_S)
    with pytest.raises(Judged, match="too long"):
        lane.drain()
    lane.add(lambda: "added afterwards", done.append)
    gate.open()
    lane.settle(DEADLINE_S)
    assert done == [None, "added afterwards"]
    assert lane.heard == []


def test_close_abandons_what_waits_and_not_what_is_being_done(new_lane, gate, in_thread):
    lane, done = new_lane(), []
    lane.add(lambda: (gate(), done.append("begun")))
    lane.add(lambda: done.append("waiting"))
    assert gate.is_reached.wait(DEADLINE_S)
    assert in_thread(lane.close).wait(DEADLINE_S)  # it does not wait for the work
    lane.add(lambda: done.append("too late"))
    gate.open()
    eventually(lambda: not is_running(lane), timeout_s=DEADLINE_S)
    assert done == ["begun"]


def test_close_releases_whoever_waits_for_room(new_lane, gate, in_thread):
    lane, done = new_lane(most_bytes=10), []
    lane.add(gate, size_bytes=10)
    has_added = in_thread(lane.add, lambda: done.append("too late"), size_bytes=10)
    assert not has_added.wait(MOMENT_S)
    lane.close()
    assert has_added.wait(DEADLINE_S)
    gate.open()
    eventually(lambda: not is_running(lane), timeout_s=DEADLINE_S)
    assert done == []


def test_close_releases_whoever_drains(new_lane, gate, in_thread):
    lane = new_lane()
    lane.add(gate)
    lane.add(lambda: None)
    has_drained = in_thread(lane.drain)
    assert not has_drained.wait(MOMENT_S)
    lane.close()
    assert has_drained.wait(DEADLINE_S)


def test_a_closed_lane_leaves_no_thread_behind(new_lane):
    lane = new_lane()
    assert is_running(lane)
    lane.close()
    lane.close()  # as often as anybody likes
    eventually(lambda: not is_running(lane), timeout_s=DEADLINE_S)


def test_a_failed_lane_leaves_no_thread_behind(new_lane):
    lane = new_lane()
    lane.add(fail_with("first"))
    eventually(lambda: not is_running(lane), timeout_s=DEADLINE_S)


def test_a_thread_ends_though_its_last_work_fails_after_the_close(new_lane, gate):
    lane = new_lane()
    lane.add(lambda: (gate(), fail_with("late")()))
    assert gate.is_reached.wait(DEADLINE_S)
    lane.close()
    gate.open()
    eventually(lambda: not is_running(lane), timeout_s=DEADLINE_S)
