"""Both distributed modes, against the model on one device: real ranks over Gloo. Every world size to 8 with `--full`.

One fleet serves all world sizes, the smaller ones as groups of its first ranks. Sizes are ragged: 9 heads, 9 units of
the MLP, token counts that do not divide. In fp32, Ulysses does a device's own arithmetic, and tensor parallelism sums
in another order. In bf16 that order moves roundings, which the blocks carry to some 5e-3.
"""

import copy
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from h3 import fused, pointwise, rounding
from h3.attention import AttentionName
from h3.checkpoint import Trim, keep_all
from h3.collectives import gather_heads, gather_rows, reduce_rows, scatter_heads
from h3.denoise import Denoising
from h3.errors import PartitionError, RanksDisagree
from h3.fp8 import FP8Linear, RoundedQKV, round_rows, use_fp8
from h3.fused import EAGER, FUSED, fuse
from h3.model import Attention, Denoiser, Mlp, Modulation, Velocity, attend_all_heads
from h3.nvfp4 import NVFP4Linear
from h3.parallel import products
from h3.parallel.agreement import RankFacts, confirm_agreement
from h3.parallel.loading import load_spread
from h3.parallel.mode import Mode, check_mode, spread, trim_for
from h3.parallel.tensor import cut_weights, partition_weights, sum_over_ranks
from h3.parallel.tokens import TokenShards, shard_tokens
from h3.partition import Partition, WeightPartition, split_evenly
from h3.precision import Precision
from h3.sampler import Latents, draw_noise, make_schedule
from h3.sequence import Clock, Geometry, Layout, Modality, Span
from h3.transport import measure_transport
from h3.untrained import H3, Untrained
from h3.weights import Recipe, put
from tests.h3.ranks import device_of, running_ranks
from tests.h3.test_rounding import draw_projected

CPU = torch.device("cpu")
MOST_RANKS = 8
FORWARD_FP32, STEPS_FP32 = 1e-6, 1e-5
BF16 = 2e-2  # of one forward and of the steps
FP8 = 1e-1  # a column shard's rows are scaled by what they hold; to bf16 the whole model's own distance is 6e-2
LAYOUT = Layout(Geometry(96, 64, 22), text_tokens=11)  # 127 tokens: divisible by no world size
CONFIG = H3.model_copy(
    update={
        "hidden_size": 256,
        "num_layers": 2,
        "num_attention_heads": 9,
        "ffn_dim": 1152,
        "text_dim": 64,
        "freq_dim": 64,
        "time_embed_hidden_dim": 96,
        "time_embed_dim": 96,
    }
)


pytestmark = pytest.mark.slow
# What a test is given, in a reduced run and in a full one.
PARAMETERS = {
    "any_size": ((1, 2, 3), range(1, MOST_RANKS + 1)),
    "some_size": ((1, 2, 3), (1, 2, 6, 8)),
    "repeated": (
        ((Precision.BF16, 3), (Precision.NVFP4, 2)),
        ((Precision.BF16, 1), (Precision.BF16, 3), (Precision.BF16, 8), (Precision.NVFP4, 2)),
    ),
}


def pytest_generate_tests(metafunc):
    for name, (reduced, complete) in PARAMETERS.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, complete if metafunc.config.getoption("full") else reduced)


@pytest.fixture(scope="module")
def ranks(full):
    """Calls `check(group, *arguments)` on the first ranks of a fleet, which takes a while to start."""
    with running_ranks(MOST_RANKS if full else 3) as call:
        yield call


