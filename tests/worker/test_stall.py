"""How long a fleet may be silent. Time is an argument: nothing here waits."""

from pathlib import Path

import pytest

from worker import items
from worker.stall import MOST_REMEMBERED, StallLimits, StallWatch

LIMITS = StallLimits(first_step_s=600, step_s=180, clip_s=120)
SHAPE, OTHER_SHAPE = (1344, 768, 124), (64, 64, 22)
FILE = Path("never-opened")


class Fleet:
    """A clock, and the watch that a worker keeps by it."""

    def __init__(self, watch=None):
        self.watch = watch or StallWatch(LIMITS)
        self.now = 1000.0

    def begin(self, shape=SHAPE):
        self.watch.begin(shape, self.now)
        return self

    def yields(self, *yielded, every_s=1.0):
        for item in yielded:
            self.now += every_s
            self.watch.saw(item)
            self.watch.expect(self.now)
        return self

    def allows(self):
        """Seconds from now after which something is overdue, found from outside."""
        limit_s = next(s for s in range(100_000) if self.watch.overdue(self.now + s + 0.5))
        assert not self.watch.overdue(self.now + limit_s)
        return limit_s


def steps(*seconds, of=100):
    return [items.StepDone(number, of, 1.0, s) for number, s in enumerate(seconds, 1)]


def test_nothing_is_overdue_before_an_attempt_begins():
    assert not StallWatch(LIMITS).overdue(1e12)


def test_the_first_step_of_a_shape_has_time_to_compile():
    assert Fleet().begin().allows() == 600


def test_the_text_leaves_the_first_step_its_whole_time():
    assert Fleet().begin().yields(items.TextEncoded(7, 0.1), every_s=500).allows() == 600


def test_a_later_step_has_the_least_limit_while_steps_are_quick():
    assert Fleet().begin().yields(*steps(1.0, 1.0)).allows() == 180


def test_a_later_step_has_ten_times_the_median_step_if_that_is_more():
    assert Fleet().begin().yields(*steps(30.0, 40.0, 50.0)).allows() == 400


def test_one_slow_step_moves_the_limit_no_further_than_the_median():
    assert Fleet().begin().yields(*steps(20.0, 900.0, 20.0)).allows() == 200


def test_only_the_latest_steps_of_a_shape_count():
    old, new = [90.0] * 3, [20.0] * MOST_REMEMBERED
    assert Fleet().begin().yields(*steps(*old, of=1000)).allows() == 900
    assert Fleet().begin().yields(*steps(*old, *new, of=1000)).allows() == 200


def test_each_shape_has_its_own_steps():
    fleet = Fleet().begin(SHAPE).yields(*steps(50.0, 50.0))
    assert fleet.allows() == 500
    assert fleet.begin(OTHER_SHAPE).allows() == 600
    assert fleet.yields(*steps(1.0)).allows() == 180
    assert fleet.begin(SHAPE).allows() == 500


def test_a_second_attempt_at_a_known_shape_is_held_to_its_median_from_the_first_step_on():
    fleet = Fleet().begin().yields(*steps(25.0, 25.0))
    fleet.watch.pause()  # the attempt is lost
    fleet.now += 10_000
    assert fleet.begin().allows() == 250


def test_a_second_attempt_awaits_a_step_though_the_first_had_come_to_its_clips():
    fleet = Fleet().begin().yields(*steps(25.0, of=1), items.StreamHeader(FILE, 2), items.Segment(0, FILE, 0.7))
    assert fleet.allows() == 120
    assert fleet.begin().allows() == 250
    assert fleet.watch.overdue(fleet.now + 251).startswith("no step for 251 s")


@pytest.mark.parametrize(
    "yielded",
    [
        steps(1.0, 1.0, of=2),
        [*steps(1.0, of=1), items.Checkpoint(1, FILE)],
        [*steps(1.0, of=1), items.StreamHeader(FILE, 2)],
        [*steps(1.0, of=1), items.StreamHeader(FILE, 2), items.Segment(0, FILE, 0.7)],
        [items.StreamHeader(FILE, 2)],  # resumed after its last step
        [items.Segment(1, FILE, 0.7)],  # resumed between two clips
    ],
    ids=["last step", "last checkpoint", "header", "segment", "resumed header", "resumed segment"],
)
def test_a_clip_has_the_clip_limit(yielded):
    fleet = Fleet().begin().yields(*yielded)
    assert fleet.allows() == 120
    assert fleet.watch.overdue(fleet.now + 121) == "no clip for 121 s (limit 120 s)"


def test_a_slow_step_says_nothing_about_a_clip():
    assert Fleet().begin().yields(*steps(100.0, 100.0, of=2)).allows() == 120


@pytest.mark.parametrize(
    "item",
    [items.Preview(1, FILE), items.Checkpoint(1, FILE), items.TextEncoded(7, 0.1)],
    ids=lambda i: type(i).__name__,
)
def test_whatever_else_is_yielded_renews_the_limit_and_does_not_change_it(item):
    fleet = Fleet().begin().yields(*steps(1.0), item, every_s=170)
    assert fleet.allows() == 180


def test_the_fleet_owes_nothing_while_the_worker_is_busy_with_what_it_yielded():
    fleet = Fleet().begin().yields(*steps(1.0))
    fleet.watch.saw(steps(1.0, 1.0)[1])
    assert not fleet.watch.overdue(fleet.now + 1e9)
    fleet.now += 10_000
    fleet.watch.expect(fleet.now)
    assert fleet.allows() == 180


def test_nothing_is_overdue_after_a_pause_until_the_next_begin():
    fleet = Fleet().begin()
    fleet.watch.pause()
    assert not fleet.watch.overdue(fleet.now + 1e9)
    assert fleet.begin().allows() == 600


def test_what_is_overdue_is_said_with_its_numbers():
    fleet = Fleet().begin()
    assert fleet.watch.overdue(fleet.now + 601) == "no step for 601 s (limit 600 s)"


def test_an_item_that_comes_between_two_looks_is_not_taken_for_a_stall():
    """The thread that looks has read when the step began; the step ends; the limit it then reads is a clip's."""

    class Interrupted(StallWatch):
        @property
        def limit_s(self):
            self.saw(steps(1.0, 170.0, of=2)[1])
            return super().limit_s

    fleet = Fleet(Interrupted(LIMITS)).begin()
    fleet.watch.saw(steps(1.0)[0])
    fleet.watch.expect(fleet.now)
    assert not fleet.watch.overdue(fleet.now + 170)
