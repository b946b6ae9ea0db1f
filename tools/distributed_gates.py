"""Both distributed modes at H3's true size on two GPUs against one, with random weights: agreement and memory.

    python tools/distributed_gates.py [REPORT.json] [--layers N] [--ranks N]

Gates are printed and kept with their limits; the exit code is 1 if one is missed. `--layers` makes a quick run.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script that is run sees only its own folder

from h3.bench.nccl_log import logging_nccl
from h3.cli import pick_device, plain_errors
from h3.denoise_fleet import DenoiseRequest, DenoiseRunner, Outcome, Ranks, running_ranks
from h3.errors import ConfigError
from h3.machine import describe_machine
from h3.nvfp4 import TILE_ROWS
from h3.parallel.mode import Mode
from h3.placement import DTYPE_BYTES, KEPT_TIMESTEPS, predict_modulation_bytes, predict_token_bytes
from h3.precision import Precision
from h3.provenance import sha256
from h3.sampler import Latents, make_schedule
from h3.sequence import Geometry, Layout
from h3.untrained import H3, Untrained, with_curve
from tools.gates import Gates, judge, relative
from tools.launch.arguments import SEED, SHAPE, STEPS, TEXT_TOKENS
from tools.launch.mutants import DropsBias, SwapsHeads
from tools.launch.text_states import write_random_states

SMALL = Geometry(256, 160, 39)
PARITY = 2e-2  # relative L2 of the latents after all steps, bf16
MUTATION = 10 * PARITY  # what a mistake must exceed


@dataclass(frozen=True)
class Bench:
    """Renders of one model, as one GPU or several make them."""

    model: Untrained
    states: Path
    world_size: int
    gates: Gates

    def render(
        self, mode: Mode, world_size: int, *shapes: Geometry, runner: type[DenoiseRunner] = DenoiseRunner
    ) -> list[Outcome]:
        """One after the other, in one fleet."""
        ranks = Ranks(world_size, pick_device(None).type, mode, self.model.precision)
        with logging_nccl() as read_transports, running_ranks(self.model, ranks, runner) as fleet:
            outcomes = [fleet.run(self._request(shape, meters=world_size > 1), lambda _: None) for shape in shapes]
            if world_size > 1:
                self.gates.tell(f"{self.name(mode)}_nccl_transport", read_transports())
        return outcomes

    def _request(self, shape: Geometry, *, meters: bool) -> DenoiseRequest:
        return DenoiseRequest(self.states, None, shape, STEPS, SEED, meters_transport=meters)

    def name(self, mode: Mode) -> str:
        return f"{self.model.precision}_{mode}"

    def compare(self, alone: Outcome, together: Outcome, mode: Mode) -> None:
        """Latents, and what each rank has in memory."""
        for part, error in distances(together.latents, alone.latents).items():
            self.gates.at_most(f"{self.name(mode)}_{part}_against_one_gpu", error, PARITY)
        weights = [end.weight_bytes for end in together.ends]
        self.gates.tell(f"{self.name(mode)}_weight_bytes", {"one": alone.ends[0].weight_bytes, "ranks": weights})
        peaks = [end.peak_bytes for end in together.ends]
        self.gates.tell(f"{self.name(mode)}_peak_bytes", {"one": alone.ends[0].peak_bytes, "ranks": peaks})
        measured = max(peak - weight for peak, weight in zip(peaks, weights, strict=True))
        predicted = predict_activations(self.model, mode, self.world_size)
        self.gates.tell(f"{self.name(mode)}_activation_bytes", {"measured": measured, "predicted": predicted})
        self.gates.at_most(f"{self.name(mode)}_activation_over_prediction", measured / predicted, 1.0)
        self.gates.tell(f"{self.name(mode)}_step_s", {"one": fastest(alone), "ranks": fastest(together)})
        self.gates.tell(f"{self.name(mode)}_every_step_s", {"one": step_times(alone), "ranks": step_times(together)})
        self.gates.tell(f"{self.name(mode)}_latents_sha256", {"one": digests(alone), "ranks": digests(together)})
        self.gates.tell(f"{self.name(mode)}_attention_backend", together.ends[0].provenance.attention_backend)
        sent = [end.transport for end in together.ends]
        self.gates.tell(f"{self.name(mode)}_transport", [each and [each.seconds, each.sent_bytes] for each in sent])


def predict_activations(model: Untrained, mode: Mode, world_size: int) -> int:
    """As the placement counts, of the rank with most tokens; with the modulation and the scratch, which it adds."""
    config, shares = model.config, 1 if mode.keeps_rows else world_size
    tokens = -(-Layout(SHAPE, TEXT_TOKENS).tokens // world_size)
    timesteps = make_schedule(STEPS).timesteps().numel()
    modulation = predict_modulation_bytes(config) * timesteps // KEPT_TIMESTEPS
    fc1 = DTYPE_BYTES * config.hidden_size * 2 * (config.ffn_dim // shares + TILE_ROWS)
    per_token = predict_token_bytes(config, world_size, keeps_rows=mode.keeps_rows)
    return tokens * per_token + modulation + (fc1 if model.precision is Precision.NVFP4 else 0)


def fastest(outcome: Outcome) -> float:
    return min(step_times(outcome))


def step_times(outcome: Outcome) -> list[float]:
    """Of rank 0, in order."""
    return [step.seconds for step in outcome.steps]


def digests(outcome: Outcome) -> dict[str, str]:
    return {"video": sha256(outcome.latents.video), "audio": sha256(outcome.latents.audio)}


def distances(found: Latents, expected: Latents) -> dict[str, float]:
    """Relative L2 of each modality."""
    pairs = {"video": (found.video, expected.video), "audio": (found.audio, expected.audio)}
    return {part: relative(*pair) for part, pair in pairs.items()}


def measure_modes(bench: Bench) -> Outcome:
    """Both modes on one GPU, where they are the same, and on several. Returns one GPU's render of the small shape."""
    small, alone = bench.render(Mode.ULYSSES, 1, SMALL, SHAPE)
    [other] = bench.render(Mode.TENSOR, 1, SMALL)
    apart = max(distances(other.latents, small.latents).values())
    bench.gates.at_most(f"{bench.model.precision}_modes_at_one_rank", apart, 0)
    for mode in Mode:
        once, again, together = bench.render(mode, bench.world_size, SMALL, SMALL, SHAPE)
        for part, error in distances(once.latents, small.latents).items():
            bench.gates.at_most(f"{bench.name(mode)}_small_{part}_against_one_gpu", error, PARITY)
        bench.gates.at_most(f"{bench.name(mode)}_run_twice", max(distances(again.latents, once.latents).values()), 0)
        bench.compare(alone, together, mode)
    return small


