import pytest
import torch

from h3.sequence import Geometry
from h3.vae import cross_fade, load_audio_decoder, load_video_decoder, to_pixels

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def video(tiny):
    return load_video_decoder(tiny.video_vae, CPU)


@pytest.mark.parametrize("shape", [(64, 64, 22), (96, 64, 39), (64, 96, 56), (288, 64, 39)])
@torch.inference_mode()
def test_clips_joined_equal_the_whole_decode_bit_for_bit(video, shape):
    """Streaming is exact: also across spatial tiles (288 pixels are two)."""
    geometry = Geometry(*shape)
    latents = torch.randn(24, geometry.latent_frames, geometry.latent_height, geometry.latent_width)
    clips = list(video.clips(latents))
    whole = video._vae.decode((latents * video._std + video._mean)[None]).sample[0].permute(1, 2, 3, 0)
    assert [len(clip) for clip in clips] == geometry.clip_frames
    assert torch.equal(torch.cat(clips), to_pixels(whole))


@torch.inference_mode()
def test_a_clip_comes_before_the_latents_of_later_clips_are_read(video):
    latents = torch.randn(24, 12, 4, 4)
    damaged = latents.clone()
    damaged[:, 7:] = float("nan")
    assert torch.equal(next(video.clips(damaged)), next(video.clips(latents)))


def test_a_cross_fade_begins_wholly_at_the_old_frames():
    faded = cross_fade(torch.zeros(5, 2, 2, 3), torch.ones(5, 2, 2, 3))
    assert faded[:, 0, 0, 0].tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])


@torch.inference_mode()
def test_a_picture_keeps_the_aspect_and_is_never_enlarged(video):
    latents = torch.randn(24, 7, 4, 8)
    assert video.picture(latents, 64).shape == (32, 64, 3)
    assert video.picture(latents, 1000).shape == (64, 128, 3)


@torch.inference_mode()
def test_sound_is_stereo_in_row_order_at_800_samples_a_latent(tiny):
    audio = load_audio_decoder(tiny.audio_vae, CPU)
    rows = torch.randn(2 * 10, 32)
    wave = audio.decode(rows)
    assert wave.shape == (2, 8000)
    assert wave.abs().max() <= 1
    swapped = audio.decode(rows.unflatten(0, (2, 10)).flip(0).flatten(0, 1))
    assert torch.equal(swapped, wave.flip(0))
