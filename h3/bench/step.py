"""Times a denoise step: ours at several precisions, and a peer's, on the same ranks' GPUs by turns, A B B A.

Each contender is a fleet of its own that holds its weights all the while; only one computes at a time. A GPU at its
limit of power is slower warm than cold, so every turn begins with a step that is not counted, and whoever goes first
in one half of a round goes last in the other.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from h3.attention import AttentionName
from h3.bench.fleet import BenchFleet, running
from h3.bench.turns import TEXT_TOKENS, Opening, Parts, TakeSteps, Tell, Turn, WatchParts
from h3.bench.work import Ceilings, Part, Work, count_work, floor_s
from h3.config import DenoiserConfig
from h3.errors import ConfigError
from h3.parallel.mode import Mode
from h3.precision import Precision
from h3.sequence import Geometry, Layout
from h3.untrained import Untrained

_HOPELESS = 1.15  # times the fastest of a peer's backends


@dataclass(frozen=True, slots=True)
class Contest:
    """Who takes part, and on what."""

    model: Path | Untrained
    config: DenoiserConfig  # of that model
    entries: tuple[tuple[Precision, AttentionName], ...]  # ours
    mode: Mode
    head_groups: int  # of an exchange, with Ulysses
    world_size: int
    on_gpus: bool
    with_diffusers: bool
    compiles: bool  # the peer's blocks, too


@dataclass(frozen=True, slots=True)
class Plan:
    """How long."""

    shapes: tuple[Geometry, ...]
    steps: int  # of a turn
    rounds: int  # of which each has two turns of every contender


@dataclass(frozen=True, slots=True)
class PartTime:
    """One part of our step on one rank, beside what it has to do there."""

    seconds: float
    floor_s: float
    operations: float
    bytes: float


@dataclass(slots=True)
class Result:
    """Of one contender at one shape."""

    name: str
    layout: Layout
    turns: list[Turn] = field(default_factory=list)
    parts: dict[Part, PartTime] = field(default_factory=dict)  # of ours alone
    refused: str = ""  # why it did not run

    @property
    def step_s(self) -> float:
        """The median of all steps of all turns."""
        return statistics.median(seconds for turn in self.turns for seconds in turn.step_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of the whole bench."""

    ceilings: Ceilings
    operations: Mapping[Geometry, float]  # of a step
    results: Sequence[Result]

    def at(self, geometry: Geometry) -> list[Result]:
        """Of one shape, in the order of the contenders."""
        return [result for result in self.results if result.layout.geometry == geometry]


@dataclass(frozen=True, slots=True)
class Contender:
    """A fleet, and how it is asked."""

    name: str
    fleet: BenchFleet
    way: str
    precision: Precision | None = None  # None: not ours

    def take(self, geometry: Geometry, steps: int) -> Turn:
        return self.fleet.ask(TakeSteps(geometry, steps, self.way), Turn)


def measure(contest: Contest, plan: Plan, tell: Tell) -> Outcome:
    """Raises ConfigError, RanksFailed, CheckpointError."""
    with ExitStack() as stack:
        ours = list(_start_ours(contest, stack, tell))
        ceilings = ours[0].fleet.ask(Opening(), Ceilings)
        peer = _start_peer(contest, stack, tell) if contest.with_diffusers else None
        results: list[Result] = []
        known_s: dict[str, float] = {}
        for geometry in plan.shapes:
            peers = _choose_ways(peer, contest, geometry, known_s, tell) if peer else []
            results += _measure_shape([*ours, *peers], contest, ceilings, geometry, plan, tell)
    work = {
        geometry: sum(part.operations for part in _count(contest, geometry, Precision.BF16).values())
        for geometry in plan.shapes
    }
    return Outcome(ceilings, work, results)


def _start_ours(contest: Contest, stack: ExitStack, tell: Tell) -> Iterator[Contender]:
    """One fleet for each precision, whatever the attentions."""
    from h3.bench.ours import OurSteps

    fleets: dict[Precision, BenchFleet] = {}
    for precision, attention in contest.entries:
        if precision not in fleets:
            tell(f"loading h3render {precision}")
            fleets[precision] = stack.enter_context(
                running(
                    OurSteps,
                    contest.world_size,
                    on_gpus=contest.on_gpus,
                    model=contest.model,
                    mode=contest.mode,
                    precision=precision,
                    head_groups=contest.head_groups,
                )
            )
        name = f"h3render {precision}" + (f" {attention}" if attention is not AttentionName.AUTO else "")
        yield Contender(name, fleets[precision], attention, precision)


