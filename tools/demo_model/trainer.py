"""One model in training: fp32 masters of its weights, their running mean, the optimizer, and the losses so far.

The forward and backward passes run on the model as it will be served, bf16 where it is bf16; updates are made in fp32
and rounded into it. Training stops when its steps are done or the slice's time is over, and goes on from its file.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import typer
from torch import Tensor, nn

WARM_UP_STEPS = 200
FINAL_RATE = 0.02  # of the peak
MAX_GRADIENT_NORM = 1.0
LOSS_EVERY, TOLD_EVERY = 20, 200  # steps


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, and how fast."""

    steps: int
    most_s: float  # whichever comes first
    rate: float
    weight_decay: float = 0.01
    mean_over: float = 500.0  # steps of the running mean, which is what is kept
    betas: tuple[float, float] = (0.9, 0.95)

    def progress(self, step: int, seconds: float) -> float:
        """From 0 to 1."""
        return min(1.0, max(step / self.steps, seconds / self.most_s))

    def rate_at(self, progress: float, steps_of_slice: int) -> float:
        """A cosine, warmed up from the start; again after a resume, for the optimizer's moments are not kept."""
        warm = min(1.0, (steps_of_slice + 1) / min(WARM_UP_STEPS, self.steps / 10))
        cosine = 0.5 + 0.5 * math.cos(math.pi * progress)
        return self.rate * warm * (FINAL_RATE + (1 - FINAL_RATE) * cosine)


class Trainer:
    """Of the parameters that `model` has."""

    def __init__(self, model: nn.Module, plan: Plan, file: Path) -> None:
        self.model, self.plan, self._file = model, plan, file
        self._names, self._served = zip(*model.named_parameters(), strict=True)
        self._masters = [parameter.detach().float().clone().requires_grad_(True) for parameter in self._served]
        self._mean = [master.detach().clone() for master in self._masters]
        self.step, self.seconds, self._resumed_at = 0, 0.0, 0
        self.losses: list[tuple[int, list[float]]] = []
        if file.is_file():
            self._load()
        on_gpu = self._masters[0].is_cuda
        groups = [
            {"params": [m for m in self._masters if m.ndim > 1], "weight_decay": plan.weight_decay},
            {"params": [m for m in self._masters if m.ndim <= 1], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=plan.rate, betas=plan.betas, fused=on_gpu)

    @property
    def is_done(self) -> bool:
        return self.plan.progress(self.step, self.seconds) >= 1

    def run(self, make_losses: Callable[[int], Sequence[Tensor]], deadline: float) -> bool:
        """Train until done or until `deadline` (time.monotonic()); the losses of a step are summed. Returns is_done."""
        lap = time.monotonic()
        while not self.is_done and lap < deadline:
            losses = make_losses(self.step)
            self._update(losses)
            lap, before = time.monotonic(), lap
            self.seconds += lap - before
            self._note(losses)
        self.save()
        return self.is_done

    def _note(self, losses: Sequence[Tensor]) -> None:
        if self.step % LOSS_EVERY == 0:
            self.losses.append((self.step, [loss.item() for loss in losses]))
        if self.step % TOLD_EVERY == 0:
            pace = self.step / self.seconds
            told = " ".join(f"{loss.item():.4f}" for loss in losses)
            typer.echo(f"{self._file.stem} {self.step}/{self.plan.steps}: {told}, {pace:.1f} steps/s")

    def _update(self, losses: Sequence[Tensor]) -> None:
        torch.stack([loss.float() for loss in losses]).sum().backward()
        for master, served in zip(self._masters, self._served, strict=True):
            master.grad = torch.zeros_like(master) if served.grad is None else served.grad.float()
            served.grad = None
        torch.nn.utils.clip_grad_norm_(self._masters, MAX_GRADIENT_NORM, foreach=True)
        progress = self.plan.progress(self.step, self.seconds)
        for group in self._optimizer.param_groups:
            group["lr"] = self.plan.rate_at(progress, self.step - self._resumed_at)
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(list(self._served), self._masters)
            torch._foreach_lerp_(self._mean, self._masters, 1 / min(self.step + 1, self.plan.mean_over))
        self.step += 1

    def take_mean(self) -> None:
        """Give the model the running mean of its weights: it is what is used from now on."""
        with torch.no_grad():
            torch._foreach_copy_(list(self._served), self._mean)

    def save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "losses": self.losses,
            "masters": dict(zip(self._names, [m.detach().cpu() for m in self._masters], strict=True)),
            "mean": dict(zip(self._names, [m.cpu() for m in self._mean], strict=True)),
        }
        torch.save(state, self._file)

    def _load(self) -> None:
        state = torch.load(self._file, map_location=self._masters[0].device, weights_only=True)
        self.step = self._resumed_at = state["step"]
        self.seconds = state["seconds"]
        self.losses = [(step, list(losses)) for step, losses in state["losses"]]
        with torch.no_grad():
            for name, master, mean in zip(self._names, self._masters, self._mean, strict=True):
                master.copy_(state["masters"][name])
                mean.copy_(state["mean"][name])
            torch._foreach_copy_(list(self._served), self._masters)
