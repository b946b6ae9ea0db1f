"""Clips of a video decoded on all ranks at once, for a clip's window depends on no other.

In rounds of as many clips as there are ranks, each rank decodes one window, and all windows go to rank 0, which alone
cross-fades and hands out finished clips in playing order. Bit for bit what one rank makes. Rank 0 holds a round's
windows at a time: 22 frames each, 55 MB at 864x480 in bf16. A GPU has begun the next round when a clip is handed out,
and decodes it while that clip is encoded.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor

from h3.collectives import gather_to_first
from h3.vae import ClipJoiner, VideoDecoder, to_pixels


def decode_rounds(
    decoder: VideoDecoder,
    latents: Tensor,
    first: int,
    group: dist.ProcessGroup | None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[list[Tensor]]:
    """Decode from clip `first` on, in rounds; between two, the ranks end if `stop` says so (the same on each).

    latents  [C, F, Hl, Wl], the same on every rank
    yields   on rank 0 what `VideoDecoder.clips` does, the round's clips together: none, if all that was decoded is
             the clip before `first`, for its tail; an empty list on the other ranks

    Collective over `group`; every rank takes as many rounds. None is one rank alone.
    """
    rank, world_size = (dist.get_rank(group), dist.get_world_size(group)) if group is not None else (0, 1)
    joiner = ClipJoiner(latents, first)
    rounds = range(joiner.windows.start, joiner.windows.stop, world_size)

    @torch.inference_mode()  # a thread's own
    def decode(start: int) -> Tensor:
        # A rank that the last round leaves without a clip takes part in the gather all the same.
        is_wanted = start + rank < joiner.windows.stop
        return decoder.window(latents, start + rank) if is_wanted else decoder.empty_window(latents)

    with ThreadPoolExecutor(1, thread_name_prefix="decode") as aside:
        begun: Future[Tensor] | None = None
        for start in rounds:
            if start > rounds.start and stop():
                return
            window = decode(start) if begun is None else begun.result()
            windows = [window] if group is None else gather_to_first(window, group)[: joiner.windows.stop - start]
            clips = [to_pixels(clip) for window in windows for clip in joiner.add(window)]
            # In a thread, for a GPU takes a thousand kernels at a time and lets whoever launches more wait. A CPU would
            # only share its cores.
            has_next = window.is_cuda and start + world_size in rounds
            begun = aside.submit(decode, start + world_size) if has_next else None
            yield clips
