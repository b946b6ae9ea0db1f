"""Files of the denoiser as others write them: from the formats' description, without the code that is tested."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from h3.untrained import TINY

SMALL = TINY.model_copy(
    update={
        "hidden_size": 32,
        "num_layers": 2,
        "num_attention_heads": 3,
        "attention_head_dim": 16,
        "ffn_dim": 48,
        "in_channels": 2,
        "audio_in_channels": 4,
        "text_dim": 8,
        "freq_dim": 8,
        "time_embed_hidden_dim": 12,
        "time_embed_dim": 16,
        "rope_freq_dim": 2,
    }
)
SMALL_PRUNED = SMALL.model_copy(
    update={"curve_points": 9, "time_embed_dim": 4, "freq_dim": 0, "time_embed_hidden_dim": 0}
)
PREFIX = "model.diffusion_model."
QKV = "blocks.0.attn.qkv_proj"
LINEARS = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")
_HALF_RANGE = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def cut_heads(weight, config):
    """One piece of rows for each of q, k, v and each head, by (0 to 2, head); the model has all of q first."""
    heads, dim = config.num_attention_heads, config.attention_head_dim
    return {
        (part, head): weight[(part * heads + head) * dim : (part * heads + head + 1) * dim]
        for part in range(3)
        for head in range(heads)
    }


def interleave(weight, config):
    """All of q, all of k, all of v to head by head."""
    pieces = cut_heads(weight, config)
    return torch.cat([pieces[part, head] for head in range(config.num_attention_heads) for part in range(3)])


def official_tensors(model):
    return {
        name: interleave(tensor, model.config) if name.endswith("qkv_proj.weight") else tensor.clone()
        for name, tensor in model.state_dict().items()
    }


def official_config(config):
    """config.json with the official implementation's names alone."""
    return {
        "hidden_size": config.hidden_size,
        "num_layers": config.num_layers,
        "token_refiner_num_layers": config.num_refiner_layers,
        "num_attention_heads": config.num_attention_heads,
        "attention_head_dim": config.attention_head_dim,
        "ffn_hidden_size": config.ffn_dim,
        "latents_dim": config.in_channels,
        "audio_latents_dim": config.audio_in_channels,
        "patch_size": [1, 2, 2],
        "text_dim": config.text_dim,
        "timestep_input_dim": config.freq_dim,
        "time_embed_hidden_size": config.time_embed_hidden_dim,
        "time_embed_dim": config.time_embed_dim,
        "rope_inv_freq_len": config.rope_freq_dim,
        "rope_theta": 10000,
    }


def write_official(folder: Path, tensors, config, shards=3):
    """Tensors dealt out to the shards in turn, as no order is promised."""
    folder.mkdir(parents=True)
    names = sorted(tensors)
    index = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        mine = {name: tensors[name].contiguous() for name in names[number::shards]}
        save_file(mine, folder / file, {"format": "pt"})
        index |= dict.fromkeys(mine, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(official_config(config)))
    return folder


def comfy_tensors(model, curve_dtype=torch.float16):
    """Names and rows are the model's own; AdaLN of a pruned model has fewer bits."""
    pruned = model.config.is_pruned
    return {
        name: tensor.to(curve_dtype) if pruned and "adaln_proj" in name else tensor.clone()
        for name, tensor in model.state_dict().items()
    }


def write_comfy(path: Path, tensors, markers=None, prefix="", in_metadata=False):
    """One file. `markers` by layer stand in tensors, or in the file's metadata."""
    tensors = {f"{prefix}{name}": tensor.contiguous() for name, tensor in tensors.items()}
    metadata = {"format": "pt"}
    markers = {f"{prefix}{layer}": marker for layer, marker in (markers or {}).items()}
    if in_metadata:
        metadata["_quantization_metadata"] = json.dumps({"layers": markers})
    else:
        tensors |= {f"{layer}.comfy_quant": encode(marker) for layer, marker in markers.items()}
    save_file(tensors, path, metadata)
    return path


def encode(marker):
    return torch.tensor(list(json.dumps(marker).encode()), dtype=torch.uint8)


def pack_nvfp4(weight):
    """What a file has instead of the weight, by the ending of the name, and the fp32 weight that this makes."""
    rows, columns = weight.shape
    blocks = weight.float().view(rows, columns // 16, 16)
    scale = blocks.abs().max() / (448 * 6)
    scales = (blocks.abs().amax(-1) / 6 / scale).to(torch.float8_e4m3fn)
    step = (scales.float() * scale)[..., None]
    index = (blocks / step).abs()[..., None].sub(_HALF_RANGE).abs().argmin(-1)
    codes = (index + 8 * (blocks < 0)).view(rows, columns).to(torch.uint8)
    parts = {"weight": codes[:, 0::2] << 4 | codes[:, 1::2], "weight_scale": swizzle(scales), "weight_scale_2": scale}
    return parts, (_HALF_RANGE[index] * blocks.sign() * step).view(rows, columns)


def swizzle(scales):
    """Each scale to its place in tiles of 128 rows by 4 columns."""
    rows, columns = scales.shape
    height, width = -(-rows // 128) * 128, -(-columns // 4) * 4
    row, column = np.mgrid[:rows, :columns]
    tile = row // 128 * (width // 4) + column // 4
    place = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
    swizzled = np.zeros(height * width, dtype=np.uint8)
    swizzled[place] = scales.view(torch.uint8).numpy()
    return torch.from_numpy(swizzled).view(height, width).view(torch.float8_e4m3fn)


def pack_fp8(weight):
    scale = weight.float().abs().max() / 448
    stored = (weight.float() / scale).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale": scale}, stored.float() * scale


def pack_int8(weight):
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    stored = (weight.float() / scale).round().to(torch.int8)
    return {"weight": stored, "weight_scale": scale}, stored.float() * scale


PACKERS = {"nvfp4": pack_nvfp4, "float8_e4m3fn": pack_fp8, "int8_tensorwise": pack_int8}


def quantise_layers(tensors, formats):
    """Tensors with the layers of `formats` in those, their markers, and the fp32 weights that they stand for."""
    tensors, markers, stands_for = dict(tensors), {}, {}
    for layer, name in formats.items():
        parts, stands_for[f"{layer}.weight"] = PACKERS[name](tensors.pop(f"{layer}.weight"))
        tensors |= {f"{layer}.{leaf}": part for leaf, part in parts.items()}
        markers[layer] = {"format": name}
    return tensors, markers, stands_for


def mixed_formats(config):
    """One block in each format, the fourth plain, and so on."""
    kinds = ["nvfp4", None, "float8_e4m3fn", "int8_tensorwise"]
    formats = {f"blocks.{i}.{linear}": kinds[i % 4] for i in range(config.num_layers) for linear in LINEARS}
    return {layer: kind for layer, kind in formats.items() if kind}
