"""How long a render takes, by what was measured: rows worked out by hand, and the records on a real Redis."""

import pytest

from jobs.errors import RedisUnavailable
from jobs.offers import Offer
from jobs.render_times import (
    CLASSES_KEY,
    KEPT_S,
    MOST_CLASSES,
    MOST_TIMES,
    TIMES_KEY,
    Estimate,
    RenderClass,
    RenderTimes,
    count_work,
    percentile,
    read_render_times,
    record_render,
)
from jobs.request import Attention, GenerateRequest, Mode, Precision

LARGE = {"width": 1344, "height": 768, "frames": 124}
SMALL = {"width": 864, "height": 480, "frames": 141}


def request(**fields):
    return GenerateRequest(**({"prompt": "a red kite", "seed": 1, **LARGE, "steps": 50} | fields)).resolve()


def measured(*, world_size=8, model_digest="abc", **fields):
    offer = Offer(
        modes=(Mode.ULYSSES,), precisions=(Precision.NVFP4,), world_size=world_size, model_digest=model_digest
    )
    return RenderClass.of(request(**fields), offer, Attention.FA3)


@pytest.mark.parametrize(
    ("size", "steps", "work"),
    [
        ((32, 32, 22), 1, 7 * (1 + 7 / 30_000)),  # 7 latent frames of one token
        ((32, 32, 22), 10, 70 * (1 + 7 / 30_000)),
        ((864, 480, 141), 1, 17_010 * 1.567),  # 42 x 27 x 15
        ((1344, 768, 124), 50, 50 * 37_296 * 2.2432),  # 37 x 42 x 24
    ],
)
def test_work_is_linear_in_steps_and_has_a_square_of_tokens(size, steps, work):
    assert count_work(*size, steps) == pytest.approx(work)


def test_work_goes_as_the_steps_that_were_measured():
    """Of docs/performance.md, in bf16."""
    ratio = count_work(*LARGE.values(), 1) / count_work(*SMALL.values(), 1)
    assert ratio == pytest.approx(5.244 / 1.721, rel=0.05)


@pytest.mark.parametrize(
    ("weighted", "share", "value"),
    [
        ([(7, 1)], 0.99, 7),
        ([(4, 1), (1, 1), (3, 1), (2, 1)], 0.75, 3),
        ([(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)], 0.75, 4),
        ([(60, 90), (3600, 10)], 0.75, 60),
        ([(60, 90), (3600, 10)], 0.99, 3600),
        ([(60, 99), (3600, 1)], 0.99, 60),
    ],
)
def test_a_percentile_is_the_least_value_within_which_its_share_lies(weighted, share, value):
    assert percentile(weighted, share) == value


FIVE = (300.0, 100.0, 200.0, 500.0, 400.0)
ESTIMATES = [
    ("five of its own", {}, {measured(): FIVE}, (400, 500, 5)),
    ("the same work upright", {"width": 768, "height": 1344}, {measured(): FIVE}, (400, 500, 5)),
    ("its own are enough", {}, {measured(): FIVE, measured(steps=49): (9999.0,)}, (400, 500, 5)),
    ("half the steps", {}, {measured(steps=25): FIVE}, (800, 1000, 5)),
    ("one of its own, the rest scaled", {}, {measured(): (500.0,), measured(steps=25): 4 * (100.0,)}, (200, 500, 5)),
    ("the nearest are enough", {}, {measured(steps=40): 5 * (80.0,), measured(steps=10): (9999.0,)}, (100, 100, 5)),
    ("a single one is better than none", {}, {measured(steps=100): (30.0,)}, (15, 15, 1)),
    ("fewer tokens", {}, {measured(**SMALL): 5 * (100.0,)}, (313.9, 313.9, 5)),
    ("never for nothing", {"steps": 1}, {measured(steps=2): 5 * (0.4,)}, (1, 1, 5)),
    ("too far", {}, {measured(steps=6): FIVE}, (256, 256, 0)),  # 0.04 x 1.344 x 0.768 x 124 x 50
    ("nothing measured", {}, {}, (256, 256, 0)),
    ("nothing measured, and small", {"width": 32, "height": 32, "frames": 22, "steps": 1}, {}, (1, 1, 0)),
    (
        "what it names",
        {"attention": "sage"},
        {measured(): FIVE, measured(attention="sage"): 5 * (50.0,)},
        (50, 50, 5),
    ),
    ("something else than it names", {"attention": "sage"}, {measured(): FIVE}, (400, 500, 5)),
    ("whatever it may run on", {}, {measured(): FIVE, measured(attention="sage"): 5 * (50.0,)}, (300, 500, 10)),
]


