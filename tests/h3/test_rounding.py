"""Blocks that round what their FP8 layers read: what they compute, and on a GPU the kernels that compute it."""

import pytest
import torch
from torch import nn

from h3 import fused, pointwise, rounding
from h3.attention import Attending, AttentionName
from h3.fp8 import FP8Linear, RoundedQKV, RoundedRows, probe_fp8, round_heads, round_rows, use_fp8
from h3.fused import fuse, probe_rounding
from h3.model import Rope, attend_all_heads
from h3.pointwise import Modulated, find_places, norm_rotate_fp32
from h3.precision import Precision
from h3.sequence import Clock, Modality, Span
from h3.untrained import Untrained
from tests.h3.random_models import MEDIUM, random_denoiser
from tests.h3.test_fused import SPANS, distance, draw, velocity

CPU = torch.device("cpu")
bf16 = torch.bfloat16
# Of the distances to the truth. They are FP8's own, and roundings to bf16 but move them: by 1.5 % over eight seeds, the
# mean being 1.000.
NEAR = 1.05


def same(found: RoundedRows, right: RoundedRows) -> bool:
    codes = (rows.values.view(torch.uint8) for rows in (found, right))
    return torch.equal(*codes) and torch.equal(found.scale, right.scale)


def draw_modulated(spans, width, **how):
    return Modulated(draw(9, 6, width, **how), find_places(spans, how.get("device", CPU)))


class TestRows:
    def test_that_lie_apart_are_rounded_as_those_that_do_not(self):
        wide = draw(9, 2 * 48, dtype=bf16)
        assert same(round_rows(wide[:, :48]), round_rows(wide[:, :48].contiguous()))

    @pytest.mark.parametrize("size", [0.0, 1e-40, 1e-38, 1e-20, 1e20, 3e38])
    def test_of_any_size_have_a_scale_that_can_be_divided_by(self, size):
        x = (torch.tensor([[1.0, -0.5, 0.25, 0.0]]) * size).to(bf16)
        values, scale = round_rows(x)
        assert values.float().isfinite().all()
        assert scale.reciprocal().isfinite().all()
        assert float((RoundedRows(values, scale).widen() - x.float()).abs().max()) <= max(size * 2**-4, 1e-38)

    def test_are_what_a_layer_would_round(self):
        layer, x = FP8Linear(draw(48, 64, dtype=bf16)), draw(7, 64, dtype=bf16)
        found = layer(round_rows(x))
        assert found.dtype == bf16
        assert torch.equal(found, layer(x))


def test_each_head_is_rounded_by_the_largest_of_all_its_tokens():
    qkv = draw(37, 3, 5, 16, dtype=bf16) * torch.tensor([1e-3, 1.0, 1e3, 0.0, 1.0], dtype=bf16)[:, None]
    for part in qkv.unbind(1):
        values, scale = round_heads(part)
        assert values.shape == part.shape
        assert values.is_contiguous()
        assert values.float().abs().amax((0, 2)).tolist() == [448, 448, 448, 0, 448]
        back = values.float() * scale[:, None]
        for head in (0, 1, 2, 4):
            assert distance(back[:, head], part[:, head].float()) < 0.04  # three bits of mantissa


def draw_projected(rows, heads, head_dim, half, device=CPU):
    """What `norm_rotate` is given: q, k and v, two weights, eps and angles. Heads are of unlike sizes."""
    sizes = torch.tensor([1e-3, 1.0, 1e3])[torch.arange(heads) % 3, None]
    qkv = (draw(rows, 3, heads, head_dim) * sizes).to(device, bf16)
    weights = (draw(head_dim, seed=seed).exp().to(device, bf16) for seed in (1, 2))
    return qkv, *weights, 1e-5, rotate_by(draw(rows, half).to(device) * 10)


def rotate_by(angles):
    return Rope(angles.cos().to(bf16), angles.sin().to(bf16))


