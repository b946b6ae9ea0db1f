"""Writes an untrained H3 of toy size, every part of it in the official layout, from a seed.

The architecture is the true one; only the sizes are small, so it runs through the same loader and code as the real
checkpoint and renders noise within seconds on a laptop.
"""

import warnings
from pathlib import Path

import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, ModelMixin
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLModel
from transformers.utils.logging import disable_progress_bar

from h3.checkpoint import ModelFolder, save_denoiser
from h3.config import DenoiserConfig
from h3.errors import CheckpointError
from h3.model import MODEL_DTYPE, Denoiser
from h3.text import LAYER_KEY

TEXT_DIM = 64
TEXT_LAYERS = 3  # one more than conditions the denoiser, as in the real encoder
SPECIAL_TOKENS = ("<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
DENOISER = DenoiserConfig(
    hidden_size=192,
    num_layers=4,
    num_refiner_layers=1,
    num_attention_heads=9,  # more than 8 and odd: ragged over 2 ranks, and divisible over up to 8
    attention_head_dim=128,
    ffn_dim=1152,
    in_channels=24,
    audio_in_channels=32,
    patch_size=(1, 2, 2),
    text_dim=TEXT_DIM,
    freq_dim=64,
    time_embed_hidden_dim=96,
    time_embed_dim=48,
    rope_freq_dim=16,
    rope_theta=10_000.0,
    norm_eps=1e-5,
    qk_norm_eps=1e-5,
    final_norm_eps=1e-5,
)


def write_tiny(root: Path, seed: int) -> ModelFolder:
    """Write the model below `root` and return where its parts lie. The same seed gives the same bytes.

    Raises CheckpointError if there is a checkpoint already.
    """
    folder = ModelFolder.below(root)
    if folder.transformer.exists():
        raise CheckpointError(f"{root} holds a checkpoint: name a new folder, or delete that one first")
    disable_progress_bar()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # diffusers' audio autoencoder uses torch's old weight norm
        torch.manual_seed(seed)
        save_denoiser(Denoiser(DENOISER), folder.transformer, shards=3)
        _write_text_encoder(folder.text_encoder)
        _randomised(_video_vae()).save_pretrained(folder.video_vae)
        _randomised(_audio_vae()).save_pretrained(folder.audio_vae)
    _write_tokenizer(folder.tokenizer)
    return folder


def _write_text_encoder(folder: Path) -> None:
    text = {
        "vocab_size": 256 + len(SPECIAL_TOKENS),
        "hidden_size": TEXT_DIM,
        "intermediate_size": 128,
        "num_hidden_layers": TEXT_LAYERS,
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
        "out_hidden_size": TEXT_DIM,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    config = Qwen3VLConfig(text_config=text, vision_config=vision)
    setattr(config, LAYER_KEY, TEXT_LAYERS - 1)
    model = Qwen3VLModel(config).to(MODEL_DTYPE)
    model.save_pretrained(folder, max_shard_size="200KB")


def _write_tokenizer(folder: Path) -> None:
    """Byte level: one token per UTF-8 byte."""
    vocabulary = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def _video_vae() -> AutoencoderKLMiniMaxH3:
    channels = DENOISER.in_channels
    return AutoencoderKLMiniMaxH3(
        latent_channels=channels,
        block_out_channels=(8, 8, 8, 16, 16, 16),
        layers_per_block=1,
        norm_num_groups=4,
        decoder_num_layers=2,
        decoder_num_attention_heads=2,
        latents_mean=torch.linspace(-1, 1, channels).tolist(),
        latents_std=torch.linspace(0.5, 2, channels).tolist(),
    )


def _audio_vae() -> AutoencoderKLMiniMaxH3Audio:
    channels = DENOISER.audio_in_channels
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


def _randomised(vae: ModelMixin) -> ModelMixin:
    """Fill what the classes leave at zero (residual scales, register tokens): a zero hides a wrong loader."""
    for parameter in vae.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.5)
    return vae