@pytest.mark.parametrize(("fields", "times", "expected"), [row[1:] for row in ESTIMATES], ids=[r[0] for r in ESTIMATES])
def test_a_render_is_estimated_by_its_own_size_then_by_the_nearest_then_by_the_pace(fields, times, expected):
    found = RenderTimes(times).estimate(request(**fields))
    assert (found.p75_s, found.p99_s, found.samples) == pytest.approx(expected, abs=0.05)


def test_the_pace_for_what_was_never_measured_is_the_readers():
    assert RenderTimes({}, pace_s=0.4).estimate(request()).p75_s == pytest.approx(2560, abs=0.5)


def test_times_can_be_those_of_like_machines():
    times = RenderTimes({measured(): FIVE, measured(world_size=1): 5 * (2000.0,), measured(model_digest="d"): (1.0,)})
    assert times.measured_on(1).estimate(request()).p75_s == 2000
    assert times.measured_on(8, "abc").estimate(request()) == Estimate(400, 500, 5)
    assert times.measured_on(4).estimate(request()).samples == 0


def test_a_class_has_what_was_run_not_what_was_left_open():
    assert measured().label == "1344x768x124x50/ulysses/nvfp4/fa3/8/abc"
    named = measured(mode="tensor", precision="bf16", attention="sage", model_digest="0123456789abcdef0123")
    assert named.label == "1344x768x124x50/tensor/bf16/sage/8/0123456789abcdef"
    able_of_all = RenderClass.of(request(), Offer())
    assert (able_of_all.mode, able_of_all.precision, able_of_all.attention) == ("auto", "auto", "auto")
    assert not able_of_all.suits(request(mode="ulysses"))


# --- on a real Redis


def test_the_latest_times_of_each_class_are_kept_for_a_while(redis):
    assert read_render_times(redis).seconds == {}
    for number in range(MOST_TIMES + 10):
        record_render(redis, measured(), 100.0 + number)
    record_render(redis, measured(steps=25), 9.5)
    found = read_render_times(redis).seconds
    assert found[measured()] == tuple(100.0 + number for number in reversed(range(10, MOST_TIMES + 10)))
    assert found[measured(steps=25)] == (9.5,)
    for key in (CLASSES_KEY, TIMES_KEY.format(label=measured().label)):
        assert KEPT_S - 60 < redis.ttl(key) <= KEPT_S


def test_of_classes_those_that_were_measured_last_are_kept(redis):
    redis.rpush(CLASSES_KEY, *(f"class {number}" for number in range(MOST_CLASSES)))
    for steps in (1, 2, 1):
        record_render(redis, measured(steps=steps), 5.0)
    assert redis.lrange(CLASSES_KEY, 0, 2) == [
        measured(steps=1).label.encode(),
        measured(steps=2).label.encode(),
        b"class 0",
    ]
    assert redis.llen(CLASSES_KEY) == MOST_CLASSES


def test_what_is_no_time_is_passed_over(redis):
    record_render(redis, measured(), 5.0)
    redis.rpush(TIMES_KEY.format(label=measured().label), "soon", "nan", "inf", "-1", "0", "1e99", b"\xff")
    record_render(redis, measured(steps=25), 0.0)
    record_render(redis, measured(steps=2), 1.0)
    redis.set(TIMES_KEY.format(label=measured(steps=2).label), "somebody's")
    for label in (
        b"\xff",
        "x",
        "1x1x1x1/ulysses/nvfp4/fa3/8/",
        "64x64x22x1/later/nvfp4/fa3/8/",
        "64x64x22x 1/auto/auto/auto/1/",
    ):
        redis.lpush(CLASSES_KEY, label)
    assert read_render_times(redis).seconds == {measured(): (5.0,)}


def test_a_key_of_a_wrong_type_is_told(redis):
    redis.set(CLASSES_KEY, "somebody's")
    with pytest.raises(RedisUnavailable, match="somebody else has written a key of ours"):
        read_render_times(redis)