class TestHeadsThatAreRotated:
    def test_are_as_near_as_if_each_were_rounded_by_its_largest(self):
        """The scale is of the weights alone; these are unlike, so that it is far above most of what it is for."""
        qkv, *how = projected = draw_projected(200, 4, 128, 48)
        kept = qkv.clone()
        found = rounding.norm_rotate_round(*projected)
        for part, heads, weight in zip(found, qkv.unbind(1), how[:2], strict=False):
            exact = norm_rotate_fp32(heads, weight, *how[2:])
            assert distance(part.widen(), exact) < 1.02 * distance(round_heads(exact).widen(), exact)
        assert all(torch.equal(got, right) for got, right in zip(found.v, round_heads(qkv[:, 2]), strict=True))
        assert torch.equal(qkv, kept)

    def test_are_nowhere_above_their_scale(self):
        """Though all that a head has may be in one pair, and angles in bf16 lengthen it."""
        qkv = torch.zeros(64, 3, 2, 16, dtype=bf16)
        qkv[:, :, 0, 3] = qkv[:, :, 1, 3] = qkv[:, :, 1, 7] = 1e4
        weight, rope = torch.linspace(0.5, 2, 16).to(bf16), rotate_by(draw(64, 4) * 10)
        weight[3] = weight[7] = -5
        q, k, _ = rounding.norm_rotate_round(qkv, weight, weight.neg(), 1e-5, rope)
        for part in (q, k):
            assert 440 <= float(part.values.float().abs().max()) <= 448
            assert torch.equal(part.scale, torch.full((2,), 5 * 4 / 448))


class TestTwins:
    """In fp32 there is no rounding between, so that they are what rounding the plain result gives."""

    def test_round_what_the_plain_ones_give(self):
        modulated, weight = draw_modulated(SPANS, 48), draw(48)
        x, hidden, wide = draw(19, 48), draw(19, 48, seed=1), draw(19, 96)
        norm = (weight, 1e-5, modulated, 0, 1)
        assert same(rounding.norm_modulate(x, *norm), round_rows(pointwise.norm_modulate(x, *norm)))
        stream, rounded = rounding.add_norm_modulate(x, hidden.clone(), 2, *norm)
        plain_stream, plain = pointwise.add_norm_modulate(x, hidden.clone(), 2, *norm)
        assert torch.equal(stream, plain_stream)
        assert same(rounded, round_rows(plain))
        assert same(rounding.swiglu(wide), round_rows(pointwise.swiglu(wide.clone())))

    def test_round_bf16_rows_from_fp32_once(self):
        modulated, weight = draw_modulated(SPANS, 48, dtype=bf16), draw(48, dtype=bf16)
        x, wide = draw(19, 48, dtype=bf16), draw(19, 96, dtype=bf16)
        exact = pointwise.norm_modulate_fp32(x, weight, 1e-5, modulated, 0, 1)
        assert same(rounding.norm_modulate(x, weight, 1e-5, modulated, 0, 1), round_rows(exact))
        assert same(rounding.swiglu(wide), round_rows(pointwise.swiglu_fp32(wide)))

    def test_a_pass_leaves_what_it_rounds_as_it_is(self):
        wide = draw(19, 96, dtype=bf16)
        kept = wide.clone()
        rounding.swiglu(wide)
        assert torch.equal(wide, kept)


@pytest.fixture(scope="module")
def truth():
    """In fp32, of weights that bf16 can hold."""
    return velocity(random_denoiser(MEDIUM, dtype=torch.float32))


class TestBlocks:
    def test_in_fp32_rounded_passes_are_rounding_layers_bit_for_bit(self):
        model = random_denoiser(MEDIUM, dtype=torch.float32)
        use_fp8(model.blocks)
        fuse(model)
        plain = velocity(model)
        fuse(model, rounds=rounding)
        assert torch.equal(velocity(model), plain)

    def test_in_bf16_they_are_as_near_to_the_truth_as_eager_ones(self, truth):
        model = Untrained(MEDIUM).load(CPU, Precision.FP8)
        eager = distance(velocity(model), truth)
        fuse(model, rounds=rounding)
        found = velocity(model)
        assert 0 < distance(found, truth) < NEAR * eager
        assert torch.equal(velocity(model), found)

    def test_layers_get_rows_that_are_rounded_once(self):
        """All but the attention's result, which its layer rounds."""
        model = Untrained(MEDIUM).load(CPU, Precision.FP8)
        widths = []
        fuse(model, rounds=Counting(widths))
        velocity(model)
        assert widths == [MEDIUM.attention_dim] * MEDIUM.num_layers

    def test_blocks_with_a_layer_of_another_kind_stay_plain(self):
        model = random_denoiser(MEDIUM)
        fuse(model)
        use_fp8(model.blocks)
        for block in model.blocks:
            block.mlp.fc1 = plain_layer(block.mlp.fc1)
        plain = velocity(model)
        fuse(model, rounds=rounding)
        assert torch.equal(velocity(model), plain)


