"""Clips of a video decoded by all ranks, against one device: counts that do not divide. Three ranks with `--full`."""

import pytest
import torch
import torch.distributed as dist

from h3.collectives import gather_to_first
from h3.parallel.decode import decode_rounds
from h3.vae import load_video_decoder
from tests.h3.ranks import running_ranks

CPU = torch.device("cpu")


def pytest_generate_tests(metafunc):
    if "world_size" in metafunc.fixturenames:
        metafunc.parametrize("world_size", [2, 3] if metafunc.config.getoption("full") else [2])


@pytest.fixture(scope="module")
def ranks(full):
    """Calls `check(group, *arguments)` on the first ranks of a fleet, which takes a while to start."""
    with running_ranks(3 if full else 2) as call:
        yield call


@pytest.mark.slow
def test_ranks_decode_bit_for_bit_what_one_does(ranks, tiny, world_size):
    """Fewer clips than ranks, and more that do or do not divide; from the start, from a later clip, from the end."""
    ranks(check_rounds, tiny.video_vae, [(1, 0), (4, 0), (4, 1), (4, 3), (3, 3)], world_size=world_size)


@pytest.mark.slow
def test_ranks_that_stop_decoding_leave_no_collective_behind(ranks, tiny, world_size):
    ranks(check_early_end, tiny.video_vae, world_size=world_size)


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
