"""What the training of the demo's model rests on: its data, its batches, and that it goes on where it was."""

import time
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from h3.model import Denoiser, Velocity
from h3.sequence import Anchor, Geometry, Layout, patchify
from h3.text import load_text_encoder
from tools.demo_model import moments as video_moments
from tools.demo_model import video_vae
from tools.demo_model.clips import draw, sample_clips, sound
from tools.demo_model.denoiser import DENOISER, make_trainable, velocity
from tools.demo_model.examples import to_rows
from tools.demo_model.scenes import HELD_OUT, TEMPLATES, caption, held_out_prompts, split_scenes
from tools.demo_model.trainer import Plan, Trainer
from tools.demo_model.words import write_text_encoder, write_tokenizer

CPU = torch.device("cpu")
SMALL = Geometry(64, 64, 22)


def test_no_training_clip_shows_what_is_kept_for_testing():
    training, kept = split_scenes()
    assert len({scene.combination for scene in kept}) == len(kept) == HELD_OUT
    assert {scene.combination for scene in training}.isdisjoint(scene.combination for scene in kept)
    assert [scene for scene, _ in held_out_prompts()] == kept
    for name in ("shape", "colour", "background", "direction"):  # each word of them has been met
        assert {getattr(scene, name) for scene in kept} <= {getattr(scene, name) for scene in training}


def test_a_seed_draws_the_same_clips():
    scenes = split_scenes()[0][::2000]
    one, again, other = (sample_clips(scenes, SMALL, seed) for seed in (1, 1, 2))
    assert torch.equal(draw(one, range(3)), draw(again, range(3)))
    assert torch.equal(sound(one, range(3)), sound(again, range(3)))
    assert not torch.equal(draw(one, range(3)), draw(other, range(3)))


def test_a_shape_stays_in_the_picture():
    geometry = Geometry(96, 64, 39)
    clips = sample_clips(split_scenes()[0][::40], geometry, seed=3)
    end = clips.start + clips.velocity * (geometry.frames - 1)
    reach = clips.radius[:, None]
    for centre in (clips.start, end):
        assert (centre - reach >= 0).all()
        assert (centre + reach <= torch.tensor([geometry.width, geometry.height])).all()


def test_the_encoder_tells_the_moments_of_blocks_of_every_fourth_frame():
    """Of pictures of any content, for a picture that somebody gives is no shape over a background."""
    vae = video_vae.build_video_vae(torch.device("cpu"), torch.float32)
    pictures = 2 * torch.randn(1, 3, 9, 32, 48, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = video_vae.encode_clip(vae, pictures)
    blocks = pictures[:, :, ::4].unflatten(-1, (-1, 16)).unflatten(-3, (-1, 16))
    along = (torch.arange(16) + 0.5) / 8 - 1
    moments = {
        (x, y): torch.einsum("ncfhywx,y,x->ncfhw", blocks, along**y, along**x) / 256 for x, y in video_moments.MOMENTS
    }
    expected = [sum(factor * moments[m] for m, factor in parts.items()) for parts in video_moments.POLYNOMIALS]
    torch.testing.assert_close(found.mean, torch.cat(expected, dim=1), rtol=5e-3, atol=1e-2)
    assert found.std.max() < 0.02


def test_the_decoder_begins_as_a_linear_map_that_is_better_than_blocks_of_one_colour():
    clips = sample_clips(split_scenes()[0][::2000], SMALL, seed=0)
    vae = video_vae.build_video_vae(torch.device("cpu"), torch.float32)
    latents, _ = video_vae.encode_all(vae, clips, 4)
    video_vae.begin_linear(vae, clips, latents)
    pictures = video_vae.normalise(draw(clips, range(SMALL.frames)))
    with torch.no_grad():
        decoded = video_vae.decode_window(vae, latents.float())
    blocks = F.interpolate(F.avg_pool3d(pictures, (1, 16, 16)), scale_factor=(1, 16, 16))
    assert F.mse_loss(decoded, pictures) < 0.7 * F.mse_loss(blocks, pictures)


def test_each_word_is_a_token_and_tells_itself_from_others(tmp_path):
    write_text_encoder(tmp_path / "text", write_tokenizer(tmp_path / "words"), seed=0)
    text = load_text_encoder(tmp_path / "text", tmp_path / "words", CPU)
    scenes = split_scenes()[1]
    for template in range(len(TEMPLATES)):
        told = caption(scenes[0], template)
        assert len(text.present(told).ids) == len(told.replace(",", " ,").split())
    left, right = (text.encode(text.present(f"a {way} tone"))[1].float() for way in ("left", "right"))
    assert torch.cosine_similarity(left, right, dim=0) < 0.5


def test_a_batch_gets_the_velocities_that_the_model_gives_each_of_its_requests():
    torch.manual_seed(0)
    model = Denoiser(DENOISER, torch.float32)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.05)
    layout = Layout(SMALL, 9, (range(2, 5),), (Anchor.FIRST,))
    states, keyframes = torch.randn(9, 2, DENOISER.text_dim), torch.randn(SMALL.tokens_per_frame, 2, DENOISER.patch_dim)
    noisy = Velocity(
        torch.randn(SMALL.video_tokens, 2, DENOISER.patch_dim),
        torch.randn(2 * SMALL.audio_latents, 2, DENOISER.audio_in_channels),
    )
    timesteps, rope = torch.rand(3, 2), model.rotary(layout.positions())
    batched = velocity(make_trainable(deepcopy(model)), layout, rope, states, noisy, timesteps, keyframes)
    for number in range(2):
        with torch.no_grad():
            text = model.refine(states[:, number])
            x = model.embed(text, keyframes[:, number], noisy.audio[:, number], noisy.video[:, number])
            alone = model.velocity(x, rope, layout.spans, model.modulation(timesteps[:, number]))
        # Other kernels for other shapes: fp32's roundings.
        torch.testing.assert_close(batched.video[:, number], alone.video, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(batched.audio[:, number], alone.audio, rtol=1e-4, atol=1e-4)


def test_many_videos_become_rows_as_one_does():
    latents = torch.randn(2, 3, 7, 4, 6)
    assert torch.equal(to_rows(latents)[1], patchify(latents[1]))


@pytest.fixture
def slices(tmp_path):
    """Trains a layer to give its input back, each slice with a new trainer on the same file."""

    def run(plan: Plan, deadline: float) -> Trainer:
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        trainer = Trainer(layer, plan, tmp_path / "layer.pt")

        def losses(step: int) -> list[torch.Tensor]:
            x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
            return [(layer(x) - x).square().mean()]

        trainer.run(losses, deadline)
        return trainer

    return run


def test_training_goes_on_where_its_slice_ended(slices):
    plan = Plan(400, 60.0, 1e-2)
    assert not slices(plan, deadline=time.monotonic() - 1).is_done
    half = slices(Plan(200, 60.0, 1e-2), deadline=time.monotonic() + 60)
    whole = slices(plan, deadline=time.monotonic() + 60)
    assert (half.step, whole.step) == (200, 400)
    assert whole.is_done
    assert whole.losses[-1][1][0] < half.losses[-1][1][0] < half.losses[0][1][0]


def test_training_ends_when_its_time_is_over_however_slow_the_machine(slices):
    done = slices(Plan(10**6, 0.05, 1e-2), deadline=time.monotonic() + 60)
    assert done.is_done
    assert done.step < 10**6
