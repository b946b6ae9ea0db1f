"""Files of the text encoder as others write them: from the formats' description, without the code that is tested."""

import json

import numpy as np
import torch

from h3.tensor_file import TensorForm

BF16, FP32 = torch.bfloat16, torch.float32
LAYERS = 2  # that condition, of the three in the toy's files


def is_needed(name):
    return not name.startswith(("language_model.layers.2.", "language_model.norm."))


def to_comfy(name):
    return name.replace("language_model.", "model.")


class Quantised:
    """The toy's encoder as ComfyUI's file has it, and the plain weights that it stands for.

    AWQ: columns of a weight are scaled before it is rounded, and what it multiplies is scaled back. That is folded
    into the norm before q, k, v, gate and up; the input of o_proj and down_proj is scaled by `pre_quant_scale`.
    """

    def __init__(self, plain, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        self.file = {to_comfy(name): tensor for name, tensor in plain.items() if is_needed(name)}
        self.equal = {name: tensor.float() for name, tensor in plain.items() if is_needed(name)}
        for layer in range(LAYERS):
            prefix = f"language_model.layers.{layer}."
            self.fold(f"{prefix}input_layernorm", [f"{prefix}self_attn.{leaf}_proj" for leaf in "qkv"])
            self.fold(f"{prefix}post_attention_layernorm", [f"{prefix}mlp.{leaf}_proj" for leaf in ("gate", "up")])
            for name in (f"{prefix}self_attn.o_proj", f"{prefix}mlp.down_proj"):
                self.pack(name, pre_scale=(1 / self.draw(self.equal[f"{name}.weight"].shape[1])).bfloat16())
        self.shorten_embedding("language_model.embed_tokens")

    def draw(self, columns):
        return torch.rand(columns, generator=self.generator).mul(6).sub(3).exp2()

    def fold(self, norm, linears):
        scale = self.draw(self.equal[f"{norm}.weight"].shape[0])
        self.file[to_comfy(f"{norm}.weight")] = (self.equal[f"{norm}.weight"] / scale).bfloat16()
        self.equal[f"{norm}.weight"] = self.file[to_comfy(f"{norm}.weight")].float()
        for name in linears:
            self.equal[f"{name}.weight"] *= scale
            self.pack(name)

    def pack(self, name, pre_scale=None):
        weight, layer = self.equal[f"{name}.weight"], to_comfy(name)
        if pre_scale is not None:
            weight = weight / pre_scale.float()
            self.file[f"{layer}.pre_quant_scale"] = pre_scale
        codes, scales, scale, self.equal[f"{name}.weight"] = pack_nvfp4(weight)
        if pre_scale is not None:
            self.equal[f"{name}.weight"] = self.equal[f"{name}.weight"] * pre_scale.float()
        self.file[f"{layer}.weight"], self.file[f"{layer}.weight_scale"] = codes, scales
        self.file[f"{layer}.weight_scale_2"] = scale
        self.mark(layer, {"format": "nvfp4", "full_precision_matrix_mult": True})

    def shorten_embedding(self, name):
        rows, layer = self.equal[f"{name}.weight"], to_comfy(name)
        scale = rows.abs().amax(dim=1, keepdim=True) / 127
        self.file[f"{layer}.weight"] = (rows / scale).round().to(torch.int8)
        self.file[f"{layer}.weight_scale"] = scale
        self.equal[f"{name}.weight"] = self.file[f"{layer}.weight"] * scale
        self.mark(layer, {"format": "int8_tensorwise"})

    def mark(self, layer, marker):
        self.file[f"{layer}.comfy_quant"] = torch.tensor(list(json.dumps(marker).encode()), dtype=torch.uint8)


def pack_nvfp4(weight):
    """Codes, swizzled scales, the tensor's scale, and the weight that they make."""
    rows, columns = weight.shape
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    blocks = weight.view(rows, columns // 16, 16)
    scale = weight.abs().max() / (448 * 6)
    block_scale = (blocks.abs().amax(-1) / 6 / scale).to(torch.float8_e4m3fn)
    step = (block_scale.float() * scale)[..., None]
    index = (blocks / step).abs()[..., None].sub(values).abs().argmin(-1)
    equal = (values[index] * blocks.sign() * step).view(rows, columns)
    codes = (index + 8 * (blocks < 0)).view(rows, columns).to(torch.uint8)
    height, width = -(-rows // 128) * 128, -(-columns // 64) * 4
    swizzled = np.zeros(height * width, dtype=np.uint8)
    for row in range(rows):
        for column in range(columns // 16):
            tile = row // 128 * (width // 4) + column // 4
            place = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
            swizzled[place] = block_scale[row, column].view(torch.uint8)
    scales = torch.from_numpy(swizzled).view(height, width).view(torch.float8_e4m3fn)
    return codes[:, 0::2] << 4 | codes[:, 1::2], scales, scale, equal


HIDDEN, FFN, HEADS, KV, VOCABULARY, VISION = 5120, 25600, 8192, 1024, 151936, 1152


def language_linears():
    """Name to [rows, columns] of the 350 that are quantised."""
    shapes = {
        "self_attn.q_proj": (HEADS, HIDDEN),
        "self_attn.k_proj": (KV, HIDDEN),
        "self_attn.v_proj": (KV, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS),
        "mlp.gate_proj": (FFN, HIDDEN),
        "mlp.up_proj": (FFN, HIDDEN),
        "mlp.down_proj": (HIDDEN, FFN),
    }
    return {f"model.layers.{i}.{name}": shape for i in range(50) for name, shape in shapes.items()}


def published_markers():
    """The markers, as the metadata would have them."""
    nvfp4 = {"format": "nvfp4", "full_precision_matrix_mult": True}
    return json.dumps(
        {"layers": dict.fromkeys(language_linears(), nvfp4) | {"model.embed_tokens": {"format": "int8_tensorwise"}}}
    )


def published_inventory():
    """Every tensor but the markers."""
    forms = {
        "model.embed_tokens.weight": TensorForm(torch.int8, (VOCABULARY, HIDDEN)),
        "model.embed_tokens.weight_scale": TensorForm(FP32, (VOCABULARY, 1)),
    }
    for name, (rows, columns) in language_linears().items():
        forms[f"{name}.weight"] = TensorForm(torch.uint8, (rows, columns // 2))
        forms[f"{name}.weight_scale"] = TensorForm(torch.float8_e4m3fn, (rows, columns // 16))
        forms[f"{name}.weight_scale_2"] = TensorForm(FP32, ())
        if name.endswith(("o_proj", "down_proj")):
            forms[f"{name}.pre_quant_scale"] = TensorForm(BF16, (columns,))
    for i in range(50):
        for norm, size in (("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN)):
            forms[f"model.layers.{i}.{norm}.weight"] = TensorForm(BF16, (size,))
        for norm in ("q_norm", "k_norm"):
            forms[f"model.layers.{i}.self_attn.{norm}.weight"] = TensorForm(BF16, (128,))
    return forms | {f"visual.{name}": TensorForm(BF16, shape) for name, shape in vision_shapes().items()}


def vision_shapes():
    """Name to shape of the 351 tensors of the vision tower."""
    shapes = {
        "patch_embed.proj.weight": (VISION, 3, 2, 16, 16),
        "patch_embed.proj.bias": (VISION,),
        "pos_embed.weight": (2304, VISION),
    }
    for i in range(27):
        for name, (rows, columns) in {
            "attn.qkv": (3 * VISION, VISION),
            "attn.proj": (VISION, VISION),
            "mlp.linear_fc1": (4304, VISION),
            "mlp.linear_fc2": (VISION, 4304),
        }.items():
            shapes |= {f"blocks.{i}.{name}.weight": (rows, columns), f"blocks.{i}.{name}.bias": (rows,)}
        for norm in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{norm}.{leaf}": (VISION,) for leaf in ("weight", "bias")}
    for merger, width in (("merger", VISION), *((f"deepstack_merger_list.{i}", 4 * VISION) for i in range(3))):
        shapes |= {f"{merger}.norm.{leaf}": (width,) for leaf in ("weight", "bias")}
        for name, rows in (("linear_fc1", 4 * VISION), ("linear_fc2", HIDDEN)):
            shapes |= {f"{merger}.{name}.weight": (rows, 4 * VISION), f"{merger}.{name}.bias": (rows,)}
    return shapes
