import pytest
import torch

from h3.checkpoint import load_denoiser
from h3.denoise import Denoising
from h3.sampler import initial_noise, make_schedule
from h3.sequence import Geometry, Layout
from tests.h3.oracle import diffusers_model, diffusers_velocity

TEXT_TOKENS = 11


@pytest.fixture(scope="module")
def denoiser(tiny):
    return load_denoiser(tiny.transformer, torch.device("cpu"))


@pytest.fixture(scope="module")
def states(denoiser):
    return torch.randn(TEXT_TOKENS, denoiser.config.text_dim, generator=torch.Generator().manual_seed(1)).bfloat16()


def begin(denoiser, states, shape, steps):
    layout = Layout(Geometry(*shape), len(states))
    noise = initial_noise(layout.geometry, denoiser.config.in_channels, denoiser.config.audio_in_channels, seed=7)
    return Denoising.begin(denoiser, states, layout, make_schedule(steps)), noise


@pytest.mark.parametrize("shape", [(96, 64, 22), (64, 128, 39)])
@pytest.mark.parametrize("step", [0, 2])
@torch.inference_mode()
def test_velocity_equals_diffusers_bit_for_bit(denoiser, states, shape, step):
    """Same weights, same order of roundings; on the CPU nothing is left to differ."""
    denoising, noise = begin(denoiser, states, shape, steps=4)
    timesteps = denoising.schedule.timesteps(step)
    packed = denoiser.embed(denoising.text, noise.audio, noise.video)
    ours = denoiser.velocity(packed, denoising.rope, denoising.layout.spans, denoiser.modulation(timesteps))
    theirs = diffusers_velocity(diffusers_model(denoiser), denoising.layout, states, noise, timesteps)
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
    denoising, _ = begin(denoiser, states, (96, 64, 22), steps=2)
    with torch.inference_mode():
        modulation = denoiser.modulation(denoising.schedule.timesteps(1))
    block = modulation.blocks[0]
    assert block.shape == (2, 3, 6, denoiser.config.hidden_size)
    assert len({tuple(row.tolist()) for row in block.flatten(0, 1)[:, 0, :4]}) == 6
