"""Reports of denoise runs: reads them, and compares their times and their latents. Knows no model and no torch."""

import json
import reprlib
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from h3.errors import ConfigError

_REMEDY = "give report.json as `h3render denoise` writes it, or a file of such runs"

Count = Annotated[int, Field(ge=1, le=10**9)]
Bytes = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=1e-9, le=1e9)]  # beyond, nothing can be drawn
SecondsOrZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, order=True, slots=True)
class Shape:
    """What is denoised, in the order that shapes are shown."""

    tokens: int
    width: int
    height: int
    frames: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}, {self.frames} frames, {self.tokens:,} tokens"


@dataclass(frozen=True, order=True, slots=True)
class Terms:
    """Times of runs that have all of this in common tell what more GPUs bring."""

    shape: Shape
    precision: str
    device: str
    attention_backend: str


class _Checked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)  # a later version may say more


class RunProvenance(_Checked):
    """Of `h3.provenance.Provenance`."""

    model_digest: str
    precision: str
    mode: str
    world_size: Count
    attention_backend: str
    torch: str
    device: str
    text_device: str = "file"
    pointwise: str = "eager"


class RankTransport(_Checked):
    """What one rank spent on collectives in one step."""

    seconds: SecondsOrZero  # waiting for peers included
    sent_bytes: Bytes


class Transport(_Checked):
    """Of the step that was metered."""

    step_s: Seconds
    ranks: Annotated[tuple[RankTransport, ...], Field(min_length=1)]

    @property
    def share(self) -> float:
        """Of the step, on the rank that spent most."""
        return max(rank.seconds for rank in self.ranks) / self.step_s

    @property
    def sent_bytes(self) -> int:
        """In a step, by the rank that sent most."""
        return max(rank.sent_bytes for rank in self.ranks)


class RunMachine(_Checked):
    """Where it ran."""

    nccl_transport: tuple[str, ...] | None = None


class Run(_Checked):
    """One run of `h3render denoise`; what it did not measure is None."""

    width: Count
    height: Count
    frames: Count
    tokens: Count
    steps: Count
    seed: int
    text_states: JsonValue = None
    noise: JsonValue = None
    provenance: RunProvenance
    step_s: Annotated[tuple[Seconds, ...], Field(min_length=1)]
    peak_bytes: Annotated[tuple[Bytes, ...], Field(min_length=1)]  # by rank; 0 on the CPU
    weight_bytes: Annotated[tuple[Bytes, ...], Field(min_length=1)] | None = None  # by rank
    transport: Transport | None = None
    latents_sha256: Annotated[dict[str, str], Field(min_length=1)]
    machine: RunMachine | None = None

    @property
    def shape(self) -> Shape:
        return Shape(self.tokens, self.width, self.height, self.frames)

    @property
    def terms(self) -> Terms:
        known = self.provenance
        return Terms(self.shape, known.precision, known.device, known.attention_backend)

    @property
    def gpus(self) -> int:
        return self.provenance.world_size

    @property
    def median_step_s(self) -> float:
        """Without the first, which also warms up, if there are others."""
        return statistics.median(self.step_s[1:] or self.step_s)


class _RunList(_Checked):
    runs: Annotated[tuple[Run, ...], Field(min_length=1)]


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """All runs in the files; one that two files hold is read once, or it would seem to reproduce itself.

    Raises ConfigError naming file, field, value and remedy.
    """
    runs: list[Run] = []
    for path in paths:
        runs += [run for run in _read_file(path) if run not in runs]
    return runs


def _read_file(path: Path) -> tuple[Run, ...]:
    try:
        text = path.read_text(encoding="utf-8")
        fields = json.loads(text)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read ({exc.strerror}): {_REMEDY}") from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} is not JSON ({exc}): {_REMEDY}") from exc
    try:
        if isinstance(fields, dict) and "runs" in fields:
            return _RunList.model_validate_json(text).runs
        return (Run.model_validate_json(text),)
    except ValidationError as exc:
        wrong = "; ".join(map(_explain, exc.errors()))
        raise ConfigError(f"{path} is no report of a denoise run: {wrong}: {_REMEDY}") from exc


