"""What precisions and attention backends cost in quality: latents of one noise against those of the model in fp32."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import Tensor

from h3.attention import AttentionName, find_installed
from h3.bench.fleet import running
from h3.bench.quality_ranks import QualityRanks, Rendered, RenderLatents
from h3.bench.report import VERSION, open_console, open_table
from h3.bench.turns import Tell
from h3.errors import ConfigError
from h3.machine import describe_machine
from h3.precision import Precision
from h3.sequence import Geometry
from h3.untrained import Untrained


@dataclass(frozen=True, slots=True)
class Contest:
    """What is compared."""

    model: Path | Untrained
    geometry: Geometry
    steps: int
    precisions: tuple[Precision, ...]
    on_gpus: bool


@dataclass(frozen=True, slots=True)
class Distance:
    """Of latents from those of fp32."""

    relative_l2: float
    psnr_db: float  # against the range of fp32's; inf for equal ones

    @classmethod
    def of(cls, found: Tensor, right: Tensor) -> "Distance":
        """In fp64."""
        found, right = found.double(), right.double()
        error = (found - right).square().mean().item()
        peak = (right.max() - right.min()).item()
        return cls(
            ((found - right).norm() / right.norm()).item(),
            math.inf if error == 0 else 10 * math.log10(peak**2 / error),
        )


@dataclass(slots=True)
class Result:
    """Of one precision with one attention."""

    name: str
    attention: str
    step_s: float = 0.0
    is_repeated: bool = True
    evaluation: dict[str, Distance] = field(default_factory=dict)  # of one evaluation of the model, by modality
    final: dict[str, Distance] = field(default_factory=dict)
    refused: str = ""


def measure(contest: Contest, tell: Tell) -> list[Result]:
    """The reference, the model in bf16 as it is written, then each precision with each attention that is installed.

    Raises CheckpointError, ConfigError, RanksFailed.
    """
    [reference] = _render(contest, Precision.FP32, [AttentionName.SDPA], eager=True, tell=tell)
    assert isinstance(reference, Rendered)
    found = _compare("bf16, eager", _render(contest, Precision.BF16, [AttentionName.SDPA], True, tell), reference)
    backends = [name for name in find_installed(on_gpus=contest.on_gpus) if name is not AttentionName.SDPA]
    for precision in contest.precisions:
        rendered = _render(contest, precision, backends or [AttentionName.SDPA], eager=False, tell=tell)
        found += _compare(str(precision), rendered, reference)
    return [Result("fp32, eager", reference.attention, reference.step_s, reference.is_repeated), *found]


Refused = tuple[AttentionName, str]


def _render(
    contest: Contest, precision: Precision, attentions: Sequence[AttentionName], eager: bool, tell: Tell
) -> list[Rendered | Refused]:
    found: list[Rendered | Refused] = []
    tell(f"loading {precision}{', eager' if eager else ''}")
    setup = {"model": contest.model, "precision": precision, "eager": eager}
    with running(QualityRanks, 1, on_gpus=contest.on_gpus, **setup) as ranks:
        for attention in attentions:
            tell(f"rendering in {precision} on {attention}")
            try:
                found.append(ranks.ask(RenderLatents(contest.geometry, contest.steps, attention), Rendered))
            except ConfigError as exc:
                found.append((attention, str(exc)))
    return found


def _compare(name: str, found: Sequence[Rendered | Refused], reference: Rendered) -> list[Result]:
    results = []
    for each in found:
        if not isinstance(each, Rendered):
            results.append(Result(name, each[0], refused=each[1]))
            continue
        results.append(
            Result(
                name,
                each.attention,
                each.step_s,
                each.is_repeated,
                {
                    "video": Distance.of(each.first.video, reference.first.video),
                    "audio": Distance.of(each.first.audio, reference.first.audio),
                },
                {
                    "video": Distance.of(each.final.video, reference.final.video),
                    "audio": Distance.of(each.final.audio, reference.final.audio),
                },
            )
        )
    return results


def describe(contest: Contest, results: Sequence[Result]) -> dict[str, object]:
    """Everything, for a file."""
    return {
        "version": VERSION,
        "machine": describe_machine(on_gpus=contest.on_gpus),
        "model": str(contest.model),
        **asdict(contest.geometry),
        "steps": contest.steps,
        "results": [asdict(result) for result in results],
    }


def print_outcome(contest: Contest, results: Sequence[Result]) -> None:
    """To stdout."""
    geometry = contest.geometry
    table = open_table(
        f"Distance from fp32, {geometry.width}x{geometry.height}, {geometry.frames} frames, {contest.steps} steps",
        "",
        "attention",
        "step",
        "one evaluation: video",
        "audio",
        "latents: video",
        "audio",
        "PSNR: video",
        "audio",
        "repeated",
    )
    for result in results:
        if result.refused:
            table.add_row(result.name, result.attention, "refused")
            continue
        distances = [*result.evaluation.values(), *result.final.values()]
        table.add_row(
            result.name,
            result.attention,
            f"{result.step_s:.3f} s",
            *([f"{distance.relative_l2:.2e}" for distance in distances] or ["-"] * 4),
            *([f"{distance.psnr_db:.1f} dB" for distance in result.final.values()] or ["-"] * 2),
            "yes" if result.is_repeated else "NO",
        )
    console = open_console()
    console.print(table)
    for told in dict.fromkeys(result.refused for result in results if result.refused):
        console.print(told)
