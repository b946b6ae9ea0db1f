"""What the training of the demo's model rests on: its data, its batches, and that it goes on where it was."""

import time
from copy import deepcopy

import pytest
import torch
from torch import nn

from h3.model import Denoiser, Velocity
from h3.sequence import Anchor, Geometry, Layout, patchify
from h3.text import load_text_encoder
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
    geometry = Geometry(256, 160, 39)
    clips = sample_clips(split_scenes()[0][::40], geometry, seed=3)
    end = clips.start + clips.velocity * (geometry.frames - 1)
    reach = clips.radius[:, None]
    for centre in (clips.start, end):
        assert (centre - reach >= 0).all()
        assert (centre + reach <= torch.tensor([geometry.width, geometry.height])).all()


def test_seen_close_a_shape_is_as_large_as_in_the_whole_picture():
    scenes = split_scenes()[0][::2000]
    far, close = sample_clips(scenes, Geometry(256, 160, 39), seed=1), sample_clips(scenes, SMALL, seed=1, close=True)
    assert torch.equal(far.radius, close.radius)
    assert ((draw(close, range(10, 11)) - close.ground[:, :, None, None, None]).abs().amax((1, 2, 3, 4)) > 0.3).all()


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