def _explain(entry: ErrorDetails) -> str:
    field = ".".join(map(str, entry["loc"]))
    if entry["type"] == "missing":
        return f"{field} is missing"
    _, should, what = entry["msg"].partition("should ")
    return f"{field} {reprlib.repr(entry['input'])} {should}{what or entry['msg']}".lstrip()


def group_by_shape(runs: Iterable[Run]) -> dict[Shape, list[Run]]:
    """Short sequences first; within a shape by precision, mode, GPUs, then device."""
    groups: dict[Shape, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=_place):
        groups[run.shape].append(run)
    return groups


def _place(run: Run) -> tuple[Shape, str, str, int, str]:
    known = run.provenance
    return run.shape, known.precision, known.mode, run.gpus, known.device


def find_baseline_s(runs: Iterable[Run], terms: Terms) -> float | None:
    """A step on one GPU, where all modes compute the same: the median of such runs, None if there are none."""
    steps = [run.median_step_s for run in runs if run.gpus == 1 and run.terms == terms]
    return statistics.median(steps) if steps else None


@dataclass(frozen=True, slots=True)
class Line:
    """How one way to share a render speeds up."""

    terms: Terms
    mode: str
    speed_ups: dict[int, float]  # by GPUs, ascending

    @property
    def ideal_at(self) -> int:
        """GPUs where the speed-up is ideal by definition: 1, without a one-GPU run the fewest there are."""
        return min(self.speed_ups)


def trace_lines(runs: Sequence[Run]) -> list[Line]:
    """One for each mode and terms with runs on several GPUs, beginning with the one-GPU run that all modes share."""
    steps: dict[tuple[Terms, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.gpus > 1:
            steps[run.terms, run.provenance.mode][run.gpus].append(run.median_step_s)
    for (terms, _), line_steps in steps.items():
        if baseline_s := find_baseline_s(runs, terms):
            line_steps[1] = [baseline_s]
    return [Line(terms, mode, _speed_ups(line_steps)) for (terms, mode), line_steps in sorted(steps.items())]


def _speed_ups(steps: dict[int, list[float]]) -> dict[int, float]:
    fewest = min(steps)
    gpu_seconds = fewest * statistics.median(steps[fewest])
    return {gpus: gpu_seconds / statistics.median(steps[gpus]) for gpus in sorted(steps)}


def find_incomparable(runs: Iterable[Run]) -> dict[str, list[str]]:
    """Why not to compare the times of all these runs: what differs, with the values."""
    values: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        known = run.provenance
        values["devices"].add(known.device)
        values["torch versions"].add(known.torch)
        values[f"{known.precision} models"].add(known.model_digest[:12])
    return _several(values)


def _several(values: Mapping[str, set[str]]) -> dict[str, list[str]]:
    return {name: sorted(found) for name, found in values.items() if len(found) > 1}


@dataclass(frozen=True, slots=True)
class Repeats:
    """Runs, two or more, that should have ended with the same latents."""

    runs: list[Run]

    @property
    def latents(self) -> int:
        """How many different ones there are; 1 if the run was reproduced."""
        return len({tuple(sorted(run.latents_sha256.items())) for run in self.runs})

    @property
    def differences(self) -> dict[str, list[str]]:
        """Of these runs, what else latents depend on, with the values."""
        values = {
            "attention backend": {run.provenance.attention_backend for run in self.runs},
            "torch": {run.provenance.torch for run in self.runs},
            "text device": {run.provenance.text_device for run in self.runs},
            "pointwise work": {run.provenance.pointwise for run in self.runs},
            "text states": {str(run.text_states) for run in self.runs},
            "noise": {str(run.noise) for run in self.runs},
        }
        return _several(values)


def find_repeats(runs: Iterable[Run]) -> list[Repeats]:
    """Those of one shape, seed, number of steps, precision, mode, world size, model and device."""
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        known = run.provenance
        same = (known.precision, known.mode, known.world_size, known.model_digest, known.device)
        groups[run.shape, run.seed, run.steps, *same].append(run)
    return [Repeats(group) for group in groups.values() if len(group) > 1]
