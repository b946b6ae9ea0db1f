"""The text encoder and its tokenizer: one token for each word of the captions, and a frozen random Qwen3-VL.

The states only have to tell words apart: random embeddings of 128 channels are nearly orthogonal, and what the words
mean is learnt behind them, in the denoiser's text projection and refiner.
"""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen3VLModel

from h3.model import MODEL_DTYPE
from h3.text_files import LAYER_KEY
from h3.tiny import SPECIAL_TOKENS, make_text_config
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
    config = make_text_config(special_ids, dim=TEXT_DIM, layers=TEXT_LAYERS, inner_dim=2 * TEXT_DIM)
    setattr(config, LAYER_KEY, TEXT_LAYERS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3VLModel(config)
        _spread(model)
    model.to(MODEL_DTYPE).save_pretrained(folder)


@torch.no_grad()
def _spread(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_()
        elif isinstance(module, nn.Linear):
            module.weight.normal_(std=module.in_features**-0.5)
