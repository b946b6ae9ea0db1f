"""Loads a rank's part of the denoiser and lets it run over all ranks, provided that all ranks are alike."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from h3.attention import AttentionName
from h3.checkpoint import Trim
from h3.config import DenoiserConfig
from h3.fused import settle_pointwise
from h3.model import Denoiser
from h3.parallel.agreement import RankFacts, confirm_agreement
from h3.parallel.attention import SharedAttention, settle_attention
from h3.parallel.mode import Mode, spread, trim_for
from h3.parallel.products import settle_precision
from h3.part_sizes import REFINER
from h3.precision import Precision
from h3.provenance import Provenance, describe_device
from h3.shelf import Shelf


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
    digest: str  # of what its weights come from
    mode: Mode
    world_size: int
    weights: Precision
    precision: str  # of the weights, and of the activations if they are rounded too
    pointwise: str  # as a render's provenance calls it
    attention: SharedAttention

    @property
    def weight_bytes(self) -> int:
        """That this rank holds."""
        return sum(tensor.nbytes for tensor in self.model.state_dict().values())

    def shelve_refiner(self, device: torch.device) -> Shelf:
        """Take what refines a request's text off the device, until it is brought: 1.5 GB, used once a request."""
        names = (name for name, _ in self.model.named_parameters() if name.startswith(REFINER))
        return Shelf(self.model, names, device)

    def provenance(self, device: torch.device, **beside: str) -> Provenance:
        """Of a render that it makes on this device."""
        return Provenance(
            model_digest=self.digest,
            precision=self.precision,
            mode=self.mode,
            world_size=self.world_size,
            attention_backend=self.attention.running,
            torch=torch.__version__,
            device=describe_device(device),
            pointwise=self.pointwise,
            **beside,
        )


def load_spread(
    source: Source,
    digest: str,
    mode: Mode,
    device: torch.device,
    group: dist.ProcessGroup,
    *,
    precision: Precision | None = None,
    attention: AttentionName = AttentionName.AUTO,
    waits: Callable[[str], bool] = lambda _: False,
    head_groups: int = 1,
) -> SpreadDenoiser:
    """Collective over `group`. Tensors that wait lie in host memory.

    Raises CheckpointError, ConfigError, PartitionError, RanksDisagree.
    """
    precision = precision or source.precision
    facts = RankFacts.tell(
        config=name_config(source.config), checkpoint=digest, mode=mode, precision=precision, attention=attention
    )
    confirm_agreement(facts, group)
    world_size = dist.get_world_size(group)
    trim = trim_for(mode, source.config, precision, dist.get_rank(group), world_size)
    model = source.load(device, precision, waits, trim)
    settled = settle_precision(precision, model, device, group)
    # Both before layers are spread, which wraps them.
    shared = settle_attention(model, attention, device, group)
    attending = None if mode.exchanges_heads(world_size) else shared.attending
    pointwise = settle_pointwise(model, device, group, attending)
    spread(model, mode, group, head_groups)
    return SpreadDenoiser(model, digest, mode, world_size, precision, settled, pointwise, shared)


def name_config(config: DenoiserConfig) -> str:
    """Short, and another one for other sizes."""
    sizes = hashlib.sha256(config.model_dump_json().encode()).hexdigest()
    return f"{config.num_layers} blocks of width {config.hidden_size}, {sizes[:12]}"
