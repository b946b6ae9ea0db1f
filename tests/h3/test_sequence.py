from itertools import pairwise

import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import patchify_video_latents

from h3.errors import ConfigError
from h3.sequence import Clock, Geometry, Layout, Modality, clip_spans, patchify, unpatchify
from tests.h3.oracle import diffusers_positions

SHAPES = [(864, 480, 141), (1344, 768, 124), (96, 64, 22), (256, 160, 39), (160, 256, 56)]


@pytest.mark.parametrize(
    ("shape", "latent_frames", "audio_latents", "video_tokens"),
    [((864, 480, 141), 42, 235, 17_010), ((1344, 768, 124), 37, 207, 37_296), ((1344, 768, 243), 72, 405, 72_576)],
)
def test_sizes_are_the_published_ones(shape, latent_frames, audio_latents, video_tokens):
    geometry = Geometry(*shape)
    assert (geometry.latent_frames, geometry.audio_latents) == (latent_frames, audio_latents)
    assert geometry.video_tokens == video_tokens


@pytest.mark.parametrize("shape", [(100, 64, 22), (64, 0, 22), (64, 64, 5), (64, 64, 40)])
def test_sizes_that_the_model_does_not_have_are_refused(shape):
    with pytest.raises(ConfigError):
        Geometry(*shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_clips_add_up_to_the_frames(shape):
    geometry = Geometry(*shape)
    assert sum(geometry.clip_frames) == geometry.frames
    assert len(geometry.clip_frames) == geometry.clips


@pytest.mark.parametrize("shape", SHAPES)
def test_positions_equal_the_diffusers_pipeline(shape):
    layout = Layout(Geometry(*shape), text_tokens=13)
    assert torch.equal(layout.positions(), diffusers_positions(layout))


def test_patchify_equals_diffusers_and_unpatchify_undoes_it():
    geometry = Geometry(96, 64, 22)
    latents = torch.randn(24, geometry.latent_frames, geometry.latent_height, geometry.latent_width)
    rows = patchify(latents)
    assert torch.equal(rows, patchify_video_latents(latents[None], (1, 2, 2)).reshape(rows.shape))
    assert torch.equal(unpatchify(rows, geometry), latents)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_clipped_spans_cover_each_rank_exactly_and_keep_their_modality(ranks):
    layout = Layout(Geometry(96, 64, 22), text_tokens=13)
    cuts = [layout.tokens * rank // ranks for rank in range(ranks + 1)]
    tags = row_tags(layout.spans)
    for start, stop in pairwise(cuts):
        assert torch.equal(row_tags(clip_spans(layout.spans, slice(start, stop))), tags[start:stop])


def test_text_and_video_share_a_clock_and_audio_has_its_own():
    spans = Layout(Geometry(96, 64, 22), text_tokens=13).spans
    assert [(s.modality, s.clock) for s in spans] == [
        (Modality.TEXT, Clock.VIDEO),
        (Modality.AUDIO, Clock.AUDIO),
        (Modality.VIDEO, Clock.VIDEO),
    ]


def row_tags(spans):
    return torch.cat([torch.full((span.stop - span.start,), span.modality) for span in spans])
