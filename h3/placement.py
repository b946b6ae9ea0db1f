"""Plans which parts of the model stay on a rank's GPU, and predicts what a render needs. Arithmetic; moves nothing.

A render has four phases, and each needs some of the parts. A part is resident, or lies in host memory outside its
phases, or (the text encoder) computes there. Of the placements, from the fastest on, the first is taken that has room
for the largest shape; if none has, the one with room for the most tokens. Only rank 0 holds what encodes and sounds.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from h3.config import BLOCK_MODULATIONS, MODALITIES, DenoiserConfig
from h3.errors import PlacementError

GIB = 1 << 30
DTYPE_BYTES = 2  # bf16
CONTEXT_BYTES = 3 * GIB // 2  # CUDA's context, kernels' workspaces, NCCL
FRAGMENTED = 0.03  # of a GPU's memory, in pieces that nothing fits into
ENCODE_BYTES = 2 * GIB  # activations over 4,000 text and vision tokens
DECODE_BYTES = 2 * GIB  # of one clip's tiles, and of the whole sound
MLP_UNIT = 128  # values that tensor mode keeps together in an NVFP4 model, and no more in any other
KEPT_TIMESTEPS = 256  # of AdaLN, at most
PIXELS_PER_TOKEN = 32 * 32 * 17 / 5  # of all frames: a clip of 17 frames is 5 latent frames
# Beside the rows of a video of any length: a long prompt; two keyframes, each as latents and as a vision block; what
# the first clip has more than the others; and the sound of 15 s.
OTHER_TOKENS = 2_048 + 4 * 1_010 + 600 + 1_206
LARGEST_TOKENS = 107_856 + OTHER_TOKENS  # 1344x768, 362 frames


class Phase(StrEnum):
    """What a rank is at."""

    ENCODE = "encode"  # prompt and keyframes
    PREPARE = "prepare"  # what is computed once for all steps
    DENOISE = "denoise"
    DECODE = "decode"


class Part(StrEnum):
    """What is placed as one."""

    TEXT_ENCODER = "text encoder"
    VIDEO_ENCODER = "video encoder"
    PREPARATION = "refiner and AdaLN"  # of the denoiser, not needed in its steps
    BLOCKS = "blocks"  # of the denoiser, and all that its steps need
    VIDEO_DECODER = "video decoder"
    AUDIO_DECODER = "audio decoder"


NEEDED = {
    Part.TEXT_ENCODER: {Phase.ENCODE},
    Part.VIDEO_ENCODER: {Phase.ENCODE},
    Part.PREPARATION: {Phase.PREPARE},
    Part.BLOCKS: {Phase.DENOISE},
    Part.VIDEO_DECODER: {Phase.DENOISE, Phase.DECODE},  # previews are decoded between steps
    Part.AUDIO_DECODER: {Phase.DECODE},
}


FIRST_RANK_ONLY = {Part.TEXT_ENCODER, Part.VIDEO_ENCODER, Part.AUDIO_DECODER}


class Stay(StrEnum):
    """Where a part is."""

    RESIDENT = "resident"
    PHASE = "only in its phase"  # else in host memory
    HOST = "on the CPU"  # computes there


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to place on."""

    gpu_bytes: int | None  # of the smallest GPU; None: ranks run on the CPU
    host_bytes: int  # free for all ranks together
    world_size: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What is to be placed."""

    part_bytes: Mapping[Part, int]
    token_bytes: int  # of activations, for each token that a rank has
    modulation_bytes: int  # of AdaLN for a whole schedule
    scratch_bytes: int  # where a packed weight is unpacked; 0 if none is

    def working_bytes(self, phase: Phase, tokens: int) -> int:
        """Beside the weights, with so many tokens on the rank."""
        match phase:
            case Phase.ENCODE:
                return ENCODE_BYTES
            case Phase.PREPARE:
                return self.modulation_bytes
            case Phase.DENOISE:  # previews are decoded between two steps
                return self.modulation_bytes + self.scratch_bytes + max(tokens * self.token_bytes, DECODE_BYTES)
            case Phase.DECODE:
                return self.scratch_bytes + DECODE_BYTES


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each part stays, and what that allows."""

    stays: Mapping[Part, Stay]
    most_tokens: int | None  # of a render, on all ranks together; None: not limited
    part_bytes: Mapping[Part, int]
    gpu_bytes: int | None
    peak_bytes: Mapping[Phase, int]  # of one GPU, at `most_tokens` or the largest shape, whichever is less

    @property
    def most_pixels(self) -> int | None:
        """Of all frames together."""
        return None if self.most_tokens is None else int(max(0, self.most_tokens - OTHER_TOKENS) * PIXELS_PER_TOKEN)

    def lines(self) -> Iterator[str]:
        """For people."""
        for part, stay in self.stays.items():
            yield f"{part}: {_gib(self.part_bytes[part])}, {stay}"
        if self.gpu_bytes is None:
            yield "ranks run on the CPU: no limit is predicted"
            return
        for phase, peak in self.peak_bytes.items():
            yield f"{phase}: at most {_gib(peak)} of {_gib(self.gpu_bytes)} on a GPU"
        yield f"renders of up to {self.most_tokens} tokens"


