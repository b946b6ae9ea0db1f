"""What ranks do together, against one device: token sharding, and clips decoded by all.

Sizes are ragged: 9 heads, and counts of tokens and clips that do not divide.
"""

import pytest
import torch
import torch.distributed as dist

from h3.checkpoint import load_denoiser
from h3.collectives import gather_heads, gather_rows, gather_to_first, scatter_heads
from h3.denoise import Denoising
from h3.model import Velocity
from h3.model_folder import ModelFolder
from h3.parallel.decode import decode_rounds
from h3.parallel.ulysses import shard_tokens
from h3.partition import split_evenly
from h3.sampler import draw_noise, make_schedule
from h3.sequence import Geometry, Layout
from h3.vae import load_video_decoder
from tests.h3.ranks import running_ranks

CPU = torch.device("cpu")
# A matrix product of bf16 rows may round differently when it has fewer rows; nothing else differs between ranks.
TOLERANCE = 1e-2


@pytest.fixture(scope="module", params=[2, 3], ids=["two", "three"])
def ranks(request):
    """Calls `check(group, *arguments)` on every rank of one fleet, which takes a while to start."""
    with running_ranks(request.param) as call:
        yield call


def test_ranks_trade_tokens_for_heads_exactly(ranks):
    ranks(check_transport)


def test_ranks_render_what_one_device_renders(ranks, tiny):
    ranks(check_parity, tiny)


def test_ranks_decode_bit_for_bit_what_one_does(ranks, tiny):
    """Fewer clips than ranks, and more that do or do not divide; from the start, from a later clip, from the end."""
    ranks(check_rounds, tiny.video_vae, [(1, 0), (4, 0), (4, 1), (4, 3), (3, 3)])


def test_ranks_that_stop_decoding_leave_no_collective_behind(ranks, tiny):
    ranks(check_early_end, tiny.video_vae)


def check_transport(group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    tokens, heads = split_evenly(17, world_size, what="tokens"), split_evenly(9, world_size, what="heads")
    whole = torch.randn(17, 3, 9, 8, generator=torch.Generator().manual_seed(3)).bfloat16()
    part = scatter_heads(whole[tokens.owned(rank)], tokens, heads, group)
    assert torch.equal(part, whole[:, :, heads.owned(rank)])
    back = gather_heads(part[:, 0].contiguous(), tokens, heads, group)
    assert torch.equal(back, whole[tokens.owned(rank), 0])
    rows = [0] * (world_size - 1) + [5]  # all but the last rank have nothing to give
    assert torch.equal(gather_rows(whole[: rows[rank], 0, 0], rows, group), whole[:5, 0, 0])


def check_parity(group: dist.ProcessGroup, folder: ModelFolder) -> None:
    one, final = (denoise(folder, group if sharded else None) for sharded in (False, True))
    assert relative_error(final.video, one.video) < TOLERANCE
    assert relative_error(final.audio, one.audio) < TOLERANCE
    everyone = [torch.empty_like(final.video) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, final.video, group=group)
    assert all(torch.equal(other, final.video) for other in everyone)  # every rank steps the same latents


def denoise(folder: ModelFolder, group: dist.ProcessGroup | None) -> Velocity:
    denoiser = load_denoiser(folder.transformer, torch.device("cpu"))
    if group is not None:
        shard_tokens(denoiser, group)
    layout = Layout(Geometry(96, 64, 22), text_tokens=11)
    states = torch.randn(11, denoiser.config.text_dim, generator=torch.Generator().manual_seed(1)).bfloat16()
    latents = draw_noise(layout.geometry, denoiser.config.in_channels, denoiser.config.audio_in_channels, 7).latents
    with torch.inference_mode():
        denoising = Denoising.begin(denoiser, states, layout, make_schedule(3))
        for step in range(3):
            _, latents = denoising.step(step, latents)
    return latents


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def draw_latents(clips):
    return torch.randn(24, 5 * clips + 2, 4, 6, generator=torch.Generator().manual_seed(clips))


@pytest.mark.parametrize("first", [0, 2])
@torch.inference_mode()
def test_one_rank_alone_decodes_as_the_serial_form(tiny, first):
    video, latents = load_video_decoder(tiny.video_vae, CPU), draw_latents(3)
    rounds = list(decode_rounds(video, latents, first, None))
    clips = [clip for clips in rounds for clip in clips]
    for clip, same in zip(clips, video.clips(latents, first), strict=True):
        assert torch.equal(clip, same)


@torch.inference_mode()
def check_rounds(group, folder, cases):
    video = load_video_decoder(folder, CPU)
    for clips, first in cases:
        latents = draw_latents(clips)
        rounds = list(decode_rounds(video, latents, first, group))
        windows = clips - max(0, first - 1) if first < clips else 0
        assert len(rounds) == -(-windows // dist.get_world_size(group))
        found = [clip for clips in rounds for clip in clips]
        expected = list(video.clips(latents, first)) if dist.get_rank(group) == 0 else []
        assert len(found) == len(expected)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@torch.inference_mode()
def check_early_end(group, folder):
    """Ranks that stop after the same round leave nothing behind that the next collective would meet."""
    rounds = decode_rounds(load_video_decoder(folder, CPU), draw_latents(4), 0, group)
    next(rounds)
    rounds.close()
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    gathered = gather_to_first(torch.full((2,), rank, dtype=torch.bfloat16), group)
    assert [part.tolist() for part in gathered] == ([[other] * 2 for other in range(world_size)] if rank == 0 else [])
