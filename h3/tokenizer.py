"""Loads the official tokenizer and refuses one that would condition on something else without any error.

What a tokenizer's own files list as one token must come out as one: prompts mark dialogue by `<d>` and `</d>`, which
only tokenizer_config.json lists, and a reader that misses them splits them into letters.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from h3.errors import CheckpointError
from h3.json_file import read_object

# What H3 adds to Qwen's tokens, in the order of their ids.
EXTRA_TOKENS = (
    "<d>",
    "</d>",
    "<|cutoff|>",
    "<|lyrics_start|>",
    "<|lyrics_end|>",
    "<|caption_start|>",
    "<|caption_end|>",
)
IMAGE_PAD = "<|image_pad|>"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VisionIds:
    """Ids that the model takes for the marks of a picture."""

    start: int
    end: int
    image_pad: int
    video_pad: int

    def by_token(self) -> dict[str, int]:
        return {
            "<|vision_start|>": self.start,
            "<|vision_end|>": self.end,
            IMAGE_PAD: self.image_pad,
            "<|video_pad|>": self.video_pad,
        }


def load_tokenizer(folder: Path, vision: VisionIds) -> PreTrainedTokenizerBase:
    """Load the official files.

    Raises CheckpointError naming file or token if they are broken, or split or number a token otherwise than the model.
    A tokenizer whose files list none of H3's own tokens, as Qwen's do not, is used with a warning.
    """
    listed = _list_tokens(folder)
    tokenizer = _open(folder)
    for token in listed:
        if len(pieces := tokenize(tokenizer, token)) != 1:
            raise CheckpointError(
                f"{folder} lists {token} as one token, and it comes out as {len(pieces)}: fetch its files again, or "
                "install the version of transformers that they were made for"
            )
    for token, wanted in vision.by_token().items():
        if (found := tokenize(tokenizer, token)) != [wanted]:
            raise CheckpointError(f"{folder} has {token} as {found}, and the text encoder has it as {[wanted]}")
    if set(EXTRA_TOKENS).isdisjoint(listed):
        tokens = ", ".join(EXTRA_TOKENS)
        log.warning("%s lists none of %s: is it H3's? A prompt with one of these conditions otherwise", folder, tokens)
    else:
        _check_extra_tokens(folder, tokenizer)
    return tokenizer


def _open(folder: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as exc:  # tokenizers raises bare Exception for a tokenizer.json that it cannot read
        raise CheckpointError(f"{folder} is not the folder of a tokenizer ({exc}): fetch it again") from exc


def _check_extra_tokens(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Each is one token, and their ids follow each other. Raises CheckpointError naming the first that differs."""
    first, *_ = tokenize(tokenizer, EXTRA_TOKENS[0]) or [0]
    for wanted, token in enumerate(EXTRA_TOKENS, start=first):
        if (found := tokenize(tokenizer, token)) != [wanted]:
            raise CheckpointError(
                f"{folder} has {token} as {found}, expected {[wanted]}: the {len(EXTRA_TOKENS)} tokens from "
                f"{EXTRA_TOKENS[0]} to {EXTRA_TOKENS[-1]} have consecutive ids in H3's tokenizer; fetch its files again"
            )


def tokenize(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of the text as it stands."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _list_tokens(folder: Path) -> list[str]:
    """Every added token that the files name, as text, {"content": text}, or under a name or an id of its own."""
    settings, vocabulary = read_object(folder / "tokenizer_config.json"), read_object(folder / "tokenizer.json")
    lists = [settings.get(key) for key in ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder")]
    tokens: list[str] = []
    for listed in (*lists, vocabulary.get("added_tokens")):
        entries = list(listed.values()) if isinstance(listed, dict) else listed
        for entry in entries if isinstance(entries, list) else []:
            match entry:
                case str(token) | {"content": str(token)}:
                    tokens.append(token)
    return list(dict.fromkeys(tokens))
