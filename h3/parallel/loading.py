"""Loads a rank's part of the denoiser and lets it run over all ranks, provided that all ranks are alike."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from h3.checkpoint import Trim
from h3.config import DenoiserConfig
from h3.model import Denoiser
from h3.parallel.agreement import RankFacts, confirm_agreement
from h3.parallel.mode import Mode, spread, trim_for
from h3.parallel.products import settle_precision
from h3.precision import Precision


class Source(Protocol):
    """Where a denoiser's weights come from: its files, or a seed."""

    @property
    def config(self) -> DenoiserConfig: ...

    @property
    def precision(self) -> Precision:
        """What the weights are kept in unless another is asked for."""
        ...

    def load(
        self, device: torch.device, precision: Precision | None, waits: Callable[[str], bool], trim: Trim
    ) -> Denoiser: ...


@dataclass(frozen=True, slots=True)
class SpreadDenoiser:
    """What a rank has of the denoiser, running over all ranks."""

    model: Denoiser
    mode: Mode
    precision: str  # of the weights, and of the activations if they are rounded too
    digest: str

    @property
    def weight_bytes(self) -> int:
        """That this rank holds."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.model.state_dict().values())


def load_spread(
    source: Source,
    digest: str,
    mode: Mode,
    device: torch.device,
    group: dist.ProcessGroup,
    *,
    precision: Precision | None = None,
    waits: Callable[[str], bool] = lambda _: False,
) -> SpreadDenoiser:
    """Collective over `group`. Tensors that wait lie in host memory.

    Raises CheckpointError, ConfigError, PartitionError, RanksDisagree.
    """
    precision = precision or source.precision
    facts = RankFacts.tell(config=name_config(source.config), checkpoint=digest, mode=mode, precision=precision)
    confirm_agreement(facts, group)
    trim = trim_for(mode, source.config, precision, dist.get_rank(group), dist.get_world_size(group))
    model = source.load(device, precision, waits, trim)
    settled = settle_precision(precision, model, device, group)
    spread(model, mode, group)
    return SpreadDenoiser(model, mode, settled, digest)


def name_config(config: DenoiserConfig) -> str:
    """Short, and another one for other sizes."""
    sizes = hashlib.sha256(config.model_dump_json().encode()).hexdigest()
    return f"{config.num_layers} blocks of width {config.hidden_size}, {sizes[:12]}"
