"""Token sharding on real ranks, against one device. Sizes are ragged: 9 heads, and token counts that do not divide."""

import pytest
import torch
import torch.distributed as dist

from h3.checkpoint import load_denoiser
from h3.collectives import gather_heads, gather_rows, scatter_heads
from h3.denoise import Denoising
from h3.model import Velocity
from h3.model_folder import ModelFolder
from h3.parallel.ulysses import shard_tokens
from h3.partition import split_evenly
from h3.sampler import draw_noise, make_schedule
from h3.sequence import Geometry, Layout
from tests.h3.ranks import on_ranks

# A matrix product of bf16 rows may round differently when it has fewer rows; nothing else differs between ranks.
TOLERANCE = 1e-2


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_trade_tokens_for_heads_exactly_and_render_what_one_device_renders(world_size, tiny):
    on_ranks(world_size, [(check_transport, ()), (check_parity, (tiny,))])


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
