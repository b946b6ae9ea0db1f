"""The text states that a run is conditioned on: of a prompt where there is a text encoder, else random ones."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch

from h3.conditioning import Conditioning, encode
from h3.errors import CheckpointError, RanksFailed
from h3.model import MODEL_DTYPE
from h3.model_folder import ModelFolder

_SEED = 1


def write_random_states(folder: Path, tokens: int, width: int) -> Path:
    """Into a file in `folder`; the same values at each call."""
    path = folder / f"random-text-{tokens}x{width}.safetensors"
    states = torch.randn(tokens, width, generator=torch.Generator().manual_seed(_SEED))
    Conditioning(states.to(MODEL_DTYPE)).save(path)
    return path


@dataclass(frozen=True, slots=True)
class TextFiles:
    """What a prompt is encoded with."""

    weights: Path
    tokenizer: Path


def find_text_files(encoder: Path, model: Path | None) -> TextFiles:
    """Of a text encoder's folder or file, or of a checkpoint's root. Raises CheckpointError saying what is missing.

    The tokenizer lies beside the encoder, at the model, or within the encoder's folder.
    """
    below = ModelFolder.below(encoder).text_encoder
    weights = below if below.exists() else encoder
    if not weights.exists():
        raise CheckpointError(f"{weights} is missing: H3_TEXT_ENCODER_PATH names a text encoder's folder or file")
    places = [weights.parent / "tokenizer", *([ModelFolder.below(model).tokenizer] if model else []), weights]
    tokenizer = next((place for place in places if (place / "tokenizer.json").is_file()), None)
    if tokenizer is None:
        searched = ", ".join(map(str, places))
        raise CheckpointError(f"no tokenizer.json in {searched}: put the folder `tokenizer` of H3 beside {weights}")
    return TextFiles(weights, tokenizer)


def write_prompt_states(folder: Path, prompt: str, files: TextFiles, device: torch.device) -> Path:
    """Into a file in `folder`. Raises CheckpointError, ConfigError, RanksFailed."""
    path = folder / f"text-{sha256(prompt.encode()).hexdigest()[:12]}.safetensors"
    # In a process of its own: all of the encoder's memory is free again when the ranks start.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        try:
            process.submit(encode_prompt, prompt, files, device, path).result()
        except BrokenProcessPool as exc:
            raise RanksFailed(
                f"the process that encodes the prompt was ended, perhaps for want of memory: {exc}"
            ) from exc
        except torch.OutOfMemoryError as exc:
            raise RanksFailed(f"the text encoder {files.weights} does not fit on {device}: take a smaller one") from exc
    return path


def encode_prompt(prompt: str, files: TextFiles, device: torch.device, path: Path) -> None:
    from h3.text import load_text_encoder  # transformers, which this process alone needs

    text = load_text_encoder(files.weights, files.tokenizer, device)
    with torch.inference_mode():
        encode(prompt, {}, None, text, None).save(path)
