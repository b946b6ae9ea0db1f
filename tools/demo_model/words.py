"""The text encoder and its tokenizer: one token for each word of the captions, and a frozen random Qwen3-VL.

The states only have to tell words apart: random embeddings of 128 channels are nearly orthogonal, and what the words
mean is learnt behind them, in the denoiser's text projection and refiner.
"""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLModel

from h3.model import MODEL_DTYPE
from h3.text_files import LAYER_KEY
from h3.tiny import SPECIAL_TOKENS
from h3.tokenizer import EXTRA_TOKENS
from tools.demo_model.scenes import vocabulary

TEXT_DIM = 128
TEXT_LAYERS = 2
_LABELS = ("<Picture",)  # stands before each keyframe


def write_tokenizer(folder: Path) -> dict[str, int]:
    """Bytes, and every beginning of a caption's words, so that merging letter by letter gives the word. Returns ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [word.replace(" ", "Ġ") for word in (*vocabulary(), *_LABELS)]
    merges = list(dict.fromkeys((word[:i], word[i]) for word in words for i in range(1, len(word))))
    symbols = list(dict.fromkeys([*alphabet, *("".join(merge) for merge in merges)]))
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(symbols)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token not in EXTRA_TOKENS])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    listed = json.loads(settings.read_text()) | {"additional_special_tokens": SPECIAL_TOKENS}
    settings.write_text(json.dumps(listed, indent=2))
    return {token: len(symbols) + i for i, token in enumerate(SPECIAL_TOKENS)}


def write_text_encoder(folder: Path, special_ids: dict[str, int], seed: int) -> None:
    """Of the official class, its weights drawn so that states keep the size of the embeddings."""
    config = Qwen3VLConfig(
        text_config=_language(max(special_ids.values()) + 1),
        vision_config=_vision(),
        vision_start_token_id=special_ids["<|vision_start|>"],
        vision_end_token_id=special_ids["<|vision_end|>"],
        image_token_id=special_ids["<|image_pad|>"],
        video_token_id=special_ids["<|video_pad|>"],
    )
    setattr(config, LAYER_KEY, TEXT_LAYERS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3VLModel(config)
        _spread(model)
    model.to(MODEL_DTYPE).save_pretrained(folder)


def _language(tokens: int) -> dict[str, object]:
    return {
        "vocab_size": tokens,
        "hidden_size": TEXT_DIM,
        "intermediate_size": 2 * TEXT_DIM,
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


def _vision() -> dict[str, object]:
    return {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": TEXT_DIM,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }


@torch.no_grad()
def _spread(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_()
        elif isinstance(module, nn.Linear):
            module.weight.normal_(std=module.in_features**-0.5)
