import pytest
from pydantic import ValidationError

from jobs.offers import Offer, count_pixels
from jobs.request import Attention, Mode, Precision, ResolvedRequest

REQUEST = ResolvedRequest(prompt="a red kite", width=64, height=32, frames=39, steps=2, seed=1)
PIXELS = 64 * 32 * 39
TENSOR = REQUEST.model_copy(update={"mode": Mode.TENSOR})
SDPA = REQUEST.model_copy(update={"attention": Attention.SDPA})
FA3 = REQUEST.model_copy(update={"attention": Attention.FA3})
NVFP4 = REQUEST.model_copy(update={"precision": Precision.NVFP4})


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
        (Offer(), SDPA, ""),
        (Offer(attentions=(Attention.SDPA,)), SDPA, ""),
        (Offer(attentions=()), SDPA, "attention sdpa"),
        (Offer(attentions=()), REQUEST, ""),
        (Offer(attentions=(Attention.SDPA, Attention.CUDNN)), FA3, "attention fa3"),
        (Offer(attentions=(Attention.SDPA, Attention.FA3)), FA3, ""),
        (Offer(most_pixels=PIXELS), REQUEST, ""),
        (Offer(most_pixels=PIXELS - 1), REQUEST, "memory for 64x32, 39 frames"),
        (Offer(modes=(), precisions=(), most_pixels=0), REQUEST, "memory for 64x32, 39 frames"),
    ],
)
def test_an_offer_tells_what_a_request_lacks(offer, request_, missing):
    assert offer.missing(request_) == missing


def test_pixels_are_those_of_all_frames():
    assert count_pixels(REQUEST) == PIXELS


@pytest.mark.parametrize(("predicted", "limit", "left"), [(None, 7, 7), (9, 7, 7), (5, 7, 5)])
def test_an_offer_can_only_be_lowered(predicted, limit, left):
    assert Offer(most_pixels=predicted).limited_to(limit).most_pixels == left


def test_a_queue_that_is_not_served_is_lacked():
    assert Offer(queues=("high",)).missing(REQUEST, "batch") == "queue batch"
    assert Offer(queues=("high", "batch")).missing(REQUEST, "batch") == ""
    assert Offer().missing(REQUEST, "batch") == ""


def test_a_request_of_a_later_version_waits_for_who_can_read_it():
    assert Offer(request_version=1).missing(REQUEST) == "requests of version 2"
    assert Offer(request_version=1).missing(REQUEST.model_copy(update={"version": 1})) == ""


def test_an_offer_of_what_only_a_later_version_knows_is_read():
    told = Offer().model_dump_json().replace('"sdpa"', '"sdpa","hyper"').replace('"bf16"', '"bf16","fp2"')
    read = Offer.model_validate_json(told)
    assert (read.attentions, read.precisions) == (tuple(Attention), tuple(Precision))
    assert Offer.model_validate({"attentions": ["hyper"]}).missing(SDPA) == "attention sdpa"
    assert Offer.model_validate({"precisions": ["fp2"]}).missing(NVFP4) == "precision nvfp4"


@pytest.mark.parametrize("name", ["attentions", "precisions"])
def test_an_offer_that_is_no_list_is_refused(name):
    with pytest.raises(ValidationError):
        Offer.model_validate({name: 3})