def predict_token_bytes(config: DenoiserConfig, world_size: int, *, keeps_rows: bool) -> int:
    """Of one token on its rank, where a block is widest: the stream, its norm, and attention or the MLP.

    Layers that do not keep to the rank's rows see those of all ranks, with a part of the heads and of the MLP. Every
    rank embeds the whole sequence, too: in fp32, then rounded; where ranks are many, that is the most.
    By count, as the model is written; measured at the true size by tools/model_gates.py and tools/distributed_gates.py.
    """
    projection = 7 * config.attention_dim  # q, k and v, and one of them normalised and rotated
    exchange = 12 * config.attention_dim  # q, k, v, cut by heads, sent and received
    mlp = 2 * config.ffn_dim  # gate and value
    if world_size == 1:
        widest = max(projection, mlp)
    elif keeps_rows:
        widest = max(exchange, mlp)
    else:
        all_rows = world_size * config.hidden_size  # the layers' input, their summand, and those that are received
        share = -(-config.ffn_dim // (MLP_UNIT * world_size)) * MLP_UNIT  # the largest, of those that are not equal
        widest = all_rows + max(projection, 2 * world_size * share + all_rows)
    embedding = 3 * world_size * config.hidden_size
    return DTYPE_BYTES * max(3 * config.hidden_size + widest, embedding)


def predict_modulation_bytes(config: DenoiserConfig) -> int:
    """Of AdaLN's output for as many timesteps as are kept."""
    width = config.num_layers * MODALITIES * BLOCK_MODULATIONS + 2
    return KEPT_TIMESTEPS * width * config.hidden_size * DTYPE_BYTES


def _candidates() -> Iterator[dict[Part, Stay]]:
    """From the fastest on: each keeps less on the GPU than the one before, at the price of copies or of speed."""
    stays = dict.fromkeys(Part, Stay.RESIDENT)
    yield dict(stays)
    for moved in ((Part.PREPARATION,), (Part.TEXT_ENCODER, Part.VIDEO_ENCODER), tuple(Part)):
        stays |= dict.fromkeys(moved, Stay.PHASE)
        yield dict(stays)
    yield stays | {Part.TEXT_ENCODER: Stay.HOST}


def plan(needs: Needs, machine: Machine, largest_tokens: int) -> Placement:
    """The fastest placement with room for a render of so many tokens; else the one with room for the most.

    Raises PlacementError with the sizes if not even the weights have a place.
    """
    if machine.gpu_bytes is None:
        stays = dict.fromkeys(Part, Stay.RESIDENT)
        _refuse_too_little_host_memory(needs, machine)
        return Placement(stays, None, needs.part_bytes, None, {})
    best: Placement | None = None
    for stays in _candidates():
        if _host_bytes(stays, needs, machine.world_size) > machine.host_bytes:
            continue
        most = _most_tokens(stays, needs, machine)
        if most is None:
            continue
        peaks = _peaks(stays, needs, min(most, largest_tokens) // machine.world_size)
        placement = Placement(stays, most, needs.part_bytes, machine.gpu_bytes, peaks)
        if most >= largest_tokens:
            return placement
        if best is None or most > (best.most_tokens or 0):
            best = placement
    if best is None:
        raise PlacementError(_explain(needs, machine))
    return best


def _most_tokens(stays: Mapping[Part, Stay], needs: Needs, machine: Machine) -> int | None:
    """Of a render on all ranks; None if the weights alone have no room in some phase."""
    assert machine.gpu_bytes is not None
    room = int(machine.gpu_bytes * (1 - FRAGMENTED)) - CONTEXT_BYTES
    left = {phase: room - peak for phase, peak in _peaks(stays, needs, 0).items()}
    if min(left.values()) < 0:
        return None
    for_tokens = left[Phase.DENOISE] + DECODE_BYTES  # which stood there in their place
    return for_tokens // needs.token_bytes * machine.world_size


def _peaks(stays: Mapping[Part, Stay], needs: Needs, tokens: int) -> dict[Phase, int]:
    """Bytes on a GPU that holds all parts, in each phase, with so many tokens on the rank."""
    return {
        phase: needs.working_bytes(phase, tokens)
        + sum(
            needs.part_bytes[part]
            for part, stay in stays.items()
            if stay is Stay.RESIDENT or (stay is Stay.PHASE and phase in NEEDED[part])
        )
        for phase in Phase
    }


def _host_bytes(stays: Mapping[Part, Stay], needs: Needs, world_size: int) -> int:
    """Of all ranks together: each keeps its own copy of what it holds."""
    return sum(
        needs.part_bytes[part] * (1 if part in FIRST_RANK_ONLY else world_size)
        for part, stay in stays.items()
        if stay is not Stay.RESIDENT
    )


def _refuse_too_little_host_memory(needs: Needs, machine: Machine) -> None:
    needed = _host_bytes(dict.fromkeys(Part, Stay.HOST), needs, machine.world_size)
    if needed > machine.host_bytes:
        raise PlacementError(
            f"{machine.world_size} ranks on the CPU have {_gib(needed)} of weights, and this machine "
            f"{_gib(machine.host_bytes)} of free memory: take fewer ranks, or a checkpoint with smaller weights"
        )


def _explain(needs: Needs, machine: Machine) -> str:
    sizes = ", ".join(f"{part} {_gib(size)}" for part, size in needs.part_bytes.items())
    assert machine.gpu_bytes is not None
    return (
        f"no placement fits a GPU of {_gib(machine.gpu_bytes)} and {_gib(machine.host_bytes)} of free host memory: "
        f"{sizes}. Take a checkpoint with smaller weights (h3render checkpoint convert --to comfy-nvfp4)"
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / (1 << 20):.1f} MiB"


def find_gpu_bytes() -> int | None:
    """Memory of the smallest GPU that is visible; None without one. Asks the driver's own tool: no CUDA context."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip():
        return None
    if visible:
        query.append(f"--id={visible}")
    try:
        told = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout  # noqa: S603
        return min(int(line) for line in told.splitlines()) << 20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def find_host_bytes() -> int:
    """Memory that the kernel thinks can be had, no more than this process's own cgroup may use."""
    told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(told["MemAvailable"].split()[0]) << 10
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        return free if limit == "max" else min(free, int(limit) - used)
    except (OSError, ValueError):
        return free