class Emulated(Attending):
    """FP8 attention where its kernel does not run, and what it was given."""

    def __init__(self):
        super().__init__()
        self.given = []

    def __call__(self, qkv):
        self.given.append(type(qkv))
        if self.reads_rounded:
            rounded = qkv if isinstance(qkv, RoundedQKV) else map(round_heads, qkv.unbind(1))
            return attend_all_heads(torch.stack([part.widen() for part in rounded], 1)).to(bf16)
        return attend_all_heads(qkv)


class TestAttention:
    @pytest.fixture
    def attending(self):
        return Emulated()

    @pytest.fixture
    def model(self, attending):
        model = Untrained(MEDIUM).load(CPU, Precision.FP8)
        for block in model.blocks:
            block.attn.attend = attending
        return model

    def test_in_fp8_is_given_rounded_heads_and_is_as_near_to_the_truth(self, model, attending, truth):
        attending.backend = AttentionName.FA3_FP8
        fuse(model, rounds=rounding)
        before = distance(velocity(model), truth)
        fuse(model, rounds=rounding, attending=attending)
        assert 0 < distance(velocity(model), truth) < NEAR * before
        assert attending.given == [torch.Tensor] * MEDIUM.num_layers + [RoundedQKV] * MEDIUM.num_layers

    def test_of_another_backend_is_given_the_same_as_ever(self, model, attending):
        fuse(model, rounds=rounding)
        plain = velocity(model)
        fuse(model, rounds=rounding, attending=attending)
        assert torch.equal(velocity(model), plain)
        assert set(attending.given) == {torch.Tensor}

    def test_is_given_plain_heads_by_blocks_whose_layers_are_not_in_fp8(self, model, attending):
        attending.backend = AttentionName.FA3_FP8
        for block in model.blocks:
            block.mlp.fc1 = plain_layer(block.mlp.fc1)
        fuse(model, rounds=rounding, attending=attending)
        velocity(model)
        assert set(attending.given) == {torch.Tensor}


class Counting:
    """Notes how wide the rows are that are rounded by themselves."""

    def __init__(self, widths):
        self._widths = widths

    def __getattr__(self, name):
        return getattr(rounding, name)

    def round_rows(self, x):
        self._widths.append(x.shape[1])
        return round_rows(x)


def plain_layer(layer: FP8Linear) -> nn.Linear:
    linear = nn.Linear(*reversed(layer.weight.shape), bias=False, dtype=bf16)
    linear.weight.data = RoundedRows(layer.weight, layer.weight_scale).widen().bfloat16()
    return linear.requires_grad_(False)


def test_on_a_cpu_torch_rounds():
    assert not probe_rounding(CPU)


# --- on a GPU

gpu = pytest.mark.gpu


@pytest.fixture
def device():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    device = torch.device("cuda", 0)
    if not probe_fp8(device):
        pytest.skip("this GPU has no FP8 products")
    return device


@gpu
def test_the_rounding_kernels_run_here(device):
    assert probe_rounding(device)


