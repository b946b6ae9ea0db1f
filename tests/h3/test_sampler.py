import pytest
import torch
from diffusers import MiniMaxH3Scheduler

from h3.model import Velocity
from h3.sampler import Latents, advance, draw_noise, make_schedule
from h3.sequence import Geometry

GEOMETRY = Geometry(96, 64, 22)


def test_the_50_step_grid_is_the_published_one():
    sigmas = make_schedule(50).video
    assert sigmas[:3].tolist() == pytest.approx([1, 0.998302, 0.996540], abs=1e-6)
    assert sigmas[-3:].tolist() == pytest.approx([0.333333, 0.196721, 0], abs=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 8, 50, 1000])
def test_levels_fall_strictly_from_one_to_zero(steps):
    for sigmas in (make_schedule(steps).video, make_schedule(steps).audio):
        assert len(sigmas) == steps + 1
        assert sigmas[0] == 1
        assert sigmas[-1] == 0
        assert (sigmas.diff() < 0).all()


def test_noise_depends_on_the_seed_alone():
    first, again, other = (draw_noise(GEOMETRY, 24, 32, seed).latents for seed in (5, 5, 6))
    assert torch.equal(first.video, again.video)
    assert torch.equal(first.audio, again.audio)
    assert not torch.equal(first.video, other.video)
    assert first.video.shape == (GEOMETRY.video_tokens, 96)
    assert first.audio.shape == (2 * GEOMETRY.audio_latents, 32)


def test_the_true_velocity_leads_to_the_clean_latents():
    """With v = x0 - noise at every step, Euler must land on x0."""
    noise = draw_noise(GEOMETRY, 24, 32, seed=1).latents
    target = draw_noise(GEOMETRY, 24, 32, seed=2).latents
    velocity = Velocity(target.video - noise.video, target.audio - noise.audio)
    schedule, x = make_schedule(12), noise
    for step in range(schedule.steps):
        clean, x = advance(schedule, step, x, velocity)
        torch.testing.assert_close(clean.video, target.video, atol=1e-5, rtol=0)
    torch.testing.assert_close(x.audio, target.audio, atol=1e-5, rtol=0)


@pytest.mark.parametrize("steps", [4, 49])
def test_steps_equal_the_diffusers_scheduler(steps):
    """It counts grid points, we count evaluations: hence the + 1."""
    theirs = MiniMaxH3Scheduler(shift=12.0)
    theirs.set_timesteps(steps + 1)
    schedule = make_schedule(steps)
    x = Latents(torch.randn(6, 96), torch.randn(4, 32))
    sample = x.video
    for step in range(steps):
        velocity = Velocity(torch.randn(6, 96), torch.randn(4, 32))
        _, x = advance(schedule, step, x, velocity)
        sample = theirs.step(velocity.video, theirs.timesteps[step], sample).prev_sample
    torch.testing.assert_close(x.video, sample, atol=1e-6, rtol=1e-6)
