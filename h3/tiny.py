"""Writes an untrained H3 of toy size, every part of it in the official layout, from a seed.

The architecture is the true one; only the sizes are small, so it runs through the same loader and code as the real
checkpoint and renders noise within seconds on a laptop.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, ModelMixin
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLModel
from transformers.utils.logging import disable_progress_bar

from h3.convert import Target, save_denoiser
from h3.model import MODEL_DTYPE, Denoiser
from h3.model_folder import ModelFolder, require_new
from h3.tensor_file import write_tensors
from h3.text_files import LAYER_KEY
from h3.tokenizer import EXTRA_TOKENS
from h3.untrained import TINY
from h3.vae_files import official_video_tensors

SHARD_BYTES = 7 * 2**20  # three shards
TEXT_LAYERS = 3  # one more than conditions the denoiser, as in the real encoder
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    *EXTRA_TOKENS,
)


def write_tiny(root: Path, seed: int) -> ModelFolder:
    """Write the model below `root` and return where its parts lie. The same seed gives the same bytes.

    Raises CheckpointError if there is a checkpoint already.
    """
    require_new(root)
    folder = ModelFolder.below(root)
    disable_progress_bar()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # diffusers' audio autoencoder uses torch's old weight norm
        torch.manual_seed(seed)
        save_denoiser(Denoiser(TINY), folder.transformer, Target.OFFICIAL, shard_bytes=SHARD_BYTES)
        write_text_encoder(folder.text_encoder)
        write_video_vae(_randomised(_video_vae()), folder.video_vae)
        write_audio_vae(_randomised(_audio_vae()), folder.audio_vae)
    write_tokenizer(folder.tokenizer)
    return folder


def write_text_encoder(folder: Path) -> None:
    """Untrained, of torch's random state, in several shards."""
    ids = {token: special_id(token) for token in SPECIAL_TOKENS}
    config = make_text_config(ids, dim=TINY.text_dim, layers=TEXT_LAYERS, inner_dim=128)
    setattr(config, LAYER_KEY, TEXT_LAYERS - 1)
    model = Qwen3VLModel(config).to(MODEL_DTYPE)
    model.save_pretrained(folder, max_shard_size="200KB")


def make_text_config(special_ids: Mapping[str, int], *, dim: int, layers: int, inner_dim: int) -> Qwen3VLConfig:
    """Of a Qwen3-VL of toy size, with as small a vision tower as the class allows.

    special_ids  of SPECIAL_TOKENS, which come last among all tokens
    """
    text = {
        "vocab_size": max(special_ids.values()) + 1,
        "hidden_size": dim,
        "intermediate_size": inner_dim,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5_000_000.0,
            "mrope_section": [8, 4, 4],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": dim,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        vision_start_token_id=special_ids["<|vision_start|>"],
        vision_end_token_id=special_ids["<|vision_end|>"],
        image_token_id=special_ids["<|image_pad|>"],
        video_token_id=special_ids["<|video_pad|>"],
    )


def special_id(token: str) -> int:
    """Of one of SPECIAL_TOKENS, in the tokenizer below."""
    return 256 + SPECIAL_TOKENS.index(token)


def write_tokenizer(folder: Path) -> None:
    """Byte level: one token per UTF-8 byte. As in the official files, only the settings list H3's extra tokens."""
    vocabulary = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token not in EXTRA_TOKENS])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    listed = json.loads(settings.read_text()) | {"additional_special_tokens": SPECIAL_TOKENS}
    settings.write_text(json.dumps(listed, indent=2))


def _video_vae() -> AutoencoderKLMiniMaxH3:
    channels = TINY.in_channels
    return AutoencoderKLMiniMaxH3(
        latent_channels=channels,
        block_out_channels=(32, 32, 32, 32, 32, 64),
        layers_per_block=1,
        decoder_num_layers=2,
        decoder_num_attention_heads=2,
        latents_mean=torch.linspace(-1, 1, channels).tolist(),
        latents_std=torch.linspace(0.5, 2, channels).tolist(),
    )


