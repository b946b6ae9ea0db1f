import pytest
import torch

from h3.checkpoint import load_denoiser
from h3.denoise import KEPT_TIMESTEPS, Denoising
from h3.model import interpolate
from h3.sampler import draw_noise, make_schedule
from h3.sequence import Geometry, Layout
from h3.untrained import TINY
from tests.h3.oracle import diffusers_model, diffusers_velocity
from tests.h3.random_models import random_denoiser

TEXT_TOKENS = 11


@pytest.fixture(scope="module")
def denoiser(tiny):
    return load_denoiser(tiny.transformer, torch.device("cpu"))


@pytest.fixture(scope="module")
def states(denoiser):
    return torch.randn(TEXT_TOKENS, denoiser.config.text_dim, generator=torch.Generator().manual_seed(1)).bfloat16()


def begin(denoiser, states, shape, steps):
    layout = Layout(Geometry(*shape), len(states))
    noise = draw_noise(layout.geometry, denoiser.config.in_channels, denoiser.config.audio_in_channels, seed=7)
    return Denoising.begin(denoiser, states, layout, make_schedule(steps)), noise.latents


@pytest.mark.parametrize("shape", [(96, 64, 22), (64, 128, 39)])
@pytest.mark.parametrize("step", [0, 2])
@torch.inference_mode()
def test_velocity_equals_diffusers_bit_for_bit(denoiser, states, shape, step):
    """Same weights, same order of roundings; on the CPU nothing is left to differ."""
    denoising, noise = begin(denoiser, states, shape, steps=4)
    packed = denoiser.embed(denoising.text, denoising.keyframes, noise.audio, noise.video)
    ours = denoiser.velocity(packed, denoising.rope, denoising.layout.spans, denoising.modulation.at(step))
    timesteps = denoising.schedule.timesteps()[step]
    theirs = diffusers_velocity(
        diffusers_model(denoiser), denoising.layout, states, denoising.keyframes, noise, timesteps
    )
    assert torch.equal(ours.video, theirs.video)
    assert torch.equal(ours.audio, theirs.audio)


@torch.inference_mode()
def test_n_steps_are_n_model_evaluations_and_end_at_the_clean_estimate(denoiser, states):
    denoising, latents = begin(denoiser, states, (96, 64, 22), steps=3)
    evaluations = 0
    for step in range(denoising.schedule.steps):
        clean, latents = denoising.step(step, latents)
        evaluations += 1
    assert evaluations == 3
    assert torch.equal(latents.video, clean.video)
    assert torch.equal(latents.audio, clean.audio)


def test_every_modality_reads_its_own_modulation(denoiser, states):
    """A wrong AdaLN row renders noise without any error."""
    with torch.inference_mode():
        denoising, _ = begin(denoiser, states, (96, 64, 22), steps=2)
        block = denoising.modulation.at(1).blocks[0]
    assert block.shape == (2, 3, 6, denoiser.config.hidden_size)
    assert len({tuple(row.tolist()) for row in block.flatten(0, 1)[:, 0, :4]}) == 6


@torch.inference_mode()
def test_a_schedule_too_long_to_keep_is_modulated_step_by_step_alike(states):
    denoiser = random_denoiser(TINY, dtype=torch.float32)
    denoising, _ = begin(denoiser, states, (32, 32, 22), steps=KEPT_TIMESTEPS)
    assert denoising.modulation.kept == []
    alone = denoiser.modulation(denoising.schedule.timesteps()[5])
    assert torch.equal(denoising.modulation.at(5).final, alone.final)


def test_a_curve_is_linear_between_its_points_and_flat_beyond_its_ends():
    table = torch.tensor([[0.0, 4.0], [2.0, 2.0], [2.0, -6.0]])
    found = interpolate(table, torch.tensor([0.0, 0.25, 0.5, 0.875, 1.0, 1.5]))
    expected = torch.tensor([[0.0, 4.0], [1.0, 3.0], [2.0, 2.0], [2.0, -4.0], [2.0, -6.0], [2.0, -6.0]])
    assert torch.equal(found, expected)
