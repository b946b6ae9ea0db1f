import pytest

from jobs.offers import OFFER_FIELD, Offer, count_pixels, explain_waiting, read_offers
from jobs.request import Mode, Precision, ResolvedRequest

REQUEST = ResolvedRequest(prompt="a red kite", width=64, height=32, frames=39, steps=2, seed=1)
PIXELS = 64 * 32 * 39
TENSOR = REQUEST.model_copy(update={"mode": Mode.TENSOR})
NVFP4 = REQUEST.model_copy(update={"precision": Precision.NVFP4})


def announce(redis, name, offer):
    """As a worker that is alive does."""
    redis.sadd("rq:workers", f"rq:worker:{name}")
    redis.hset(f"rq:worker:{name}", OFFER_FIELD, offer)


@pytest.mark.parametrize(
    ("offer", "request_", "missing"),
    [
        (Offer(), REQUEST, ""),
        (Offer(), TENSOR, ""),
        (Offer(modes=(Mode.ULYSSES,)), REQUEST, ""),
        (Offer(modes=(Mode.ULYSSES,)), TENSOR, "mode tensor"),
        (Offer(modes=(Mode.TENSOR,)), TENSOR, ""),
        (Offer(precisions=(Precision.BF16,)), REQUEST, ""),
        (Offer(precisions=(Precision.BF16,)), NVFP4, "precision nvfp4"),
        (Offer(precisions=(Precision.BF16, Precision.NVFP4)), NVFP4, ""),
        (Offer(most_pixels=PIXELS), REQUEST, ""),
        (Offer(most_pixels=PIXELS - 1), REQUEST, "memory for 64x32, 39 frames"),
        (Offer(modes=(), precisions=(), most_pixels=0), REQUEST, "memory for 64x32, 39 frames"),
    ],
)
def test_an_offer_tells_what_a_request_lacks(offer, request_, missing):
    assert offer.missing(request_) == missing


def test_pixels_are_those_of_all_frames():
    assert count_pixels(REQUEST) == PIXELS


@pytest.mark.parametrize(
    ("request_", "offers", "text"),
    [
        (REQUEST, [], "waiting: no worker is alive"),
        (REQUEST, [Offer()], ""),
        (TENSOR, [Offer(modes=(Mode.ULYSSES,)), Offer()], ""),
        (TENSOR, [Offer(modes=(Mode.ULYSSES,))] * 2, "waiting: no worker with mode tensor"),
        (
            TENSOR,
            [Offer(modes=(Mode.ULYSSES,)), Offer(most_pixels=1)],
            "waiting: no worker with memory for 64x32, 39 frames or mode tensor",
        ),
    ],
)
def test_a_job_waits_for_a_reason_unless_somebody_can_serve_it(request_, offers, text):
    assert explain_waiting(request_, "default", offers) == text


def test_the_offers_of_live_workers_are_read(redis):
    offer = Offer(model_digest="abc", world_size=4, modes=(Mode.TENSOR,), most_pixels=7)
    announce(redis, "ours", offer.model_dump_json())
    assert read_offers(redis) == [offer]


def test_workers_that_say_nothing_we_understand_offer_nothing(redis):
    announce(redis, "older", '{"modes": ["teleport"]}')
    announce(redis, "broken", b"\xff{")
    redis.sadd("rq:workers", "rq:worker:gone", "rq:worker:of-rq")  # a set's entry outlives the worker's record
    redis.hset("rq:worker:of-rq", "state", "idle")
    assert read_offers(redis) == []


def test_what_only_a_newer_worker_says_is_passed_over(redis):
    announce(redis, "newer", '{"world_size": 2, "colour": "red"}')
    assert read_offers(redis) == [Offer(world_size=2)]


def test_a_job_in_a_queue_that_nobody_serves_waits_for_one_who_does():
    offers = [Offer(queues=("high",)), Offer(queues=("high", "default"))]
    assert explain_waiting(REQUEST, "batch", offers) == "waiting: no worker with queue batch"
    assert explain_waiting(REQUEST, "default", offers) == ""