class TestPartition:
    def test_weights_are_cut_between_heads_and_between_units_of_the_format(self):
        partition = partition_weights(H3, Precision.NVFP4, 6)
        assert partition.heads.sizes == (10, 10, 9, 9, 9, 9)
        assert partition.ffn.sizes == tuple(128 * units for units in (19, 19, 19, 19, 18, 18))
        assert partition.qkv_rows(5) == (slice(6016, 7168), slice(13184, 14336), slice(20352, 21504))
        assert partition.out_columns(5) == slice(6016, 7168)
        assert partition.fc1_rows(5) == (slice(12032, 14336), slice(26368, 28672))
        assert partition.fc2_columns(5) == slice(12032, 14336)
        assert partition_weights(H3, Precision.FP32, 6).ffn.sizes == (2390, 2390, 2389, 2389, 2389, 2389)
        assert partition_weights(H3, Precision.BF16, 6).ffn.sizes == (2392, 2392, 2392, 2392, 2384, 2384)

    @pytest.mark.parametrize("mode", Mode)
    def test_a_rank_with_nothing_to_do_is_refused_with_the_numbers(self, mode):
        with pytest.raises(PartitionError, match="9 attention heads cannot be split over 10 ranks: use at most 9"):
            check_mode(mode, CONFIG, Precision.BF16, 10)

    def test_a_rank_without_a_unit_of_the_mlp_is_refused_with_the_numbers(self):
        narrow = CONFIG.model_copy(update={"ffn_dim": 640})
        check_mode(Mode.TENSOR, narrow, Precision.BF16, 8)
        check_mode(Mode.ULYSSES, narrow, Precision.NVFP4, 8)
        with pytest.raises(PartitionError, match=r"640 FFN values, which are 5 units of 128, cannot be .* 8 ranks"):
            check_mode(Mode.TENSOR, narrow, Precision.NVFP4, 8)

    def test_a_last_unit_may_be_a_shorter_one(self):
        assert split_evenly(1100, 4, what="values", unit=128).sizes == (384, 256, 256, 204)


class TestCollectives:
    def test_ranks_trade_tokens_for_heads_and_back_exactly(self, ranks, any_size):
        ranks(check_identity, world_size=any_size)

    def test_rows_are_gathered_from_unequal_ranks_and_from_those_that_have_none(self, ranks, any_size):
        ranks(check_gather, world_size=any_size)

    def test_summands_become_each_ranks_rows_of_the_sum_rounded_once(self, ranks, any_size):
        ranks(check_reduction, world_size=any_size)

    def test_what_is_sent_to_other_ranks_is_metered(self, ranks):
        ranks(check_meter, world_size=3)


