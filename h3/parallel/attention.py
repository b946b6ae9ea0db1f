"""The attention backend that all ranks run: tested by each of them, timed by rank 0, the same for all."""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from h3.attention import Attending, AttentionName, needed_for, pick
from h3.attention_probe import HeadShape, describe, find_attention_obstacle, measure_times
from h3.collectives import share_all, share_from_first
from h3.errors import ConfigError
from h3.model import Attention, Denoiser
from h3.partition import split_evenly

BUCKET_TOKENS = 4096  # sizes that are nearer to each other share their times
_CHOSEN_BY_TIME = (AttentionName.AUTO, AttentionName.SDPA)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SharedAttention:
    """What the blocks attend with, on every rank. Each method that says so is a collective over `group`."""

    wish: AttentionName  # of whoever has started the ranks: what a render that says `auto` gets
    shape: HeadShape  # of rank 0
    device: torch.device
    group: dist.ProcessGroup
    attending: Attending = field(default_factory=Attending)
    _obstacles: dict[AttentionName, str | None] = field(default_factory=dict)  # of those that were tested
    _times_ms: dict[int, dict[AttentionName, float]] = field(default_factory=dict)  # by bucket
    _told: set[tuple[int, AttentionName]] = field(default_factory=set)

    @property
    def running(self) -> AttentionName:
        """What the latest render has run on."""
        return self.attending.backend

    def require(self, name: AttentionName) -> None:
        """Test what a name may come to. Collective. Raises ConfigError for a backend that does not run here."""
        self._test(needed_for(name))
        if obstacle := self._obstacles.get(name):
            raise ConfigError(f"attention {name} is refused: {obstacle}")

    def must_measure(self, asked: AttentionName, tokens: int) -> bool:
        """Whether to take this needs timing, and with it the memory of an attention of that size."""
        return bool(self._unmeasured(self._resolve(asked), tokens))

    def take(self, asked: AttentionName, tokens: int) -> None:
        """Let the next renders, of about so many tokens, run on what is asked for.

        Collective. Raises ConfigError, and leaves all as it was, if that does not run on every rank.
        """
        name = self._resolve(asked)
        self.require(name)
        times_ms = self._measure(name, tokens)
        usable = [each for each in self._usable(name) if times_ms.get(each) != math.inf]
        self.attending.backend = pick(name, usable, times_ms)
        self._tell(tokens, {each: ms for each, ms in times_ms.items() if each in usable})

    def _resolve(self, asked: AttentionName) -> AttentionName:
        return self.wish if asked is AttentionName.AUTO else asked

    def _test(self, backends: Iterable[AttentionName]) -> None:
        untested = [backend for backend in backends if backend not in self._obstacles]
        if not untested:
            return
        here = {
            backend: find_attention_obstacle(backend, self.device, self.shape.head_dim, self.shape.dtype)
            for backend in untested
        }
        everyone = share_all(here, self.group)
        for backend in untested:
            told = [each[backend] for each in everyone]
            self._obstacles[backend] = obstacle = next((text for text in told if text is not None), None)
            if obstacle and self.device.type == "cuda" and dist.get_rank(self.group) == 0:
                log.info("attention %s does not run here: %s", backend, obstacle)

    def _usable(self, name: AttentionName) -> list[AttentionName]:
        """Of what a name may come to."""
        return [each for each in needed_for(name) if each in self._obstacles and self._obstacles[each] is None]

    def _unmeasured(self, name: AttentionName, tokens: int) -> list[AttentionName]:
        """What is to be timed, were it not for a test that it has not passed."""
        if name not in _CHOSEN_BY_TIME or self.device.type != "cuda":
            return []
        known = self._times_ms.get(tokens // BUCKET_TOKENS, {})
        return [each for each in needed_for(name) if each not in known and self._obstacles.get(each) is None]

    def _measure(self, name: AttentionName, tokens: int) -> dict[AttentionName, float]:
        """Times at this size. One rank's are everyone's: it is one kind of GPU, and all must choose alike."""
        times_ms = self._times_ms.setdefault(tokens // BUCKET_TOKENS, {})
        if unmeasured := self._unmeasured(name, tokens):
            is_first = dist.get_rank(self.group) == 0
            measured = measure_times(unmeasured, self.shape, tokens, self.device) if is_first else None
            times_ms |= share_from_first(measured, self.group, self.device)
        return times_ms

    def _tell(self, tokens: int, times_ms: dict[AttentionName, float]) -> None:
        """Once for a size and a backend."""
        key = (tokens // BUCKET_TOKENS, self.running)
        if key not in self._told and dist.get_rank(self.group) == 0:
            log.info("%s", describe(self.running, times_ms, tokens))
        self._told.add(key)


def settle_attention(
    model: Denoiser, wish: AttentionName, device: torch.device, group: dist.ProcessGroup
) -> SharedAttention:
    """Let the blocks attend with what all ranks will agree on; before the model is spread over them.

    Collective. Raises ConfigError if the backend that is wished for does not run here.
    """
    heads = split_evenly(model.config.num_attention_heads, dist.get_world_size(group), what="attention heads")
    shape = HeadShape(heads.sizes[0], model.config.attention_head_dim, model.dtype)
    attention = SharedAttention(wish, shape, device, group)
    attention.require(wish)
    for module in model.blocks.modules():
        if isinstance(module, Attention):
            module.attend = attention.attending
    return attention
