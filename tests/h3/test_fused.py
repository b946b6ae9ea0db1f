"""Blocks with fused pointwise work: what they compute, and on a GPU the kernels that compute it."""

import pytest
import torch

from h3 import fused, pointwise
from h3.fused import fuse, probe_kernels
from h3.model import Rope
from h3.pointwise import Modulated, find_places
from h3.sequence import Anchor, Clock, Geometry, Layout, Modality, Span
from tests.h3.random_models import MEDIUM, random_denoiser

LAYOUT = Layout(Geometry(96, 64, 39), 11, vision=(range(3, 6),), anchors=(Anchor.FIRST,))
SPANS = [
    Span(0, 3, Modality.TEXT, Clock.VIDEO),
    Span(3, 7, Modality.VIDEO, Clock.KEYFRAME),
    Span(7, 8, Modality.AUDIO, Clock.AUDIO, is_target=True),
    Span(8, 19, Modality.VIDEO, Clock.VIDEO, is_target=True),
]


def draw(*shape, dtype=torch.float32, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(device, dtype)


@torch.inference_mode()
def velocity(model, spans=LAYOUT.spans):
    device = model.final_layer.video_out.weight.device
    tokens = spans[-1].stop
    x = draw(tokens, model.config.hidden_size, dtype=model.dtype, device=device)
    rope = model.rotary((draw(tokens, 3).abs() * 20).to(device))
    told = model.velocity(x, rope, spans, model.modulation(torch.tensor([0.3, 0.6, 0.99], device=device)))
    return torch.cat([told.video.flatten(), told.audio.flatten()]).double().cpu()


def distance(found, right):
    return float((found - right).norm() / right.norm())


@pytest.fixture(scope="module")
def truth():
    """In fp32, of weights that bf16 can hold."""
    return velocity(random_denoiser(MEDIUM, dtype=torch.float32))


def test_each_row_has_the_modulation_of_its_clock_and_modality():
    places = find_places(SPANS, torch.device("cpu"))
    assert places.tolist() == [1] * 3 + [6] * 4 + [5] + [0] * 11


def test_in_fp32_fused_blocks_compute_what_the_others_do(truth):
    model = random_denoiser(MEDIUM, dtype=torch.float32)
    fuse(model)
    assert distance(velocity(model), truth) < 1e-6


def test_in_bf16_fused_blocks_are_nearer_to_the_truth_than_the_others(truth):
    model = random_denoiser(MEDIUM)
    eager = distance(velocity(model), truth)
    fuse(model)
    assert 0 < distance(velocity(model), truth) < eager


def test_a_row_is_computed_alike_whatever_rows_are_beside_it():
    modulated = Modulated(draw(9, 6, 48), find_places(SPANS, torch.device("cpu")))
    x, hidden, weight = draw(19, 48), draw(19, 48, seed=1), draw(48)
    whole = pointwise.add_norm_modulate(x, hidden.clone(), 2, weight, 1e-5, modulated, 3, 4)
    rows = slice(6, 13)
    part = Modulated(modulated.table, modulated.places[rows])
    cut = pointwise.add_norm_modulate(x[rows], hidden[rows].clone(), 2, weight, 1e-5, part, 3, 4)
    assert all(torch.equal(got, right[rows]) for got, right in zip(cut, whole, strict=True))


def test_places_are_found_anew_for_other_spans():
    places = fused.PlacesOfSpans()
    first = places.find(SPANS, torch.device("cpu"))
    assert places.find(SPANS, torch.device("cpu")) is first
    assert places.find(SPANS[:2], torch.device("cpu")).tolist() == first[:7].tolist()


def test_on_a_cpu_nothing_is_fused():
    assert not probe_kernels(torch.device("cpu"))


# --- on a GPU

gpu = pytest.mark.gpu
bf16 = torch.bfloat16


@pytest.fixture
def device():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    return torch.device("cuda", 0)


@gpu
def test_the_kernels_run_here(device):
    assert probe_kernels(device)


@gpu
@pytest.mark.parametrize(("rows", "heads", "head_dim", "half"), [(37, 7, 48, 16), (1000, 28, 128, 48), (3, 1, 16, 8)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_each_kernel_gives_what_its_twin_gives(device, rows, heads, head_dim, half, dtype):
    kernels = fused._kernels()
    width = heads * head_dim
    spans = [Span(0, rows - 2, Modality.TEXT, Clock.VIDEO), Span(rows - 2, rows, Modality.AUDIO, Clock.AUDIO)]
    modulated = Modulated(draw(6, 6, width, dtype=dtype, device=device), find_places(spans, device))
    x, hidden, weight = (draw(*shape, dtype=dtype, device=device) for shape in [(rows, width)] * 2 + [(width,)])
    rope = Rope(*(draw(rows, half, dtype=dtype, device=device, seed=seed) for seed in (1, 2)))
    qkv, wide = (draw(rows, *rest, dtype=dtype, device=device) for rest in ((3, heads, head_dim), (2 * width,)))
    q_weight, k_weight = (draw(head_dim, dtype=dtype, device=device, seed=seed) for seed in (3, 4))

    def compute(how):
        yield how.norm_modulate(x, weight, 1e-5, modulated, 0, 1)
        yield from how.add_norm_modulate(x, hidden.clone(), 2, weight, 1e-5, modulated, 3, 4)
        yield how.add_gated(x, hidden.clone(), 5, modulated)
        yield how.norm_rotate(qkv.clone(), q_weight, k_weight, 1e-5, rope)
        yield how.swiglu(wide.clone())

    for got, right in zip(compute(kernels), compute(pointwise), strict=True):
        assert distance(got.double(), right.double()) < (1e-4 if dtype == bf16 else 1e-6)
        assert float((got != right).float().mean()) < (1e-3 if dtype == bf16 else 1)


@gpu
def test_on_a_gpu_fused_blocks_are_nearer_to_the_truth_and_the_same_in_every_run(device, truth):
    model = random_denoiser(MEDIUM, device="cuda")
    right = velocity(random_denoiser(MEDIUM, dtype=torch.float32, device="cuda"))
    eager = distance(velocity(model), right)
    fuse(model, fused._kernels())
    first, second = velocity(model), velocity(model)
    assert distance(first, right) < eager
    assert torch.equal(first, second)