def write_video_vae(vae: AutoencoderKLMiniMaxH3, folder: Path) -> None:
    """In the official layout."""
    sizes = vae.config
    wrapper = {
        "source_path": "source",
        "source_safetensors_path": "model.safetensors",
        "vae_clip_length": sizes.clip_length,
        "vae_token_drop": sizes.token_drop,
        "vae_tile_size": vae.tile_sample_min_height,
        "vae_tile_overlap_min": vae.tile_sample_min_overlap_height,
        "latents_mean": sizes.latents_mean,
        "latents_std": sizes.latents_std,
    }
    source = {
        "ch": sizes.block_out_channels[0],
        "ch_mult": [width // sizes.block_out_channels[0] for width in sizes.block_out_channels],
        "num_res_blocks": sizes.layers_per_block,
        "space_down": sizes.spatial_downsample_factors,
        "time_down": sizes.temporal_downsample_factors,
        "z_channels": sizes.latent_channels,
        "embed_dim": sizes.latent_channels,
        "out_ch": sizes.out_channels,
        "padding_mode": sizes.spatial_padding_mode,
        "vit_decoder_kwargs": {
            "num_layers": sizes.decoder_num_layers,
            "heads": sizes.decoder_num_attention_heads,
            "dim_head": sizes.decoder_attention_head_dim,
            "rope_theta": sizes.decoder_rope_theta,
            "rope_dim_ratio": sizes.decoder_rope_dim_ratio,
        },
    }
    (folder / "source").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(wrapper, indent=2))
    (folder / "source" / "config.json").write_text(json.dumps(source, indent=2))
    tensors = official_video_tensors(vae.state_dict(), sizes.decoder_num_attention_heads)
    write_tensors(folder / "source" / "model.safetensors", tensors, {})


def _audio_vae() -> AutoencoderKLMiniMaxH3Audio:
    channels = TINY.audio_in_channels
    return AutoencoderKLMiniMaxH3Audio(
        encoder_dim=4,
        latent_dim=64,
        latent_channels=channels,
        decoder_dim=256,
        resblock_kernel_sizes=(3,),
        resblock_dilation_sizes=((1, 3, 5),),
        latents_mean=torch.linspace(-0.5, 0.5, channels).tolist(),
        latents_std=torch.linspace(1, 2, channels).tolist(),
    )


def write_audio_vae(vae: AutoencoderKLMiniMaxH3Audio, folder: Path) -> None:
    """In the official layout."""
    sizes = vae.config
    config = {
        "sample_rate": sizes.sampling_rate,
        "latent_channels": sizes.latent_channels,
        "resblock_kernel_sizes": sizes.resblock_kernel_sizes,  # fewer than what is taken for granted
        "resblock_dilation_sizes": sizes.resblock_dilation_sizes,
        "latents_mean": sizes.latents_mean,
        "latents_std": sizes.latents_std,
    }
    arguments = {
        "encoder_dim": sizes.encoder_dim,
        "encoder_rates": sizes.encoder_rates,
        "latent_dim": sizes.latent_dim,
        "vae_latent_channels": sizes.latent_channels,
        "decoder_dim": sizes.decoder_dim,
        "decoder_rates": sizes.decoder_rates,
        "decoder_type": "bigvgan",
        "attn_proj": True,
        "sample_rate": sizes.sampling_rate,
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "metadata.json").write_text(json.dumps({"metadata": {"kwargs": arguments}}, indent=2))
    write_tensors(folder / "model.safetensors", vae.state_dict(), {})


def _randomised(vae: ModelMixin) -> ModelMixin:
    """Vary what the classes leave constant (norms, residual scales, register tokens): it hides a wrong loader."""
    with torch.no_grad():
        for parameter in vae.parameters():
            if parameter.min() == parameter.max():
                parameter += 0.5 * torch.randn_like(parameter)
    return vae
