"""Attention backends by name: the merge, what a wish comes to, and what is refused. On a GPU, each of them."""

import importlib.util
import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from h3 import attention_probe
from h3.attention import (
    BACKENDS,
    LOSSLESS,
    MODULES,
    ROUNDED,
    TORCH,
    Attending,
    AttentionName,
    attend,
    attend_in_parts,
    find_installed,
    is_installed,
    merge,
    pick,
    require_installed,
)
from h3.attention_probe import (
    LOOSE,
    PROBE_HEADS,
    PROBE_TOKENS,
    TOLERANCE,
    HeadShape,
    attend_in_fp32,
    describe,
    distance,
    find_attention_obstacle,
    measure_times,
)
from h3.collectives import share_from_first
from h3.errors import ConfigError
from h3.fp8 import RoundedQKV, round_heads
from h3.model import attend_all_heads
from h3.parallel import attention as parallel_attention
from h3.parallel.attention import BUCKET_TOKENS, SharedAttention, settle_attention
from h3.untrained import TINY, Untrained
from tests.h3.ranks import running_ranks

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
AUTO, SDPA, CUDNN, FLASH, EFFICIENT, FA3, FA3_FP8, SAGE = AttentionName
SHAPE = HeadShape(3, 16, torch.float32)


def relative_error(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def part(q, k, v):
    """[T, H, D] and its log-sum-exp [T, H], written out."""
    scores = torch.einsum("qhd,khd->qhk", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("qhk,khd->qhd", scores.softmax(-1), v), scores.logsumexp(-1)


def never(q, k, v):
    raise AssertionError("there is nothing for it")


class TestMerge:
    @pytest.mark.parametrize("aligned", [128, 2304])
    @pytest.mark.parametrize("rest", [1, 5, 127, 129])
    def test_two_parts_are_the_whole(self, aligned, rest):
        q, k, v = torch.randn(aligned + rest, 3, 2, 16, dtype=torch.float64).unbind(1)
        assert relative_error(attend_in_parts(q, k, v, part, part), part(q, k, v)[0]) < 1e-14

    @pytest.mark.parametrize("keys", [1, 127, 128, 2304])
    def test_what_has_no_two_parts_is_left_whole(self, keys):
        q, k, v = torch.randn(keys, 3, 2, 16, dtype=torch.float64).unbind(1)
        parts = (part, never) if keys >= 128 else (never, part)
        assert torch.equal(attend_in_parts(q, k, v, *parts), part(q, k, v)[0])

    def test_the_first_gets_as_many_keys_as_are_a_multiple_and_all_queries(self):
        asked = []

        def noting(q, k, v):
            asked.append((len(q), len(k), len(v)))
            return part(q, k, v)

        attend_in_parts(*torch.randn(300, 3, 2, 16).unbind(1), noting, noting)
        assert asked == [(300, 256, 256), (300, 44, 44)]

    def test_a_merge_rounds_once(self):
        q, k, v = torch.randn(300, 3, 2, 16, dtype=torch.float64).unbind(1)
        (out, weight), (other, other_weight) = part(q, k[:200], v[:200]), part(q, k[200:], v[200:])
        halves = (out.bfloat16(), weight.float(), other.bfloat16(), other_weight.float())
        exact = merge(halves[0].double(), weight, halves[2].double(), other_weight)
        rounded = merge(*halves)
        assert rounded.dtype == torch.bfloat16
        assert torch.equal(rounded, exact.bfloat16()) or relative_error(rounded, exact) < 1.8e-3
        assert rounded.data_ptr() == halves[0].data_ptr()

    @pytest.mark.parametrize("apart", [0.0, 50.0, -50.0, 1e4, -1e4])
    def test_weights_far_apart_are_merged(self, apart):
        out, other, weight = torch.ones(4, 2, 8), torch.full((4, 2, 8), 3.0), torch.zeros(4, 2)
        found = merge(out, weight, other, weight + apart)
        assert torch.equal(found, torch.full_like(found, {0.0: 2.0}.get(apart, 3.0 if apart > 0 else 1.0)))


class TestChoice:
    @pytest.mark.parametrize(
        ("name", "usable", "times_ms", "chosen"),
        [
            (AUTO, LOSSLESS, {FA3: 13.1, CUDNN: 13.9, FLASH: 25.0, EFFICIENT: 40.0}, FA3),
            (AUTO, LOSSLESS, {}, FA3),
            (AUTO, TORCH, {CUDNN: 13.9, FLASH: 25.0, EFFICIENT: 40.0}, CUDNN),
            (AUTO, BACKENDS, {FA3: 13.1, FA3_FP8: 9.8, SAGE: 1.0}, FA3),
            (AUTO, ROUNDED, {FA3_FP8: 9.8, SAGE: 1.0}, SDPA),
            (SDPA, LOSSLESS, {FA3: 13.1, CUDNN: 13.9, FLASH: 25.0}, CUDNN),
            (SDPA, TORCH, {CUDNN: 20.0, FLASH: 17.0, EFFICIENT: 16.0}, FLASH),
            (SDPA, TORCH, {CUDNN: 20.0, FLASH: 18.1}, CUDNN),  # no tenth faster
            (SDPA, TORCH, {CUDNN: 20.0, FLASH: 19.0, EFFICIENT: 5.0}, EFFICIENT),
            (SDPA, (FLASH, EFFICIENT), {FLASH: 25.0, EFFICIENT: 40.0}, FLASH),
            (SDPA, (EFFICIENT,), {}, EFFICIENT),
            (SDPA, (), {}, SDPA),
            (FLASH, (FLASH,), {}, FLASH),
            (SAGE, (SAGE,), {}, SAGE),
            (FA3_FP8, (FA3_FP8,), {}, FA3_FP8),
        ],
    )
    def test_a_wish_comes_to_a_backend(self, name, usable, times_ms, chosen):
        assert pick(name, usable, times_ms) is chosen

    def test_the_log_names_what_runs_and_how_long_the_others_take(self):
        times_ms = {FA3: 13.06, CUDNN: 13.9, FLASH: 25.0}
        assert (
            describe(FA3, times_ms, 17_780)
            == "attention runs on fa3 (13.1 ms; cudnn 13.9, flash 25.0 at 17,780 tokens)"
        )
        assert describe(CUDNN, {CUDNN: 13.9}, 17_780) == "attention runs on cudnn (13.9 ms at 17,780 tokens)"
        assert describe(SDPA, {}, 17_780) == "attention runs on sdpa"


class TestRefused:
    @pytest.mark.parametrize("name", BACKENDS)
    def test_without_a_gpu(self, name):
        with pytest.raises(ConfigError, match=f"attention {name} takes a CUDA GPU: ask for sdpa or auto"):
            require_installed(name, on_gpus=False)

    @pytest.mark.parametrize(("name", "module"), MODULES.items())
    def test_what_is_not_installed_with_the_command_that_does(self, name, module, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        extra = "fa3" if name is FA3_FP8 else name
        told = rf"attention {name} is refused: {module} is not installed: pip install 'h3render\[{extra}\]'"
        with pytest.raises(ConfigError, match=told):
            require_installed(name, on_gpus=True)
        assert find_installed(on_gpus=True) == (SDPA, CUDNN, FLASH, EFFICIENT)

    def test_both_of_fa3_come_with_one_extra(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "fa3_fwd_interface" else None)
        assert {FA3, FA3_FP8} <= set(find_installed(on_gpus=True))
        assert is_installed(FA3_FP8)

    def test_only_sdpa_is_offered_without_a_gpu(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
        assert find_installed(on_gpus=False) == (SDPA,)
        assert find_installed(on_gpus=True) == (SDPA, *BACKENDS)

    @pytest.mark.parametrize("name", [AUTO, SDPA])
    @pytest.mark.parametrize("on_gpus", [True, False])
    def test_never_what_runs_everywhere(self, name, on_gpus):
        require_installed(name, on_gpus=on_gpus)

    def test_an_unknown_name_with_those_that_are_known(self):
        known = "auto, sdpa, cudnn, flash, efficient, fa3, fa3-fp8, sage"
        with pytest.raises(ConfigError, match=f"'hyper' is not one of {known}"):
            AttentionName.parse("hyper")


def test_sdpa_is_what_torch_makes_of_it():
    qkv = torch.randn(37, 3, 2, 16).bfloat16()
    q, k, v = (part.transpose(0, 1)[None] for part in qkv.unbind(1))
    assert attend(SDPA) is attend_all_heads
    assert torch.equal(attend(SDPA)(qkv), F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1))


def test_rounding_q_k_and_v_head_by_head_is_off_by_less_than_the_probe_allows():
    for tokens in PROBE_TOKENS:
        qkv = HeadShape(PROBE_HEADS, 128, torch.bfloat16).draw(tokens, CPU)
        rounded = [round_heads(part).widen() for part in qkv.unbind(1)]
        found = attend_in_fp32(*[torch.stack(rounded, 1)] * 2)
        assert TOLERANCE < relative_error(found, attend_in_fp32(qkv, qkv)) < 0.7 * LOOSE[FA3_FP8]


def test_the_oracle_of_the_probe_is_attention():
    qkv = SHAPE.draw(37, CPU)
    assert relative_error(attend_in_fp32(qkv, qkv), attend_all_heads(qkv)) < 1e-6


def test_a_backend_that_is_off_or_changes_its_input_is_seen(monkeypatch):
    def off(qkv):
        return attend_all_heads(qkv[:-1].contiguous().index_select(0, torch.arange(len(qkv)).clamp(max=len(qkv) - 2)))

    def greedy(qkv):
        out = attend_all_heads(qkv)
        qkv[:, 1] -= 1
        return out

    for wrong in (off, greedy, lambda qkv: attend_all_heads(qkv) * math.nan):
        monkeypatch.setattr(attention_probe, "attend", lambda _, wrong=wrong: wrong)
        assert distance(CUDNN, SHAPE, 37, CPU) > TOLERANCE
    monkeypatch.setattr(attention_probe, "attend", lambda _: attend_all_heads)
    assert distance(CUDNN, SHAPE, 37, CPU) < 1e-6


@pytest.fixture(scope="module")
def ranks():
    with running_ranks(2) as call:
        yield call


class TestRanks:
    def test_take_the_same_whatever_each_measures(self, ranks):
        ranks(check_that_rank_0_times)

    def test_take_only_what_runs_on_all(self, ranks):
        ranks(check_that_each_is_asked)

    def test_on_the_cpu_run_on_sdpa_and_refuse_the_rest(self, ranks):
        ranks(check_cpu)


def pretend(patch, group, obstacles, times_ms):
    """Ranks on GPUs, as the probe tells it. Returns the device, and what is asked of the probe."""
    device, asked = torch.device("cuda"), []

    def find(backend, *_):
        asked.append(backend)
        return obstacles.get(backend)

    def measure(backends, shape, tokens, device):
        assert dist.get_rank(group) == 0
        backends = list(backends)
        asked.append((tuple(backends), tokens))
        return {backend: times_ms[backend] for backend in backends}

    patch.setattr(parallel_attention, "find_attention_obstacle", find)
    patch.setattr(parallel_attention, "measure_times", measure)
    patch.setattr(parallel_attention, "share_from_first", lambda value, group, _: share_from_first(value, group, CPU))
    return device, asked


def check_that_rank_0_times(group):
    is_first = dist.get_rank(group) == 0
    with pytest.MonkeyPatch.context() as patch:
        obstacles = {FA3: "it takes Hopper"}
        device, asked = pretend(patch, group, obstacles, {CUDNN: 13.9, FLASH: 25.0, EFFICIENT: math.inf})
        shared = SharedAttention(AUTO, SHAPE, device, group)
        shared.require(AUTO)
        assert asked == list(LOSSLESS)
        assert shared.must_measure(AUTO, 17_780)
        shared.take(AUTO, 17_780)
        assert shared.running is CUDNN
        assert asked[4:] == ([(TORCH, 17_780)] if is_first else [])
        assert not shared.must_measure(SDPA, 17_000)
        shared.take(SDPA, 17_000)  # a size like it
        assert len(asked) == (5 if is_first else 4)
        shared.take(FLASH, 17_000)
        assert shared.running is FLASH
        with pytest.raises(ConfigError, match="attention fa3 is refused: it takes Hopper"):
            shared.take(FA3, 17_000)
        assert shared.running is FLASH
        shared.take(AUTO, 17_000 + BUCKET_TOKENS)
        assert shared.running is CUDNN
        assert asked[5:] == ([(TORCH, 17_000 + BUCKET_TOKENS)] if is_first else [])


def check_that_each_is_asked(group):
    is_first = dist.get_rank(group) == 0
    with pytest.MonkeyPatch.context() as patch:
        obstacles = {FA3: "off by 0.3, allowed 0.01"} if not is_first else {CUDNN: "no engine"}
        device, _ = pretend(patch, group, obstacles, {FLASH: 25.0, EFFICIENT: 40.0})
        shared = SharedAttention(AUTO, SHAPE, device, group)
        shared.take(AUTO, 300)
        assert shared.running is FLASH
        with pytest.raises(ConfigError, match=r"attention fa3 is refused: off by 0\.3, allowed 0\.01"):
            shared.take(FA3, 300)
        with pytest.raises(ConfigError, match="attention cudnn is refused: no engine"):
            shared.take(CUDNN, 300)


def check_cpu(group):
    model = Untrained(TINY).load(CPU)
    for wish in (AUTO, SDPA):
        shared = settle_attention(model, wish, CPU, group)
        assert not shared.must_measure(AUTO, 300)
        shared.take(AUTO, 300)
        assert shared.running is SDPA
        assert all(block.attn.attend is shared.attending for block in model.blocks)
        for name in BACKENDS:
            with pytest.raises(ConfigError, match=f"attention {name} is refused: it takes a CUDA GPU"):
                shared.take(name, 300)
        assert shared.running is SDPA
    with pytest.raises(ConfigError, match="attention fa3 is refused"):
        settle_attention(model, FA3, CPU, group)


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
BF16 = HeadShape(56, 128, torch.bfloat16)
TOLERANCES = {FA3: 4e-3, CUDNN: 4e-3, FLASH: 4e-3, EFFICIENT: 4e-3, FA3_FP8: 1e-1}


@pytest.fixture
def backend(request):
    """One that is installed. The probe itself has to pass, on Hopper: a GPU of another kind skips what it has not."""
    if importlib.util.find_spec(MODULES.get(request.param, "torch")) is None:
        pytest.skip(f"{request.param} is not installed")
    obstacle = find_attention_obstacle(request.param, GPU, 128, torch.bfloat16)
    if obstacle and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip(f"{request.param} does not run on this GPU: {obstacle}")
    assert obstacle is None
    return request.param


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.filterwarnings("default")  # what others' wheels warn of when they are imported is not ours
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name is not SAGE], indirect=True)
class TestOnAGpu:
    @pytest.mark.parametrize("tokens", [100, 128, 129, 255, 256, 384 + 127, 2048 + 1, 4500])
    @torch.inference_mode()
    def test_it_is_attention(self, backend, tokens, record_property):
        error = distance(backend, HeadShape(7, 128, torch.bfloat16), tokens, GPU)
        record_property("relative_l2", error)
        assert error < TOLERANCES[backend]

    @torch.inference_mode()
    def test_it_gives_the_same_bits_again(self, backend):
        qkv = BF16.draw(4500, GPU)
        assert torch.equal(attend(backend)(qkv), attend(backend)(qkv))

    @torch.inference_mode()
    def test_some_heads_alone_are_as_among_all(self, backend, record_property):
        """As ranks have them."""
        qkv = BF16.draw(4500, GPU)
        alone, among = attend(backend)(qkv[:, :, 9:16].contiguous()), attend(backend)(qkv)[:, 9:16]
        record_property("same_bits", torch.equal(alone, among))
        assert relative_error(alone, among) < TOLERANCES[backend]

    @torch.inference_mode()
    def test_it_is_attention_where_offsets_pass_32_bits(self, backend):
        tokens = 100_003
        qkv = BF16.draw(tokens, GPU)
        assert qkv.numel() > 2**31
        found = attend(backend)(qkv)
        for rows in (slice(0, 64), slice(tokens - 64, tokens)):
            for head in (0, 55):  # one by one: in fp32 all would not fit
                heads = slice(head, head + 1)
                expected = attend_in_fp32(qkv[rows, :, heads], qkv[:, :, heads])
                assert relative_error(found[rows, heads], expected) < TOLERANCES[backend]

    @torch.inference_mode()
    def test_it_is_timed_at_a_renders_size(self, backend, record_property):
        times_ms = measure_times([backend], BF16, 17_780, GPU)
        record_property("ms_at_17780_tokens", times_ms[backend])
        assert 0 < times_ms[backend] < 1000


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("backend", [FA3_FP8], indirect=True)
@pytest.mark.parametrize("tokens", [129, 421, 4500])
@torch.inference_mode()
def test_fp8_attention_is_that_of_the_rounded_values(backend, tokens, record_property):
    """Its weights are rounded to three bits as well, which leaves 2e-2. Heads of unlike sizes let a scale show."""
    qkv = HeadShape(5, 128, torch.bfloat16).draw(tokens, GPU)
    qkv[:, 2] *= torch.tensor([1e-2, 1, 1e2, 3, 0.5], device=GPU, dtype=qkv.dtype)[:, None]
    rounded = RoundedQKV(*map(round_heads, qkv.unbind(1)))
    widened = torch.stack([part.widen() for part in rounded], 1)
    found, expected = attend(backend)(qkv), attend_in_fp32(widened, widened)
    attending = Attending()
    attending.backend = backend
    assert torch.equal(attending(rounded), found)
    errors = [relative_error(found[:, head], expected[:, head]) for head in range(5)]
    record_property("relative_l2", errors)
    assert max(errors) < 4e-2


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.filterwarnings("default")
@torch.inference_mode()
def test_sage_is_refused_because_it_is_wrong_where_its_last_block_has_few_keys():
    if importlib.util.find_spec(MODULES[SAGE]) is None:
        pytest.skip("sage is not installed")
    obstacle = find_attention_obstacle(SAGE, GPU, 128, torch.bfloat16)
    assert obstacle is not None
    assert obstacle.startswith("off by")


@pytest.mark.gpu
@on_a_gpu
@torch.inference_mode()
def test_what_is_not_for_this_type_is_refused_with_the_reason():
    obstacle = find_attention_obstacle(FLASH, GPU, 128, torch.float32)
    assert obstacle is not None
    assert "Error" in obstacle