def measure_mutants(bench: Bench, alone: Outcome) -> None:
    """Mistakes that must be seen."""
    for mode in Mode:
        for runner in (SwapsHeads, DropsBias):
            [spoiled] = bench.render(mode, bench.world_size, SMALL, runner=runner)
            for part, error in distances(spoiled.latents, alone.latents).items():
                bench.gates.at_least(f"{bench.name(mode)}_{runner.__name__}_{part}", error, MUTATION)


def main(
    target: Annotated[Path | None, typer.Argument(help="Where the JSON goes; else it is printed.")] = None,
    layers: Annotated[int, typer.Option(help="Blocks; fewer for a quick run.")] = H3.num_layers,
    ranks: Annotated[int, typer.Option(min=1, help="GPUs.")] = 2,
) -> None:
    with plain_errors():
        if (gpus := torch.cuda.device_count()) < ranks:
            raise ConfigError(f"--ranks {ranks}: takes a GPU for each rank; torch sees {gpus} here")
    config = with_curve(H3).model_copy(update={"num_layers": layers})

    def measure(gates: Gates) -> None:
        with tempfile.TemporaryDirectory() as folder:
            states = write_random_states(Path(folder), TEXT_TOKENS, config.text_dim)
            for precision in (Precision.BF16, Precision.NVFP4):
                bench = Bench(Untrained(config, precision=precision), states, ranks, gates)
                small = measure_modes(bench)
                if precision is Precision.BF16:
                    measure_mutants(bench, small)

    judge(measure, {**describe_machine(), "layers": layers, "ranks": ranks, "steps": STEPS}, target)


if __name__ == "__main__":
    typer.run(main)
