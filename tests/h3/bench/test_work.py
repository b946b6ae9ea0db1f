"""What a step has to do, against the published model's known figures; and when a floor is which."""

import pytest

from h3.bench.work import Ceilings, Part, Work, count_work, floor_s, show_tera
from h3.precision import Precision
from h3.sequence import Geometry, Layout
from h3.untrained import H3

CEILINGS = Ceilings(bf16_per_s=8e14, fp8_per_s=1.6e15, bytes_per_s=4e12)


@pytest.mark.parametrize(
    ("shape", "tokens", "tera"), [((864, 480, 141), 17_780, 1_139), ((1344, 768, 124), 38_010, 3_537)]
)
def test_a_step_of_the_published_model_has_so_many_operations(shape, tokens, tera):
    layout = Layout(Geometry(*shape), 300)
    assert layout.tokens == tokens
    operations = sum(work.operations for work in count_work(H3, layout, Precision.BF16).values())
    assert operations == pytest.approx(tera * 1e12, rel=1e-3)


def test_smaller_weights_are_fewer_bytes_and_no_fewer_operations():
    layout = Layout(Geometry(864, 480, 141), 300)
    plain, packed = (count_work(H3, layout, precision) for precision in (Precision.BF16, Precision.NVFP4))
    assert plain[Part.FC1].operations == packed[Part.FC1].operations
    values = 50 * 2 * H3.ffn_dim * H3.hidden_size
    assert plain[Part.FC1].bytes - packed[Part.FC1].bytes == pytest.approx(values * (2 - 0.5625))
    assert plain[Part.ATTENTION] == packed[Part.ATTENTION]


def test_a_floor_is_what_takes_longer_the_operations_or_the_bytes():
    assert floor_s(Work(8e14, 4e12 / 2), 8e14, 4e12) == 1.0
    assert floor_s(Work(8e13, 4e12), 8e14, 4e12) == 1.0


@pytest.mark.parametrize(
    ("part", "precision", "attention", "rate"),
    [
        (Part.QKV, Precision.BF16, "fa3", 8e14),
        (Part.QKV, Precision.FP8, "fa3", 1.6e15),
        (Part.ATTENTION, Precision.FP8, "fa3", 8e14),
        (Part.ATTENTION, Precision.FP8, "fa3-fp8", 1.6e15),
        (Part.POINTWISE, Precision.FP8, "fa3-fp8", 8e14),
    ],
)
def test_what_is_rounded_to_fp8_is_done_at_the_rate_of_fp8(part, precision, attention, rate):
    assert CEILINGS.operations_per_s(part, precision, attention) == rate
    assert Ceilings(8e14, None, 4e12).operations_per_s(part, precision, attention) == 8e14


def test_rates_are_shown_as_they_are_read():
    assert [show_tera(rate) for rate in (7.88e14, 1.579e15, 4.3e12, 2.3e10)] == ["788 T", "1,579 T", "4.3 T", "0.023 T"]
