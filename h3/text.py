"""From a prompt to the states that condition the denoiser: the residual stream inside a Qwen3-VL language model.

The prompt is tokenised as it stands: no template, no special tokens, no padding, no truncation. The states are those
after decoder layer 50, before any norm, so later layers and the final norm are not needed.
Source: MiniMax-H3's published pipeline (hidden_states[50]), restated.
"""

import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3VLModel, Qwen3VLTextModel

from h3.model import MODEL_DTYPE

CONDITIONING_LAYER = 50  # layers that run; a config.json may say otherwise under this key
LAYER_KEY = "h3_conditioning_layer"


class TextEncoder:
    """Tokenizer and truncated language model on one device."""

    def __init__(self, model: Qwen3VLTextModel, tokenizer: PreTrainedTokenizerBase, layers: int) -> None:
        self._model, self._tokenizer = model, tokenizer
        model.layers = model.layers[:layers]

    def tokenize(self, prompt: str) -> list[int]:
        """Token ids of the raw prompt."""
        ids: list[int] = self._tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return ids

    def encode(self, ids: list[int]) -> Tensor:
        """States of every token: [L, text_dim] bf16."""
        kept: list[Tensor] = []
        # The model returns its last state after the norm; the hook sees it before.
        hook = self._model.layers[-1].register_forward_hook(lambda _layer, _inputs, states: kept.append(states))
        with hook:
            self._model(input_ids=torch.tensor([ids], device=self._model.device), use_cache=False)
        return kept[0][0]


def load_text_encoder(weights: Path, tokenizer: Path, device: torch.device) -> TextEncoder:
    """Load from the official folders `text_encoder` and `tokenizer`."""
    model = Qwen3VLModel.from_pretrained(weights, dtype=MODEL_DTYPE, local_files_only=True)
    layers = json.loads((weights / "config.json").read_text()).get(LAYER_KEY, CONDITIONING_LAYER)
    language_model = model.language_model.to(device).eval().requires_grad_(False)
    return TextEncoder(language_model, AutoTokenizer.from_pretrained(tokenizer, local_files_only=True), layers)
