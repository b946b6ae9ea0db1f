"""What the form's texts ask for, what is told of wrong ones, and how it is filled in to ask for the same again."""

import itertools

import pytest

from jobs.http.page.form import ASPECTS, SIZES, RenderForm, find_errors, parse_form, refill
from jobs.http.wishes import parse_wish
from jobs.request import CLIP_FRAMES, FEWEST_FRAMES, MOST_FRAMES, GenerateRequest

FRAMES = range(FEWEST_FRAMES, MOST_FRAMES + 1, CLIP_FRAMES)


def resolve(**fields):
    return GenerateRequest(prompt="a red kite", **fields).resolve()


def ask_again(request):
    return parse_wish(refill(request, "default").to_fields(), {}).request.resolve()


@pytest.mark.parametrize("frames", FRAMES)
def test_a_form_that_is_filled_in_again_asks_for_as_many_frames(frames):
    request = resolve(frames=frames, seed=2**63 - 1)
    assert ask_again(request) == request


@pytest.mark.parametrize(("aspect", "short_side"), [*itertools.product(ASPECTS, SIZES)])
def test_and_for_the_same_size(aspect, short_side):
    request = resolve(aspect=aspect, short_side=short_side)
    assert ask_again(request) == request
    again = refill(request, "default")
    assert again.aspect in ASPECTS


@pytest.mark.parametrize(("width", "height"), [(864, 480), (480, 864), (64, 64), (1024, 256), (320, 192)])
def test_also_for_one_that_no_aspect_of_the_form_gives(width, height):
    request = resolve(width=width, height=height, steps=7)
    again = ask_again(request)
    assert (again.width, again.height, again.steps) == (width, height, 7)
    assert refill(request, "default").aspect in refill(request, "default").aspects


def test_a_queue_that_the_form_does_not_have_is_the_default_one():
    assert refill(resolve(), "other").queue == "default"


def test_everything_wrong_is_told_at_once_each_beside_its_field():
    form = RenderForm(prompt=" ", seconds="99", steps="many", seed="-1", queue="fast", short_side="7")
    errors = find_errors(form, {"first_frame": b"no picture"})
    assert errors.keys() == {"prompt", "seconds", "steps", "seed", "queue", "short_side", "first_frame"}
    assert errors["prompt"] == "Say what should be seen and heard."
    assert errors["seconds"] == "99.0 is too large; nearest: 15.08"
    assert errors["steps"] == "'many' should be a whole number"
    assert form.with_errors(errors).is_unfolded


def test_what_is_right_has_no_errors_and_what_is_empty_is_as_always():
    form = parse_form({"prompt": "a red kite", "seconds": "2,5"})
    assert find_errors(form, {}) == {}
    request = parse_wish(form.to_fields(), {}).request
    assert (request.seconds, request.steps, request.seed) == (2.5, 50, None)
    assert not form.is_unfolded