@gpu
@pytest.mark.parametrize(("rows", "width"), [(37, 672), (1, 1), (1000, 5376), (300, 7168), (300, 14336), (19, 130)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_are_rounded_bit_for_bit_as_by_torch(device, rows, width, dtype):
    sizes = torch.tensor([1, 0, 1e-30, 1e30, 1e-3, 100, 3e-39])[torch.arange(rows) % 7, None]
    wide = (draw(rows, 2 * width) * sizes).to(device, dtype)
    kernels = fused._rounding_kernels()
    for x in (wide, wide[:, :width], wide[:, width:]):
        assert same(kernels.round_rows(x), round_rows(x))
        assert same(RoundedRows(*(part.cpu() for part in kernels.round_rows(x))), round_rows(x.cpu()))


@gpu
@pytest.mark.parametrize(("rows", "width"), [(37, 672), (1000, 5376), (300, 14336), (3, 16), (19, 130)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_each_rounding_kernel_gives_what_its_twin_gives(device, rows, width, dtype):
    """Up to the last bit of fp32: what lies between two codes, or two values of the stream, may fall to either.

    So may a row's largest value, and with it the scale.
    """
    spans = [Span(0, rows - 2, Modality.TEXT, Clock.VIDEO), Span(rows - 2, rows, Modality.AUDIO, Clock.AUDIO)]
    modulated = draw_modulated(spans, width, dtype=dtype, device=device)
    sizes = torch.tensor([1, 0, 1e-3, 100])[torch.arange(rows) % 4, None]
    x, hidden, wide = (
        (draw(rows, columns, seed=seed) * sizes).to(device, dtype)
        for columns, seed in ((width, 0), (width, 1), (2 * width, 2))
    )
    weight = draw(width, dtype=dtype, device=device)

    def compute(how):
        yield how.norm_modulate(x, weight, 1e-5, modulated, 0, 1)
        yield from how.add_norm_modulate(x, hidden.clone(), 2, weight, 1e-5, modulated, 3, 4)
        yield how.swiglu(wide.clone())

    for got, right in zip(compute(fused._rounding_kernels()), compute(rounding), strict=True):
        if isinstance(right, RoundedRows):
            assert torch.allclose(got.scale, right.scale, rtol=1e-2 if dtype == bf16 else 1e-5, atol=0)
            assert float((got.values.float() != right.values.float()).float().mean()) < 1e-3
            assert distance(got.widen().double(), right.widen().double()) < 1e-2
        else:
            assert distance(got.double(), right.double()) < 1e-4


@gpu
@pytest.mark.parametrize(("rows", "heads", "head_dim"), [(100, 3, 128), (64, 2, 48), (1, 1, 16), (4501, 56, 128)])
def test_heads_are_rounded_bit_for_bit_as_by_torch_and_alike_in_every_run(device, rows, heads, head_dim):
    from h3.kernels.heads import round_heads as round_on_gpu

    qkv = draw(rows, 3, heads, head_dim, dtype=bf16, device=device)
    qkv[:, :, 0] *= 1e-3
    qkv[:, 1, -1] = 0
    for part in qkv.unbind(1):
        right = round_heads(part)
        for _ in range(2):
            values, scale = round_on_gpu(part)
            assert torch.equal(values.view(torch.uint8), right[0].view(torch.uint8))
            assert torch.equal(scale, right[1])


@gpu
@pytest.mark.parametrize(
    ("rows", "heads", "head_dim", "half"), [(37, 7, 48, 16), (1000, 56, 128, 48), (3, 1, 16, 8), (1, 33, 64, 24)]
)
def test_rotated_heads_are_rounded_as_their_twins_and_alike_in_every_run(device, rows, heads, head_dim, half):
    """Up to the last bit of fp32, but the scales are the same."""
    projected = draw_projected(rows, heads, head_dim, half, device)
    kept = projected[0].clone()
    kernels = fused._rounding_kernels()
    found, again, right = (how.norm_rotate_round(*projected) for how in (kernels, kernels, rounding))
    assert torch.equal(projected[0], kept)
    for got, same, expected in zip(found, again, right, strict=True):
        assert torch.equal(got.scale, expected.scale)
        assert float((got.values.float() != expected.values.float()).float().mean()) < 1e-3
        assert distance(got.widen().double(), expected.widen().double()) < 1e-2
        assert torch.equal(got.values.view(torch.uint8), same.values.view(torch.uint8))


@gpu
@torch.inference_mode()
def test_native_blocks_are_as_near_to_the_truth_as_eager_ones_and_alike_in_every_run(device):
    truth = velocity(random_denoiser(MEDIUM, dtype=torch.float32, device="cuda"))
    model = Untrained(MEDIUM).load(device, Precision.FP8)
    for layer in fused._fp8_layers(model.blocks):
        layer.is_native = True
    eager = distance(velocity(model), truth)
    fuse(model, fused._kernels(), fused._rounding_kernels())
    first, second = velocity(model), velocity(model)
    assert 0 < distance(first, truth) < NEAR * eager
    assert torch.equal(first, second)
