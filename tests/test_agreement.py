"""What two packages must state alike, because neither may import the other."""

import h3.attention
import h3.keyframes
import h3.sequence
import jobs.pictures
import jobs.request


def test_requests_and_the_model_agree_on_the_geometry():
    assert jobs.request.FPS == h3.sequence.FPS
    assert jobs.request.CLIP_FRAMES == h3.sequence.CLIP_FRAMES
    assert jobs.request.TAIL_FRAMES == h3.sequence.TAIL_FRAMES
    assert jobs.request.SIDE_STEP == h3.sequence.PIXELS_PER_LATENT * h3.sequence.LATENTS_PER_TOKEN


def test_requests_and_the_model_agree_on_the_names_of_attention():
    assert [*jobs.request.Attention] == [*h3.attention.AttentionName]


def test_what_is_uploaded_as_a_picture_is_what_is_opened_as_one():
    assert tuple(kind.name for kind in jobs.pictures.KINDS) == h3.keyframes.FORMATS
