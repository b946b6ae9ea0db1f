"""Where the parts of a model lie, whether they are whole, and what identifies them."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from h3.checkpoint import DenoiserFiles
from h3.config import DenoiserConfig
from h3.errors import CheckpointError
from h3.precision import Precision
from h3.tensor_file import StoredTensor, find_tensors
from h3.text_files import check_text_encoder, find_config
from h3.vae_files import check_audio_vae, check_video_vae, video_vae_files

PARTITION = "FL2VA"  # text, and first or last frame, to video and audio
_DIGEST_SAMPLE = 4096  # bytes of each tensor
_OTHER_NAMES = {"video_vae": "vae"}  # as diffusers has them


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The parts of a model: each a folder or one .safetensors file."""

    transformer: Path
    text_encoder: Path
    tokenizer: Path
    video_vae: Path
    audio_vae: Path

    @classmethod
    def below(cls, root: Path) -> Self:
        """The parts below a checkpoint's root, or below its partition folder itself."""
        is_partition = any((root / name).exists() for name in ("transformer", "transformer.safetensors"))
        partition = root if is_partition else root / PARTITION
        return cls(*(_find_part(partition, field.name) for field in fields(cls)))

    def check(self, precision: Precision | None = None) -> DenoiserConfig:
        """Check every part from its headers and return the denoiser's sizes.

        precision  that its weights shall have; None: as they are stored

        Raises CheckpointError naming what is missing, cut short or of no use, ConfigError if they cannot have that.
        """
        files = DenoiserFiles.open(self.transformer)
        files.check(precision)
        check_text_encoder(self.text_encoder)
        check_video_vae(self.video_vae)
        check_audio_vae(self.audio_vae)
        if not (self.tokenizer / "tokenizer.json").is_file():
            raise CheckpointError(f"{self.tokenizer / 'tokenizer.json'} is missing: fetch it again")
        return files.config

    def digest(self) -> str:
        """Identifies the whole model. Raises CheckpointError if its video VAE does not tell where its tensors lie."""
        parts = {part: part for part in (getattr(self, field.name) for field in fields(self))}
        beside = None if self.text_encoder.is_dir() else find_config(self.text_encoder)
        return _digest(parts | {self.video_vae: video_vae_files(self.video_vae)}, [beside] if beside else [])


def require_new(root: Path) -> None:
    """Raises CheckpointError if there is a checkpoint already."""
    if ModelFolder.below(root).transformer.exists():
        raise CheckpointError(f"{root} holds a checkpoint: name a new folder, or delete that one first")


def digest(parts: Iterable[Path]) -> str:
    """Of folders and files that have their tensors in them: what identifies them together."""
    return _digest({part: part for part in parts})


def _digest(weights: Mapping[Path, Path], beside: Iterable[Path] = ()) -> str:
    """Of parts and where their tensors lie: the parts' JSON files, and each tensor's name, size and first bytes.

    `beside` are JSON files that count and lie in no part.
    A sample, because hashing 134 GB takes minutes and a changed weight file differs at the start of some tensor.
    """
    sha256 = hashlib.sha256()
    for json_file in beside:
        sha256.update(json_file.read_bytes())
    for part, path in weights.items():
        for json_file in sorted(part.rglob("*.json")):
            sha256.update(json_file.read_bytes())
        if path.is_file() or any(path.glob("*.safetensors")):
            for name, stored in sorted(find_tensors(path).items()):
                sha256.update(f"{name} {stored.form.size_bytes}\n".encode() + _first_bytes(stored))
    return sha256.hexdigest()


def find_denoiser(path: Path) -> Path:
    """The denoiser's folder or file: below a checkpoint's root, or the path itself."""
    below = ModelFolder.below(path).transformer
    return below if below.exists() else path


def _find_part(partition: Path, name: str) -> Path:
    """A folder or file of that name, or of diffusers' name for it; the folder if there is neither."""
    names = [name, *([_OTHER_NAMES[name]] if name in _OTHER_NAMES else [])]
    candidates = [partition / f"{part}{suffix}" for part in names for suffix in ("", ".safetensors")]
    return next((path for path in candidates if path.exists()), candidates[0])


def _first_bytes(stored: StoredTensor) -> bytes:
    with stored.path.open("rb") as file:
        file.seek(stored.begin)
        return file.read(min(_DIGEST_SAMPLE, stored.form.size_bytes))
