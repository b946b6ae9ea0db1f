"""What `h3render checkpoint inspect` tells of a denoiser's files."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from h3.checkpoint import DenoiserFiles
from h3.config import DenoiserConfig
from h3.families import Family, QkvOrder
from h3.precision import Precision
from h3.qkv_order import QkvEvidence, telling_layers, weigh_order
from h3.tensor_file import TensorReader
from h3.weights import Recipe

_KINDS = (  # a tensor is of the first kind whose part its name has
    ("token_refiner.", "refiner"),
    ("attn.qkv_proj", "attention qkv"),
    ("attn.out_proj", "attention output"),
    ("mlp.fc1", "mlp fc1"),
    ("mlp.fc2", "mlp fc2"),
    ("adaln_proj", "adaln"),
    ("adaln_t_table", "adaln curve"),
    ("time_embedder", "time embedding"),
    ("norm", "norms"),
    ("patch_proj", "patch projections"),
    ("final_layer", "output heads"),
    ("condition_proj", "text projection"),
)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file of the checkpoint."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the files hold."""

    family: Family
    config: DenoiserConfig
    tensors: int
    size_bytes: int  # of all tensors
    formats: dict[str, dict[str, int]]  # kind of layer to number format to how many tensors
    order: QkvOrder
    evidence: dict[str, QkvEvidence]  # by layer; what the weights say
    files: list[FileFacts]

    def as_json(self) -> str:
        """For programs."""
        facts = asdict(self) | {"config": self.config.model_dump(mode="json")}
        return json.dumps(facts, indent=2)

    def lines(self) -> Iterator[str]:
        """For people."""
        config = self.config
        heads = f"{config.num_attention_heads} heads of {config.attention_head_dim}"
        pruned = ", pruned" if config.is_pruned else ""
        yield f"format     {self.family}{pruned}: {self.tensors} tensors, {self.size_bytes / 1e9:.2f} GB"
        yield f"model      {config.num_layers} blocks, {heads}, width {config.hidden_size}, ffn {config.ffn_dim}"
        for kind, formats in self.formats.items():
            yield f"precision  {kind}: {', '.join(f'{name} x {count}' for name, count in formats.items())}"
        yield f"qkv order  {self.order}, as the {self.family} format has it"
        for layer, evidence in self.evidence.items():
            yield f"evidence   {layer}: {evidence}: {f'it is {evidence.order}' if evidence.order else 'says nothing'}"
        for file in self.files:
            yield f"file       {file.name}, {file.size_bytes} bytes, sha256 {file.sha256}"


def inspect(path: Path) -> Inspection:
    """Check the files and read enough of them to tell. Hashing takes a second for each GB. Raises CheckpointError."""
    files = DenoiserFiles.open(path)
    _, recipes = files.plan(Precision.BF16)
    return Inspection(
        family=files.family,
        config=files.config,
        tensors=len(files.stored),
        size_bytes=sum(stored.form.size_bytes for stored in files.stored.values()),
        formats=_count_formats(files, recipes),
        order=files.order,
        evidence=_weigh(files),
        files=[_hash(file) for file in sorted({stored.path for stored in files.stored.values()})],
    )


def _count_formats(files: DenoiserFiles, recipes: Mapping[str, Recipe]) -> dict[str, dict[str, int]]:
    """Of the model's tensors, by how they are stored."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, recipe in recipes.items():
        marker = files.markers.get(name.rpartition(".")[0])
        stored = str(files.stored[recipe.parts[0].name].form.dtype).removeprefix("torch.")
        counts[_kind(name)][marker.format if marker else stored] += 1
    return {kind: dict(count) for kind, count in counts.items()}


def _kind(name: str) -> str:
    return next((kind for part, kind in _KINDS if part in name), "other")


def _weigh(files: DenoiserFiles) -> dict[str, QkvEvidence]:
    heads = files.config.num_attention_heads
    with TensorReader(torch.device("cpu")) as reader:
        return {
            layer: weigh_order(files.read_qkv(layer, reader), files.order, heads)
            for layer in telling_layers(files.config)
        }


def _hash(path: Path) -> FileFacts:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return FileFacts(path.name, path.stat().st_size, sha256)
