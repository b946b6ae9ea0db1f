"""The denoiser against diffusers' own, at sizes and weights where a mistake cannot hide."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from diffusers import MiniMaxH3Transformer3DModel
from torch import Tensor

from h3.denoise import Denoising
from h3.model import Denoiser, Velocity
from h3.sampler import Latents, draw_noise, make_schedule, noise_keyframes
from h3.sequence import Anchor, Geometry, Layout
from h3.untrained import TINY
from tests.h3.oracle import diffusers_denoise, diffusers_model, diffusers_velocity
from tests.h3.random_models import MEDIUM, MEDIUM_PRUNED, random_denoiser

GEOMETRY = Geometry(96, 64, 39)
STEPS = 12
ONE_STEP = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
ALL_STEPS = 1e-5  # fp32
TASKS = {
    "t2va": (),
    "first": (Anchor.FIRST,),
    "last": (Anchor.LAST,),
    "both": (Anchor.FIRST, Anchor.LAST),
}


@dataclass(frozen=True)
class Request:
    layout: Layout
    states: Tensor
    keyframes: Tensor
    noise: Latents

    def begin(self, denoiser: Denoiser, steps: int = STEPS) -> Denoising:
        return Denoising.begin(denoiser, self.states, self.layout, make_schedule(steps), self.keyframes)

    def velocity(self, denoiser: Denoiser, step: int = 3) -> Velocity:
        denoising = self.begin(denoiser)
        packed = denoiser.embed(denoising.text, denoising.keyframes, self.noise.audio, self.noise.video)
        return denoiser.velocity(packed, denoising.rope, self.layout.spans, denoising.modulation.at(step))

    def expected(self, twin: MiniMaxH3Transformer3DModel, step: int = 3) -> Velocity:
        timesteps = make_schedule(STEPS).timesteps(keyframes=bool(self.layout.anchors))[step]
        return diffusers_velocity(twin, self.layout, self.states, self.keyframes, self.noise, timesteps)


def make_request(config, task="t2va", geometry=GEOMETRY):
    """Seven text rows, and for each keyframe a label of two rows and a vision block of three before them."""
    anchors = TASKS[task]
    vision = tuple(range(5 * i + 2, 5 * i + 5) for i in range(len(anchors)))
    layout = Layout(geometry, 7 + 5 * len(anchors), vision, anchors)
    noise = draw_noise(geometry, config.in_channels, config.audio_in_channels, seed=5, keyframes=len(anchors))
    generator = torch.Generator().manual_seed(6)
    states = torch.randn(layout.text_tokens, config.text_dim, generator=generator).bfloat16()
    clean = [torch.randn(frame.shape, generator=generator) for frame in noise.keyframes]
    keyframes = noise_keyframes(clean, noise.keyframes) if clean else torch.empty(0, config.patch_dim)
    return Request(layout, states, keyframes, noise.latents)


def relative_error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def errors(found, expected):
    return relative_error(found.video, expected.video), relative_error(found.audio, expected.audio)


@cache
def pair(config, dtype):
    """A model and its twin, for tests that leave them as they are."""
    denoiser = random_denoiser(config, dtype=dtype)
    return denoiser, diffusers_model(denoiser)


def pytest_generate_tests(metafunc):
    """Each task in fp32, where the gate is narrow; in bf16 one keyframe alone is for a full run."""
    if metafunc.function is test_one_velocity_equals_diffusers:
        tasks_in_bf16 = TASKS if metafunc.config.getoption("full") else ("t2va", "both")
        cases = [(task, torch.float32) for task in TASKS] + [(task, torch.bfloat16) for task in tasks_in_bf16]
        metafunc.parametrize(("task", "dtype"), cases, ids=str)


@pytest.mark.slow
@pytest.mark.parametrize("config", [TINY, MEDIUM, MEDIUM_PRUNED], ids=["tiny", "medium", "pruned"])
@torch.inference_mode()
def test_one_velocity_equals_diffusers(config, task, dtype):
    denoiser, twin = pair(config, dtype)
    request = make_request(config, task)
    video, audio = errors(request.velocity(denoiser), request.expected(twin))
    assert video <= ONE_STEP[dtype]
    assert audio <= ONE_STEP[dtype]


@pytest.mark.parametrize(
    ("config", "task"),
    [(MEDIUM, "both"), (MEDIUM_PRUNED, "t2va"), (TINY, "t2va"), (TINY, "first"), (TINY, "last")],
)
@pytest.mark.slow
@torch.inference_mode()
def test_all_steps_equal_diffusers(config, task, full):
    denoiser, twin = pair(config, torch.float32)
    request = make_request(config, task)
    steps = STEPS if full else 4
    denoising, x = request.begin(denoiser, steps), request.noise
    for step in range(steps):
        _, x = denoising.step(step, x)
    expected = diffusers_denoise(twin, request.layout, request.states, request.keyframes, request.noise, steps)
    video, audio = errors(x, expected)
    assert video <= ALL_STEPS
    assert audio <= ALL_STEPS
    assert relative_error(x.video, request.noise.video) > 0.5  # the model has moved the noise


@pytest.mark.parametrize("config", [TINY, MEDIUM, MEDIUM_PRUNED], ids=["tiny", "medium", "pruned"])
@torch.inference_mode()
def test_the_weights_of_these_tests_can_tell_right_from_wrong(config, record_property, monkeypatch):
    denoiser, request = pair(config, torch.float32)[0], make_request(config)
    shares = []

    def attend(qkv: Tensor) -> Tensor:
        q, k, v = (part.transpose(0, 1) for part in qkv.unbind(1))
        weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)  # [H, T, T]
        entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1)
        shares.append((entropy.exp() / weights.shape[-1]).mean().item())  # of the rows, how many count
        return (weights @ v).transpose(0, 1)

    for block in denoiser.blocks:
        monkeypatch.setattr(block.attn, "attend", attend)
    velocity = request.velocity(denoiser)
    rms = {name: getattr(velocity, name).square().mean().sqrt().item() for name in ("video", "audio")}
    record_property("velocity_rms", rms)
    record_property("attended_share", shares)
    assert all(0.5 <= value <= 2 for value in rms.values()), rms
    assert max(shares) < 0.7, shares


def swap_two_heads(model):
    for block in model.blocks:
        rows = block.attn.qkv_proj.weight.data.unflatten(0, (3, 9, 128))
        rows[0, [2, 5]] = rows[0, [5, 2]]


def swap_gate_and_value(model):
    for block in model.blocks:
        weight = block.mlp.fc1.weight.data
        weight.copy_(torch.cat(weight.chunk(2)[::-1]))


def read_interleaved_rows_as_contiguous(model):
    for block in model.blocks:
        weight = block.attn.qkv_proj.weight.data
        weight.copy_(weight.unflatten(0, (3, 9, 128)).transpose(0, 1).flatten(0, 2))


def swap_modalities(model):
    for block in model.blocks:
        weight = block.adaln_proj.linear.weight.data.unflatten(0, (3, -1))
        weight[[0, 2]] = weight[[2, 0]]


@pytest.mark.parametrize(
    "mutate",
    [
        swap_two_heads,
        swap_gate_and_value,
        read_interleaved_rows_as_contiguous,
        swap_modalities,
    ],
)
@torch.inference_mode()
def test_a_mistaken_weight_fails_the_gate_by_far(mutate):
    request = make_request(MEDIUM)
    expected = request.expected(pair(MEDIUM, torch.bfloat16)[1])
    mutated = random_denoiser(MEDIUM)
    mutate(mutated)
    assert max(errors(request.velocity(mutated), expected)) > 10 * ONE_STEP[torch.bfloat16]


@torch.inference_mode()
def test_an_activation_in_curve_mode_fails_the_gate_by_far(monkeypatch):
    request, (denoiser, twin) = make_request(MEDIUM_PRUNED), pair(MEDIUM_PRUNED, torch.bfloat16)
    expected = request.expected(twin)
    monkeypatch.setattr(denoiser, "adaln_t_table", F.silu(denoiser.adaln_t_table))
    assert max(errors(request.velocity(denoiser), expected)) > 10 * ONE_STEP[torch.bfloat16]


@torch.inference_mode()
def test_swapped_audio_channels_fail_the_gate_by_far():
    request, (denoiser, twin) = make_request(MEDIUM), pair(MEDIUM, torch.bfloat16)
    expected = request.expected(twin)
    swapped = replace(
        request, noise=Latents(request.noise.video, request.noise.audio.unflatten(0, (2, -1)).flip(0).flatten(0, 1))
    )
    assert relative_error(swapped.velocity(denoiser).audio, expected.audio) > 10 * ONE_STEP[torch.bfloat16]


@torch.inference_mode()
def test_a_dropped_last_row_fails_the_gate_by_far(monkeypatch):
    """Of the attention: every row reads one row less, in fp32, where nothing else differs."""
    request, (denoiser, twin) = make_request(MEDIUM), pair(MEDIUM, torch.float32)
    expected = request.expected(twin)

    def attend(qkv: Tensor) -> Tensor:
        q, k, v = (part.transpose(0, 1)[None] for part in qkv.unbind(1))
        return F.scaled_dot_product_attention(q, k[:, :, :-1], v[:, :, :-1])[0].transpose(0, 1)

    for block in denoiser.blocks:
        monkeypatch.setattr(block.attn, "attend", attend)
    assert max(errors(request.velocity(denoiser), expected)) > 10 * ONE_STEP[torch.float32]


@torch.inference_mode()
def test_only_target_rows_have_a_velocity():
    request, (denoiser, _) = make_request(TINY, "both"), pair(TINY, torch.bfloat16)
    velocity = request.velocity(denoiser)
    assert velocity.video.shape == request.noise.video.shape
    assert velocity.audio.shape == request.noise.audio.shape
