import pytest
import torch

from h3.checkpoint import load_denoiser
from h3.fp8 import FP8Linear, probe_fp8, round_rows
from h3.precision import Precision
from tests.h3.test_exact import errors, make_request

CPU = torch.device("cpu")


def relative_error(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def test_rows_are_rounded_by_scales_of_their_own():
    x = torch.randn(5, 64) * torch.tensor([1e-4, 1.0, 1e4, 0.0, 1.0])[:, None]
    values, scale = round_rows(x)
    assert values.float().abs().amax(1).tolist() == [448, 448, 448, 0, 448]
    back = values.float() * scale
    assert relative_error(back[3], x[3] + 1e-30) <= 1
    for row in (0, 1, 2, 4):
        assert relative_error(back[row], x[row]) < 0.04  # three bits of mantissa


def test_a_product_is_that_of_the_rounded_values():
    weight, x = torch.randn(48, 64).bfloat16(), torch.randn(2, 7, 64).bfloat16()
    layer = FP8Linear(weight)
    rows, scale = round_rows(x.flatten(0, 1))
    expected = (rows.double() * scale) @ (layer.weight.double() * layer.weight_scale).T
    assert relative_error(layer(x).flatten(0, 1), expected) < 4e-3
    assert relative_error(layer(x), torch.nn.functional.linear(x, weight)) < 0.06


def test_no_cpu_multiplies_fp8_natively():
    assert not probe_fp8(CPU)


@torch.inference_mode()
def test_only_the_blocks_layers_are_rounded(tiny):
    plain, rounded = (load_denoiser(tiny.transformer, CPU, precision) for precision in (None, Precision.FP8))
    assert isinstance(rounded.blocks[0].mlp.fc1, FP8Linear)
    assert isinstance(rounded.token_refiner.blocks[0].mlp.fc1, torch.nn.Linear)
    request = make_request(plain.config)
    video, audio = errors(request.velocity(rounded), request.velocity(plain))
    assert 0 < video < 0.2
    assert 0 < audio < 0.2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_native_product_equals_the_emulated_one():
    if not probe_fp8(torch.device("cuda")):
        pytest.skip("this GPU has no FP8 products")
    weight, x = torch.randn(512, 768, device="cuda").bfloat16(), torch.randn(300, 768, device="cuda").bfloat16()
    layer = FP8Linear(weight)
    emulated = layer(x)
    layer.is_native = True
    assert 0 < relative_error(layer(x), emulated) < 1e-2
