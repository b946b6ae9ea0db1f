"""The diffusers implementation of H3 as an independent oracle, and our weights under its names."""

import warnings

import torch
from diffusers import MiniMaxH3Transformer3DModel
from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3PrepareLayoutStep
from torch import Tensor

from h3.model import Denoiser, Velocity
from h3.sampler import Latents
from h3.sequence import Layout, Modality

# Ours to theirs; the rest is equal, or handled below.
NAMES = (
    ("video_patch_proj.", "proj_in."),
    ("audio_patch_proj.", "audio_proj_in."),
    ("condition_proj.", "context_embedder."),
    ("time_embedder.proj_in.", "time_embedder.linear_1."),
    ("time_embedder.proj_out.", "time_embedder.linear_2."),
    ("token_refiner.blocks.", "token_refiner.refiner_blocks."),
    ("attn.q_norm.", "attn.norm_q."),
    ("attn.k_norm.", "attn.norm_k."),
    ("attn.out_proj.", "attn.to_out.0."),
    ("mlp.fc2.", "ff.net.2."),
    ("final_layer.norm.", "norm_out.norm."),
    ("final_layer.adaln_proj.linear.", "norm_out.linear."),
    ("final_layer.video_out.", "proj_out."),
    ("final_layer.audio_out.", "audio_proj_out."),
)
FP32_PREFIXES = ("proj_in.", "audio_proj_in.", "time_embedder.", "proj_out.", "audio_proj_out.")


def diffusers_positions(layout: Layout) -> Tensor:
    geometry = layout.geometry
    positions, *_ = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        torch.ones(layout.text_tokens),
        geometry.latent_frames,
        geometry.latent_height,
        geometry.latent_width,
        geometry.audio_latents,
        patch_size=(1, 2, 2),
        audio_channels=2,
        audio_tag=Modality.AUDIO,
        video_tag=Modality.VIDEO,
    )
    return positions.float()


def diffusers_model(model: Denoiser) -> MiniMaxH3Transformer3DModel:
    """The same weights in the diffusers class, with the same fp32 islands."""
    twin = MiniMaxH3Transformer3DModel(**model.config.model_dump())
    for name, parameter in twin.named_parameters():
        parameter.data = parameter.data.to(torch.float32 if name.startswith(FP32_PREFIXES) else torch.bfloat16)
    twin.load_state_dict(dict(entry for item in model.state_dict().items() for entry in _renamed(*item)))
    return twin.eval().requires_grad_(False)


def _renamed(name: str, weight: Tensor) -> list[tuple[str, Tensor]]:
    for ours, theirs in NAMES:
        name = name.replace(ours, theirs)
    if name.startswith("blocks."):
        name = f"transformer_{name}"
    if name == "rope.inv_freq":
        return []  # theirs is computed
    if "qkv_proj" in name:
        return [
            (name.replace("qkv_proj", f"to_{letter}"), part)
            for letter, part in zip("qkv", weight.chunk(3), strict=True)
        ]
    if "mlp.fc1" in name:
        gate, value = weight.chunk(2)
        return [(name.replace("mlp.fc1", "ff.net.0.proj"), torch.cat([value, gate]))]
    return [(name, weight)]


def diffusers_velocity(
    twin: MiniMaxH3Transformer3DModel, layout: Layout, states: Tensor, x: Latents, timesteps: Tensor
) -> Velocity:
    audio, video = layout.spans[1], layout.spans[2]
    rows = torch.arange(layout.tokens)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        out = twin(
            hidden_states=x.video[None],
            audio_hidden_states=x.audio[None],
            encoder_hidden_states=states[None],
            timestep=timesteps,
            timestep_indices=torch.cat([rows.new_full((s.stop - s.start,), s.clock) for s in layout.spans]),
            token_tags=torch.cat([rows.new_full((s.stop - s.start,), s.modality) for s in layout.spans]),
            position_ids=layout.positions(),
            video_indices=rows[video.rows],
            audio_indices=rows[audio.rows],
            text_indices=rows[: layout.text_tokens],
        )
    return Velocity(out.sample[0], out.audio_sample[0])