def check_identity(group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    for total, heads in ((17, 9), (world_size + 1, 9), (64, 8)):
        tokens, owned = split_evenly(total, world_size, what="tokens"), split_evenly(heads, world_size, what="heads")
        whole = torch.randn(total, 3, heads, 8, generator=torch.Generator().manual_seed(3)).bfloat16()
        whole = whole.to(device_of(group))
        part = scatter_heads(whole[tokens.owned(rank)], tokens, owned, group)
        assert torch.equal(part, whole[:, :, owned.owned(rank)])
        back = gather_heads(part[:, 0].contiguous(), tokens, owned, group)
        assert torch.equal(back, whole[tokens.owned(rank), 0])


def check_gather(group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    for rows in (split_evenly(17, world_size, what="rows"), Partition((0,) * (world_size - 1) + (5,))):
        whole = torch.randn(rows.total, 3, generator=torch.Generator().manual_seed(4)).to(device_of(group))
        assert torch.equal(gather_rows(whole[rows.owned(rank)], rows, group), whole)


def check_reduction(group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    rows = split_evenly(17, world_size, what="rows")
    summands = torch.randn(world_size, 17, 40, generator=torch.Generator().manual_seed(5)).to(device_of(group))
    for dtype, unit in ((torch.float32, 2**-22), (torch.bfloat16, 2**-8)):
        given = summands.to(dtype)
        found = reduce_rows(given[rank], rows, group)
        exact = given.double().sum(0)[rows.owned(rank)]
        # Sums that nearly cancel are as exact as their largest summand's fp32 rounding.
        assert ((found.double() - exact).abs() <= unit * exact.abs() + 2**-20).all()
        assert found.dtype == dtype
        assert torch.equal(found, reduce_rows(given[rank], rows, group))


def check_meter(group):
    tokens, heads = Partition((3, 2, 2)), Partition((2, 1, 1))
    rank = dist.get_rank(group)
    with measure_transport() as meter:
        scatter_heads(torch.zeros(tokens.sizes[rank], 3, 4, 8), tokens, heads, group)
        gather_rows(torch.zeros(tokens.sizes[rank], 8), tokens, group)
    told = meter.read()
    traded = tokens.sizes[rank] * 3 * (4 - heads.sizes[rank]) * 8
    gathered = 2 * 3 * 8  # to each of the two others, padded to the largest rank's rows
    assert (told.sent_bytes, told.calls) == (4 * (traded + gathered), 2)
    assert told.seconds > 0
    reduce_rows(torch.zeros(7, 8), tokens, group)  # no longer metered
    assert meter.read().calls == 2


@pytest.fixture(scope="module")
def gpu_ranks():
    with running_ranks(min(torch.cuda.device_count(), MOST_RANKS), "nccl") as call:
        yield call


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA GPUs")
@pytest.mark.parametrize("check", ["check_identity", "check_gather", "check_reduction"])
def test_the_same_holds_over_nccl(gpu_ranks, check):
    gpu_ranks(globals()[check])


class TestLayers:
    def test_attention_over_two_ranks_is_attention(self, ranks):
        ranks(check_attention, world_size=2)

    def test_a_layer_of_which_each_rank_has_a_part_is_the_layer_with_its_bias_added_once(self, ranks, some_size):
        ranks(check_layers, world_size=some_size)

    def test_the_final_projection_of_shards_is_that_of_all_rows(self, ranks, any_size):
        ranks(check_final_projection, world_size=any_size)

    @pytest.mark.parametrize("mode", Mode)
    def test_blocks_with_fused_pointwise_work_are_spread_like_the_others(self, ranks, mode):
        ranks(check_fused, mode, world_size=3)

    @pytest.mark.parametrize("world_size", [2, 3])
    def test_heads_that_are_exchanged_in_groups_give_the_same_bits(self, ranks, world_size):
        ranks(check_head_groups, world_size=world_size)

    @pytest.mark.parametrize("mode", Mode)
    @pytest.mark.parametrize("world_size", [1, 3])
    def test_rows_that_are_rounded_before_they_are_sent_are_as_those_rounded_after(self, ranks, mode, world_size):
        ranks(check_rounded, mode, world_size=world_size)

    def test_rows_are_rounded_in_kernels_only_where_every_ranks_run(self, ranks):
        ranks(check_rounding, world_size=2)

    @pytest.mark.parametrize("mode", Mode)
    @pytest.mark.parametrize("world_size", [1, 2])
    def test_heads_are_rounded_before_attention_only_where_they_are_not_exchanged(self, ranks, mode, world_size):
        ranks(check_rounded_heads, mode, world_size=world_size)


def check_fused(group, mode):
    whole = copy.deepcopy(whole_model(CONFIG, Precision.FP32))
    fuse(whole)
    trim = trim_for(mode, CONFIG, Precision.FP32, dist.get_rank(group), dist.get_world_size(group))
    part = in_memory(whole_model(CONFIG, Precision.FP32), trim)
    fuse(part)
    spread(part, mode, group)
    assert worst(one_velocity(part), one_velocity(whole)) <= FORWARD_FP32
    told = load_spread(Kept(CONFIG), "", mode, CPU, group, precision=Precision.FP32)
    assert told.pointwise == told.provenance(CPU).pointwise == EAGER  # on a CPU nothing is fused


def check_head_groups(group):
    """Also in more groups than a rank has heads. What is exchanged is as much, in more calls."""
    told = {}
    for groups in (1, 2, 3, 100):
        part = copy.deepcopy(whole_model(CONFIG, Precision.BF16))
        spread(part, Mode.ULYSSES, group, head_groups=groups)
        with measure_transport() as meter:
            told[groups] = one_velocity(part), meter.read()
    expected, plain = told.pop(1)
    for found, grouped in told.values():
        assert torch.equal(found.video, expected.video)
        assert torch.equal(found.audio, expected.audio)
        assert grouped.sent_bytes == plain.sent_bytes
        assert grouped.calls > plain.calls


def check_rounded(group, mode):
    """In fp32, where nothing else is rounded between a pass and a layer: bit for bit."""
    trim = trim_for(mode, CONFIG, Precision.FP8, dist.get_rank(group), dist.get_world_size(group))
    before, after = (in_memory(whole_model(CONFIG, Precision.FP32), trim) for _ in range(2))
    for part in (before, after):
        use_fp8(part.blocks)
    fuse(before, rounds=rounding)
    fuse(after)
    for part in (before, after):
        spread(part, mode, group)
    found, expected = one_velocity(before), one_velocity(after)
    assert torch.equal(found.video, expected.video)
    assert torch.equal(found.audio, expected.audio)


def check_rounding(group):
    """On these two ranks, of which first one and then both have kernels that are right."""
    for able in ({0}, {0, 1}):
        model = Untrained(CONFIG).load(CPU, Precision.FP8)
        layers = [module for module in model.modules() if isinstance(module, FP8Linear)]
        for layer in layers:
            layer.is_native = True
        kernels = SimpleNamespace(**(vars(rounding) | {"round_rows": partial(round_rows)}))
        with running_kernels(kernels, runs=dist.get_rank(group) in able):
            assert fused.settle_pointwise(model, CPU, group) == FUSED
        assert {layer.round_rows for layer in layers} == {kernels.round_rows if able == {0, 1} else round_rows}


def check_rounded_heads(group, mode):
    """Which is decided once: what attends, as it stands, would take them."""
    with running_kernels(rounding, runs=True) as patch:
        patch.setattr(products, "probe_fp8", lambda _: True)
        told = load_spread(Kept(CONFIG), "", mode, CPU, group, precision=Precision.FP8)
    told.attention.attending.backend = AttentionName.FA3_FP8
    projected = draw_projected(5, 3, 16, 4)
    found = [block.attn._project.args[1](*projected) for block in told.model.blocks]
    is_rounded = mode is Mode.TENSOR or dist.get_world_size(group) == 1
    assert {type(qkv) for qkv in found} == {RoundedQKV if is_rounded else torch.Tensor}


@contextmanager
def running_kernels(kernels, runs):
    """As on a GPU on which kernels, of which these round, run or are found not to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "probe_kernels", lambda _: True)
        patch.setattr(fused, "probe_rounding", lambda _: runs)
        patch.setattr(fused, "_kernels", lambda: pointwise)
        patch.setattr(fused, "_rounding_kernels", lambda: kernels)
        yield patch


@torch.inference_mode()
def check_attention(group):
    qkv = torch.randn(33, 3, 9, 128, generator=torch.Generator().manual_seed(6))
    tokens, heads = split_evenly(33, 2, what="tokens"), split_evenly(9, 2, what="heads")
    owned = tokens.owned(dist.get_rank(group))
    found = gather_heads(attend_all_heads(scatter_heads(qkv[owned], tokens, heads, group)), tokens, heads, group)
    torch.testing.assert_close(found, attend_all_heads(qkv)[owned], rtol=1e-6, atol=1e-6)


@torch.inference_mode()
def check_layers(group):
    """H3's projections have no bias; these have one, so that adding it on each rank, or on none, shows."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    x = torch.randn(25, CONFIG.hidden_size, generator=torch.Generator().manual_seed(7))
    for name, last, kind in (("attn", "out_proj", Attention), ("mlp", "fc2", Mlp)):
        whole = biased_model()
        expected = whole.blocks[0].get_submodule(name)(x)
        shards = TokenShards(group)
        shards.tokens = split_evenly(25, world_size, what="tokens")
        partition = partition_weights(CONFIG, Precision.FP32, world_size)
        part = in_memory(whole, partial(cut_weights, partition=partition, rank=rank))
        layer = part.blocks[0].get_submodule(name)
        assert isinstance(layer, kind)
        sum_over_ranks(layer, layer.get_submodule(last), shards)
        owned = shards.tokens.owned(rank)
        assert relative_error(layer(x[owned]), expected[owned]) < FORWARD_FP32
        bias = whole.blocks[0].get_submodule(f"{name}.{last}").bias
        assert relative_error(expected - bias, expected) > 10 * FORWARD_FP32


def biased_model():
    model = Untrained(CONFIG.model_copy(update={"num_layers": 1})).load(CPU, Precision.FP32)
    for projection in (model.blocks[0].attn.out_proj, model.blocks[0].mlp.fc2):
        bias = torch.randn(CONFIG.hidden_size, generator=torch.Generator().manual_seed(8))
        projection.bias = torch.nn.Parameter(bias, requires_grad=False)
    return model


@torch.inference_mode()
def check_final_projection(group):
    whole, sharded = (copy.deepcopy(whole_model(CONFIG, Precision.FP32)) for _ in range(2))
    whole.blocks, sharded.blocks = torch.nn.ModuleList(), torch.nn.ModuleList()
    shard_tokens(sharded, group, layers_see_all_rows=False)
    timesteps = make_schedule(4).timesteps()[1]
    modulation = Modulation([], whole.modulation(timesteps).final)
    x = torch.randn(LAYOUT.tokens, CONFIG.hidden_size, generator=torch.Generator().manual_seed(9))
    rope = whole.rotary(LAYOUT.positions())
    found, expected = (model.velocity(x, rope, LAYOUT.spans, modulation) for model in (sharded, whole))
    assert worst(found, expected) < FORWARD_FP32
    sharded.final_layer.video_out.bias.zero_()
    without = sharded.velocity(x, rope, LAYOUT.spans, modulation)
    assert relative_error(without.video, expected.video) > 10 * FORWARD_FP32


class TestModel:
    @pytest.mark.parametrize("mode", Mode)
    def test_fp32_is_one_device(self, ranks, one_device, mode, any_size):
        limits = (0, 0) if any_size == 1 or mode.keeps_rows else (FORWARD_FP32, STEPS_FP32)
        ranks(check_parity, mode, Precision.FP32, one_device[Precision.FP32], *limits, world_size=any_size)

    @pytest.mark.parametrize("mode", Mode)
    def test_one_token_more_than_ranks_is_enough(self, ranks, mode, any_size):
        ranks(check_few_tokens, mode, world_size=any_size)

    @pytest.mark.parametrize("mode", Mode)
    @pytest.mark.parametrize("precision", [Precision.BF16, Precision.NVFP4])
    def test_bf16_and_nvfp4_are_one_device_within_their_roundings(self, ranks, one_device, mode, precision, some_size):
        limits = (0, 0) if some_size == 1 or mode.keeps_rows else (BF16, BF16)
        ranks(check_parity, mode, precision, one_device[precision], *limits, world_size=some_size)

    @pytest.mark.parametrize("world_size", [1, 2])
    def test_fp8_is_one_device_within_the_scales_of_shorter_rows(self, ranks, one_device, world_size):
        limits = (0, 0) if world_size == 1 else (FP8, FP8)
        ranks(check_parity, Mode.TENSOR, Precision.FP8, one_device[Precision.FP8], *limits, world_size=world_size)

    @pytest.mark.parametrize("mode", Mode)
    def test_a_second_run_gives_the_same_bits_and_every_rank_has_them(self, ranks, mode, repeated):
        precision, world_size = repeated
        ranks(check_determinism, mode, precision, world_size=world_size)

    @pytest.mark.parametrize("precision", [Precision.BF16, Precision.NVFP4])
    def test_each_mistake_moves_the_result_ten_times_further(self, ranks, one_device, precision):
        ranks(check_mistakes, precision, one_device[precision].velocity, world_size=3)


@pytest.fixture(scope="module")
def one_device(full):
    """By precision, what the whole model makes, which every rank is compared with."""
    steps = {Precision.FP32: 12 if full else 4, Precision.BF16: 2, Precision.NVFP4: 2, Precision.FP8: 2}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks have it: more round otherwise
    yield {precision: run(Kept(CONFIG).load(CPU, precision), number) for precision, number in steps.items()}
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Made:
    """One velocity, and what all steps make of the same noise."""

    velocity: Velocity
    latents: Latents
    steps: int


class Kept(Untrained):
    """Draws the whole model only once in a process, where it can."""

    def load(self, device, precision=None, waits=lambda _: False, trim=keep_all):
        if precision is Precision.FP8:  # rounded after it is cut
            return super().load(device, precision, waits, trim)
        return in_memory(whole_model(self.config, precision), trim)


@cache
def whole_model(config, precision):
    with torch.inference_mode(False):  # whoever asks first
        return Untrained(config).load(CPU, precision)


def in_memory(whole: Denoiser, trim: Trim) -> Denoiser:
    """A model of the whole one's values, or of what `trim` leaves of them."""
    values = whole.state_dict()
    recipes = {name: Recipe((), lambda _, name=name: values[name]) for name in values}
    model = copy.deepcopy(whole)
    for name, recipe in trim(model, recipes).items():
        put(model, name, recipe.build([]))
    return model


def spread_model(mode, precision, group):
    return load_spread(Kept(CONFIG), "", mode, CPU, group, precision=precision).model


@torch.inference_mode()
def run(model: Denoiser, steps: int) -> Made:
    noise, denoising = begin(model, steps)
    latents = noise
    for step in range(steps):
        _, latents = denoising.step(step, latents)
    return Made(one_velocity(model), latents, steps)


@torch.inference_mode()
def one_velocity(model: Denoiser) -> Velocity:
    """Amid a schedule."""
    noise, denoising = begin(model, 3)
    packed = model.embed(denoising.text, denoising.keyframes, noise.audio, noise.video)
    return model.velocity(packed, denoising.rope, LAYOUT.spans, denoising.modulation.at(1))


def begin(model: Denoiser, steps: int) -> tuple[Latents, Denoising]:
    states = torch.randn(11, CONFIG.text_dim, generator=torch.Generator().manual_seed(1)).bfloat16()
    return draw(), Denoising.begin(model, states, LAYOUT, make_schedule(steps))


def check_parity(group, mode, precision, expected, forward, steps):
    found = run(spread_model(mode, precision, group), expected.steps)
    assert worst(found.velocity, expected.velocity) <= forward
    assert worst(found.latents, expected.latents) <= steps


@torch.inference_mode()
def check_few_tokens(group, mode):
    """A sequence that no request has, of all modalities."""
    tokens = dist.get_world_size(group) + 1
    x = torch.randn(tokens, CONFIG.hidden_size, generator=torch.Generator().manual_seed(2))
    spans = [Span(0, 1, Modality.TEXT, Clock.VIDEO), Span(1, tokens, Modality.VIDEO, Clock.VIDEO, is_target=True)]
    if tokens > 2:
        spans[1:] = [Span(1, 2, Modality.AUDIO, Clock.AUDIO, is_target=True), replace(spans[1], start=2)]
    positions = torch.rand(tokens, 3, generator=torch.Generator().manual_seed(3)) * 40
    found, expected = (
        model.velocity(x, model.rotary(positions), spans, model.modulation(torch.tensor([0.3, 0.6])))
        for model in (spread_model(mode, Precision.FP32, group), whole_model(CONFIG, Precision.FP32))
    )
    assert (found.video.shape, found.audio.shape) == (expected.video.shape, expected.audio.shape)
    # Of all values together: so few have no mean rounding each.
    assert relative_error(flatten(found), flatten(expected)) <= FORWARD_FP32


def flatten(velocity: Velocity) -> torch.Tensor:
    return torch.cat([velocity.video.flatten(), velocity.audio.flatten()])


def check_determinism(group, mode, precision):
    first, second = (run(spread_model(mode, precision, group), steps=2).latents for _ in range(2))
    assert torch.equal(first.video, second.video)
    assert torch.equal(first.audio, second.audio)
    everyone = [torch.empty_like(first.video) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, first.video, group=group)
    assert all(torch.equal(other, first.video) for other in everyone)


class OthersHeads(WeightPartition):
    """The next rank's heads, put out as this one's."""

    def qkv_rows(self, rank):
        return super().qkv_rows((rank + 1) % self.heads.ranks)


class OthersValues(WeightPartition):
    """Gates of this rank, values of the next."""

    def fc1_rows(self, rank):
        return super().fc1_rows(rank)[0], super().fc1_rows((rank + 1) % self.ffn.ranks)[1]


class HeadsInterleaved(WeightPartition):
    """As if the rows of q, k and v lay head by head."""

    def qkv_rows(self, rank):
        heads = self.out_columns(rank)
        return (slice(3 * heads.start, 3 * heads.stop),)


def check_mistakes(group, precision, expected):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    right = partition_weights(CONFIG, precision, world_size)
    assert {len(set(part.sizes)) for part in (right.heads, right.ffn)} == {1}, "another's part must fit"
    for mistaken in (OthersHeads, OthersValues, HeadsInterleaved):
        partition = mistaken(right.heads, right.head_dim, right.ffn)
        model = in_memory(whole_model(CONFIG, precision), partial(cut_weights, partition=partition, rank=rank))
        spread(model, Mode.TENSOR, group)
        assert worst(one_velocity(model), expected) > 10 * BF16, mistaken
    model = spread_model(Mode.ULYSSES, precision, group)
    for block in model.blocks:
        block.attn.attend = swap_ranks(block.attn.attend, right.heads)
    assert worst(one_velocity(model), expected) > 10 * BF16, "heads in another rank's place"
    for mode in Mode:
        model = spread_model(mode, precision, group)
        if rank == world_size - 1:
            for block in model.blocks:
                block.adaln_proj.linear.bias.data = torch.zeros_like(block.adaln_proj.linear.bias)
        assert worst(one_velocity(model), expected) > 10 * BF16, mode


def swap_ranks(attend, heads):
    """The heads of the first rank come last."""
    return lambda qkv: attend(qkv).roll(heads.sizes[0], dims=1)


class TestAgreement:
    def test_ranks_that_are_alike_go_on(self, ranks):
        ranks(check_agreement)

    @pytest.mark.parametrize("name", ["config", "checkpoint", "mode", "precision", "attention", "torch", "nccl"])
    def test_a_rank_that_differs_is_named_on_every_rank(self, ranks, name):
        ranks(check_disagreement, name, world_size=3)

    @pytest.mark.parametrize("name", ["config", "checkpoint", "mode", "precision"])
    def test_ranks_that_would_load_unlike_models_stop_before_they_do(self, ranks, name):
        ranks(check_unlike_models, name, world_size=2)

    @pytest.mark.parametrize("precision", [Precision.NVFP4, Precision.FP8])
    def test_products_are_native_only_where_every_ranks_are(self, ranks, precision):
        ranks(check_products, precision, world_size=2)


def check_agreement(group):
    confirm_agreement(RankFacts.tell(config="c", checkpoint="d", mode="m", precision="p", attention="a"), group)


def check_disagreement(group, name):
    facts = RankFacts.tell(config="c", checkpoint="d", mode="m", precision="p", attention="a")
    if dist.get_rank(group) == 1:
        facts = replace(facts, **{name: "another"})
    with pytest.raises(RanksDisagree, match=rf"disagree on {name} \(rank 0: .*; rank 1: another; rank 2: "):
        confirm_agreement(facts, group)


def check_unlike_models(group, name):
    """Each rank of one kind, the second with one fact of its own."""

    class Unloadable(Untrained):
        def load(self, *_arguments, **_named):
            raise AssertionError("loaded all the same")

    is_other = dist.get_rank(group) == 1
    config = CONFIG.model_copy(update={"num_layers": 3}) if is_other and name == "config" else CONFIG
    digest = "other" if is_other and name == "checkpoint" else "same"
    mode = Mode.TENSOR if is_other and name == "mode" else Mode.ULYSSES
    precision = Precision.FP32 if is_other and name == "precision" else Precision.BF16
    with pytest.raises(RanksDisagree, match=f"disagree on {name} "):
        load_spread(Unloadable(config), digest, mode, CPU, group, precision=precision)


def check_products(group, precision):
    """On these two ranks, of which first one and then both can multiply natively."""
    kind = NVFP4Linear if precision is Precision.NVFP4 else FP8Linear
    model = Untrained(CONFIG).load(CPU, precision)
    layers = [module for module in model.modules() if isinstance(module, kind)]
    assert len(layers) == 4 * CONFIG.num_layers
    for able, name in (({0}, precision), ({0, 1}, f"{precision}-w4a4" if kind is NVFP4Linear else precision)):
        with pytest.MonkeyPatch.context() as patch:
            for probe in ("probe_fp4", "probe_fp8"):
                patch.setattr(products, probe, lambda _, able=able: dist.get_rank(group) in able)
            assert products.settle_precision(precision, model, CPU, group) == name
        assert {layer.is_native for layer in layers} == {able == {0, 1}}


def worst(found, expected) -> float:
    """Of video and audio."""
    return max(relative_error(found.video, expected.video), relative_error(found.audio, expected.audio))


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_rank_draws_the_noise_of_the_request_alone(ranks, world_size):
    ranks(check_noise, draw(), world_size=world_size)


def draw() -> Latents:
    return draw_noise(LAYOUT.geometry, CONFIG.in_channels, CONFIG.audio_in_channels, 7).latents


def check_noise(_group, expected):
    found = draw()
    assert torch.equal(found.video, expected.video)
    assert torch.equal(found.audio, expected.audio)