def _start_peer(contest: Contest, stack: ExitStack, tell: Tell) -> BenchFleet:
    from h3.bench.diffusers_peer import DiffusersSteps

    tell("loading diffusers")
    return stack.enter_context(
        running(DiffusersSteps, contest.world_size, on_gpus=contest.on_gpus, config=contest.config)
    )


def _choose_ways(
    peer: BenchFleet, contest: Contest, geometry: Geometry, known_s: dict[str, float], tell: Tell
) -> list[Contender]:
    """The fastest of the peer's backends at this shape, as it is and compiled.

    known_s  of another shape, to be filled at the first: a backend that was slow there is not asked again
    """
    from h3.bench.diffusers_peer import BACKENDS, COMPILED

    asked: Sequence[str] = BACKENDS if contest.on_gpus else BACKENDS[:1]
    if known_s:
        asked = [backend for backend, seconds in known_s.items() if seconds < _HOPELESS * min(known_s.values())]
    times: dict[str, float] = {}
    for backend in asked:
        try:
            times[backend] = peer.ask(TakeSteps(geometry, 1, backend), Turn).step_s[0]
        except ConfigError as exc:
            tell(f"diffusers: {backend} does not run here: {exc}")
    if not times:
        raise ConfigError("none of diffusers' attention backends runs here")
    known_s.update(times)
    tell("diffusers: " + ", ".join(f"{backend} {seconds:.3f} s" for backend, seconds in times.items()))
    fastest = min(times, key=lambda backend: times[backend])
    ways = [("eager", fastest), *([("compiled", fastest + COMPILED)] if contest.compiles else [])]
    return [Contender(f"diffusers {name}", peer, way) for name, way in ways]


def _measure_shape(
    contenders: Sequence[Contender],
    contest: Contest,
    ceilings: Ceilings,
    geometry: Geometry,
    plan: Plan,
    tell: Tell,
) -> list[Result]:
    results = {each.name: Result(each.name, Layout(geometry, TEXT_TOKENS)) for each in contenders}
    for _ in range(plan.rounds):
        for contender in (*contenders, *reversed(contenders)):
            result = results[contender.name]
            if result.refused:
                continue
            try:
                turn = contender.take(geometry, plan.steps)
            except ConfigError as exc:
                if contender.precision is not None:
                    raise
                result.refused = str(exc)
                tell(f"{contender.name}: {exc}")
                continue
            result.turns.append(turn)
            tell(f"{contender.name}: {geometry.width}x{geometry.height}/{geometry.frames} {min(turn.step_s):.3f} s")
    for contender in contenders:
        if contender.precision is not None:
            result = results[contender.name]
            parts = contender.fleet.ask(WatchParts(geometry, 2, contender.way), Parts)
            result.parts = _judge(parts, contest, ceilings, geometry, contender.precision, result.turns[0].attention)
    return list(results.values())


def _judge(
    parts: Parts, contest: Contest, ceilings: Ceilings, geometry: Geometry, precision: Precision, attention: str
) -> dict[Part, PartTime]:
    """Times beside floors, of one rank."""
    judged = {}
    for part, work in _count(contest, geometry, precision).items():
        share = Work(work.operations / contest.world_size, work.bytes / contest.world_size)
        rate = ceilings.operations_per_s(part, precision, attention)
        floor = floor_s(share, rate, ceilings.bytes_per_s)
        judged[part] = PartTime(parts.seconds[part], floor, share.operations, share.bytes)
    if contest.world_size > 1:
        judged[Part.TRANSPORT] = PartTime(parts.seconds[Part.TRANSPORT], 0.0, 0.0, 0.0)
    return judged


def _count(contest: Contest, geometry: Geometry, precision: Precision) -> dict[Part, Work]:
    return count_work(contest.config, Layout(geometry, TEXT_TOKENS), precision)
