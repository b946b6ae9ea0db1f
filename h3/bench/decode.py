"""Times the video decoder as a render uses it, and as diffusers' class decodes a whole video, by turns."""

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from h3.bench.decode_ranks import DecodeAll, Decoded, DecodeRanks
from h3.bench.fleet import running
from h3.bench.turns import Tell
from h3.model_folder import ModelFolder
from h3.sequence import Geometry
from h3.vae_files import read_video_vae


@dataclass(frozen=True, slots=True)
class Contest:
    """What is measured."""

    model: Path | None  # None: random weights
    shapes: tuple[Geometry, ...]
    world_size: int
    on_gpus: bool
    with_diffusers: bool
    rounds: int


@dataclass(slots=True)
class Result:
    """Of one way at one shape."""

    name: str
    geometry: Geometry
    turns: list[Decoded] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median, with the encoding."""
        return statistics.median(turn.seconds for turn in self.turns)


def measure(contest: Contest, tell: Tell) -> list[Result]:
    """Raises CheckpointError, ConfigError, RanksFailed."""
    if contest.model is not None:
        read_video_vae(ModelFolder.below(contest.model).video_vae).check()  # before a rank is started
    ways = {"h3render": False, **({"diffusers": True} if contest.with_diffusers else {})}
    results: list[Result] = []
    with running(DecodeRanks, contest.world_size, on_gpus=contest.on_gpus, model=contest.model) as ranks:
        for geometry in contest.shapes:
            found = {name: Result(name, geometry) for name in ways}
            for name in [*ways, *reversed(ways)] * contest.rounds:
                turn = ranks.ask(DecodeAll(geometry, ways[name]), Decoded)
                found[name].turns.append(turn)
                tell(f"{name}: {geometry.width}x{geometry.height}/{geometry.frames} {turn.seconds:.2f} s")
            results += found.values()
    return results
