"""How each family of checkpoint files stores the denoiser: tensor names and row orders, both ways.

Three families hold one model. The official shards interleave q, k and v head by head ([H, 3, D] rows). ComfyUI's single
files have the official names with q, k and v apart ([3, H, D] rows), as the model wants them. Diffusers has names of
its own, q, k and v in tensors of their own, and the halves of fc1 swapped. A file read in the wrong order loads without
any error and renders noise, so the order is a property of the family and never of a number format.
Source: the published checkpoints and diffusers' conversion of them, restated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from h3.config import DenoiserConfig
from h3.tensor_file import TensorForm
from h3.weights import only


class Family(StrEnum):
    """Who writes such files."""

    OFFICIAL = "official"
    DIFFUSERS = "diffusers"
    COMFY = "comfy"


class QkvOrder(StrEnum):
    """How the rows of q, k and v lie in a file."""

    INTERLEAVED = "interleaved"  # head by head: q, k, v of the first, q, k, v of the second
    CONTIGUOUS = "contiguous"  # all of q, all of k, all of v
    SEPARATE = "separate"  # a tensor each


QKV_ORDER = {
    Family.OFFICIAL: QkvOrder.INTERLEAVED,
    Family.DIFFUSERS: QkvOrder.SEPARATE,
    Family.COMFY: QkvOrder.CONTIGUOUS,
}
# The model's names to diffusers'; what is not here is equal.
_DIFFUSERS_NAMES = (
    ("video_patch_proj.", "proj_in."),
    ("audio_patch_proj.", "audio_proj_in."),
    ("condition_proj.", "context_embedder."),
    ("time_embedder.proj_in.", "time_embedder.linear_1."),
    ("time_embedder.proj_out.", "time_embedder.linear_2."),
    ("token_refiner.blocks.", "token_refiner.refiner_blocks."),
    ("final_layer.norm.", "norm_out.norm."),
    ("final_layer.adaln_proj.linear.", "norm_out.linear."),
    ("final_layer.video_out.", "proj_out."),
    ("final_layer.audio_out.", "audio_proj_out."),
    (".q_norm.", ".norm_q."),
    (".k_norm.", ".norm_k."),
    (".out_proj.", ".to_out.0."),
    (".mlp.fc1.", ".ff.net.0.proj."),
    (".mlp.fc2.", ".ff.net.2."),
)


@dataclass(frozen=True, slots=True)
class Storage:
    """How a family stores one of the model's tensors."""

    parts: dict[str, tuple[int, ...]]  # stored name to shape
    load: Callable[[list[Tensor]], Tensor] = only
    save: Callable[[Tensor], list[Tensor]] = lambda tensor: [tensor]


def storage(order: QkvOrder, name: str, shape: tuple[int, ...], config: DenoiserConfig) -> Storage | None:
    """How files with that order store the model's tensor of this name and shape; None if they leave it out."""
    if order is QkvOrder.SEPARATE:
        return _diffusers_storage(name, shape)
    if order is QkvOrder.INTERLEAVED and name.endswith("qkv_proj.weight"):
        heads = config.num_attention_heads
        return Storage(
            {name: shape},
            load=lambda parts: swap_row_axes(only(parts), heads, 3),
            save=lambda tensor: [swap_row_axes(tensor, 3, heads)],
        )
    return Storage({name: shape})


def _diffusers_storage(name: str, shape: tuple[int, ...]) -> Storage | None:
    if name == "rope.inv_freq":
        return None  # computed there
    theirs = name
    for ours, other in _DIFFUSERS_NAMES:
        theirs = theirs.replace(ours, other)
    if theirs.startswith("blocks."):
        theirs = f"transformer_{theirs}"
    if name.endswith("qkv_proj.weight"):
        third = (shape[0] // 3, *shape[1:])
        names = [theirs.replace("qkv_proj", projection) for projection in ("to_q", "to_k", "to_v")]
        return Storage(dict.fromkeys(names, third), load=torch.cat, save=lambda tensor: list(tensor.chunk(3)))
    if name.endswith("mlp.fc1.weight"):
        return Storage({theirs: shape}, lambda parts: swap_halves(only(parts)), lambda tensor: [swap_halves(tensor)])
    return Storage({theirs: shape})


def swap_row_axes(weight: Tensor, first: int, second: int) -> Tensor:
    """Rows [first, second, D] to [second, first, D]."""
    return weight.unflatten(0, (first, second, -1)).transpose(0, 1).flatten(0, 2).contiguous()


def swap_halves(weight: Tensor) -> Tensor:
    """[gate; value] rows to [value; gate], and back."""
    return torch.cat(weight.chunk(2)[::-1])


def read_config(forms: dict[str, TensorForm]) -> DenoiserConfig:
    """The sizes of a model from its tensors' shapes, for a file that comes without config.json.

    Raises KeyError or ValueError if a tensor that tells one is missing or of another rank.
    """
    hidden, patch_dim = forms["video_patch_proj.weight"].shape
    head_dim = forms["blocks.0.attn.q_norm.weight"].shape[0]
    table = forms.get("adaln_t_table")
    return DenoiserConfig(
        hidden_size=hidden,
        num_layers=_count("blocks", forms),
        num_refiner_layers=_count("token_refiner.blocks", forms),
        num_attention_heads=forms["blocks.0.attn.qkv_proj.weight"].shape[0] // (3 * head_dim),
        attention_head_dim=head_dim,
        ffn_dim=forms["blocks.0.mlp.fc1.weight"].shape[0] // 2,
        in_channels=patch_dim // 4,
        audio_in_channels=forms["audio_patch_proj.weight"].shape[1],
        text_dim=forms["condition_proj.weight"].shape[1],
        freq_dim=0 if table else forms["time_embedder.proj_in.weight"].shape[1],
        time_embed_hidden_dim=0 if table else forms["time_embedder.proj_in.weight"].shape[0],
        time_embed_dim=table.shape[1] if table else forms["time_embedder.proj_out.weight"].shape[0],
        curve_points=table.shape[0] if table else 0,
        rope_freq_dim=forms["rope.inv_freq"].shape[0],
    )


def _count(prefix: str, forms: dict[str, TensorForm]) -> int:
    """How many numbered modules there are below a prefix."""
    return len({name.removeprefix(f"{prefix}.").partition(".")[0] for name in forms if name.startswith(f"{prefix}.")})
