"""From a prompt and its pictures to the states that condition the denoiser: the residual stream inside a Qwen3-VL.

The prompt is tokenised as it stands: no template, no special tokens, no padding, no truncation. A picture stands
before it as a label and a block of vision tokens. The states are those after decoder layer 50, before any norm, so
later layers and the final norm are never read.
Source: MiniMax-H3's published pipeline (hidden_states[50]), restated.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Qwen3VLModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from h3.errors import ConfigError
from h3.model import MODEL_DTYPE
from h3.text_weights import load_model, read_config
from h3.tokenizer import IMAGE_PAD, VisionIds, load_tokenizer, tokenize

MOST_TOKENS = 8192  # of pictures and prompt together
_LEAST_PIXELS, _MOST_PIXELS = 65_536, 16_777_216  # of a picture as the vision tower sees it


@dataclass(frozen=True, slots=True, eq=False)
class Presentation:
    """A request as the encoder reads it."""

    ids: tuple[int, ...]
    vision: tuple[range, ...] = ()  # rows of each picture's block: start, pads, end
    pixel_values: Tensor | None = None  # [patches, channels * time * height * width] fp32; None without pictures
    grid: Tensor | None = None  # [pictures, 3]: patches in time, height, width


class TextEncoder:
    """Tokenizer, vision tower and truncated language model on one device."""

    def __init__(self, model: Qwen3VLModel, tokenizer: PreTrainedTokenizerBase, marks: VisionIds) -> None:
        self.module, self._tokenizer, self._marks = model, tokenizer, marks
        vision = model.config.vision_config
        self._patches_per_token = vision.spatial_merge_size**2
        self._processor = Qwen2VLImageProcessorPil(
            patch_size=vision.patch_size,
            merge_size=vision.spatial_merge_size,
            temporal_patch_size=vision.temporal_patch_size,
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
            min_pixels=_LEAST_PIXELS,
            max_pixels=_MOST_PIXELS,
        )

    def present(self, prompt: str, pictures: Sequence[Tensor] = ()) -> Presentation:
        """Label and vision block of each picture (uint8 [H, W, 3]), then the prompt verbatim.

        Raises ConfigError if the prompt is empty or holds a picture's placeholder itself, if all is more than
        MOST_TOKENS, or if the tokenizer or the image processor has no use for what it is given.
        """
        with _as_config_error("the prompt"):
            words = tokenize(self._tokenizer, prompt)
        if not words:
            raise ConfigError("the prompt is empty: say what is to be seen")
        if pictures and self._marks.image_pad in words:
            raise ConfigError(f"the prompt holds {IMAGE_PAD}, which stands for a picture: remove it")
        presentation = self._put_before(words, pictures) if pictures else Presentation(tuple(words))
        if (count := len(presentation.ids)) > MOST_TOKENS:
            raise ConfigError(
                f"prompt and pictures are {count} tokens ({len(words)} of them the prompt), at most {MOST_TOKENS} are "
                "encoded: shorten the prompt, or use smaller pictures"
            )
        return presentation

    def _put_before(self, words: list[int], pictures: Sequence[Tensor]) -> Presentation:
        with _as_config_error("a picture"):
            patches = self._processor(images=[Image.fromarray(p.numpy()) for p in pictures], return_tensors="pt")
        ids: list[int] = []
        vision: list[range] = []
        for number, count in enumerate(patches["image_grid_thw"].prod(dim=1).tolist(), start=1):
            # Label, block and prompt are tokenised apart, so that no token spans two of them.
            ids += tokenize(self._tokenizer, f"<Picture {number}>: ")
            block = [self._marks.start, *[self._marks.image_pad] * (count // self._patches_per_token), self._marks.end]
            vision.append(range(len(ids), len(ids) + len(block)))
            ids += block
        return Presentation((*ids, *words), tuple(vision), patches["pixel_values"], patches["image_grid_thw"])

    def encode(self, presentation: Presentation) -> Tensor:
        """States of every token: [L, text_dim] in the model's dtype."""
        device = self.module.device
        ids = torch.tensor([presentation.ids], device=device)
        if presentation.pixel_values is None or presentation.grid is None:
            return self.module(input_ids=ids, use_cache=False).last_hidden_state[0]
        kinds = torch.zeros_like(ids)  # 1 where a picture's token stands: there the rotary position is a place in it
        for block in presentation.vision:
            kinds[0, block.start + 1 : block.stop - 1] = 1
        states = self.module(
            input_ids=ids,
            mm_token_type_ids=kinds,
            pixel_values=presentation.pixel_values.to(device),
            image_grid_thw=presentation.grid.to(device),
            use_cache=False,
        )
        return states.last_hidden_state[0]


@contextmanager
def _as_config_error(what: str) -> Iterator[None]:
    """Make ours of what transformers raises for input that it has no use for."""
    try:
        yield
    except (ValueError, TypeError) as exc:
        raise ConfigError(f"{what} cannot be read by the text encoder: {exc}") from exc


def load_text_encoder(
    weights: Path, tokenizer: Path, device: torch.device, dtype: torch.dtype = MODEL_DTYPE
) -> TextEncoder:
    """Load the model from a folder or a single file, and the tokenizer from its folder.

    Raises CheckpointError naming file and layer, tensor or token.
    """
    config = read_config(weights)
    marks = VisionIds(
        start=config.vision_start_token_id,
        end=config.vision_end_token_id,
        image_pad=config.image_token_id,
        video_pad=config.video_token_id,
    )
    words = load_tokenizer(tokenizer, marks)  # first, for it takes a second and the model takes minutes
    return TextEncoder(load_model(weights, config, device, dtype), words, marks)
