"""Breaks a worker's fleet in mid-denoise, and writes how long it takes until the next step runs and where that goes.

python tools/restart_times.py benchmarks/reports/restart-2xH200.json
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script that is run sees only its own folder

from h3.convert import Target, save_denoiser
from h3.machine import describe_machine
from h3.model import Denoiser
from h3.tiny import write_tiny
from h3.untrained import TINY
from tests.worker.restart_runners import Fault
from tests.worker.restarts import Restarts, Setting, running_worker

REPOSITORY = Path(__file__).resolve().parents[1]
REASON_LINES = 2  # the rest are tracebacks


class Backend(StrEnum):
    NCCL = "nccl"
    GLOO = "gloo"


# Both take some tenths of a second for a step, so that a fault is in the middle of one. On GPUs that needs more layers
# than the tiny model has.
ON_GPUS, LAYERS_ON_GPUS = Setting("nccl", 1344, 768, 90, steps=10, fault_step=5, step_limit_s=10.0), 40
ON_CPU = Setting("gloo", 448, 256, 39, steps=6, fault_step=3, step_limit_s=10.0)


def main(
    report: Annotated[Path, typer.Argument(help="Where to write a JSON report.")],
    ranks: Annotated[int, typer.Option(min=2, help="Rank processes.")] = 2,
    backend: Annotated[Backend | None, typer.Option(help="Else NCCL where there are so many GPUs.")] = None,
) -> None:
    """Measure a rank that enters one collective fewer, and one that is killed. Exit code 1 if a claim is broken."""
    setting, report = choose_setting(ranks, backend), report.resolve()
    os.chdir(REPOSITORY)  # the worker, a child, finds its modules there
    found = {**describe_machine(on_gpus=setting.backend == "nccl"), **asdict(setting), "layers": layers_of(setting)}
    with tempfile.TemporaryDirectory(prefix="h3-restarts-") as name:
        for news in measure(setting, Path(name)):  # written as it comes: what follows may fail
            found |= news
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(json.dumps(found, indent=1) + "\n")
            typer.echo(json.dumps(news, indent=1))
    raise typer.Exit(0 if all(is_good(found.get(fault)) for fault in Fault) else 1)


def choose_setting(ranks: int, backend: Backend | None) -> Setting:
    has_gpus = torch.cuda.device_count() >= ranks
    if backend is Backend.NCCL and not has_gpus:
        raise typer.BadParameter(f"{ranks} ranks need as many GPUs", param_hint="--backend")
    on_gpus = has_gpus and backend is not Backend.GLOO
    return replace(ON_GPUS if on_gpus else ON_CPU, ranks=ranks)


def layers_of(setting: Setting) -> int:
    return LAYERS_ON_GPUS if setting.backend == "nccl" else TINY.num_layers


def write_checkpoint(root: Path, layers: int) -> None:
    """The tiny one, with so many layers."""
    folder = write_tiny(root, seed=0)
    shutil.rmtree(folder.transformer)
    torch.manual_seed(0)
    config = TINY.model_copy(update={"num_layers": layers})
    save_denoiser(Denoiser(config), folder.transformer, Target.OFFICIAL)


def measure(setting: Setting, folder: Path) -> Iterator[dict[str, object]]:
    """What the report is to say more, as soon as it is known."""
    checkpoint = folder / "checkpoint"
    try:
        write_checkpoint(checkpoint, layers_of(setting))
        say("starting a worker, and rendering undisturbed")
        with running_worker(setting, checkpoint, folder) as restarts:
            yield {"step_s": round(restarts.step_s, 3), "used_mib_at_start": restarts.used_mib()}
            for fault in Fault:
                say(f"rendering with a fault: {fault}")
                yield {fault: describe(restarts, fault)}
    except Exception as error:  # whatever it is belongs into the report
        yield {"error": f"{type(error).__name__}: {error}"}


def describe(restarts: Restarts, fault: Fault) -> dict[str, object]:
    """One that cannot be measured leaves the next its turn."""
    try:
        restart = restarts.disturb(fault)
    except Exception as error:
        say(restarts.log_tail())
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "seconds": rounded(restart.timeline.parts()),
        "details": rounded(restart.timeline.details()),
        "reason": " ".join(restart.reason.splitlines()[:REASON_LINES]),
        "resumed_step": restart.resumed_step,
        "used_mib_at_restart": restarts.used_mib(),
        "claims": restart.claims,
    }


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(figure, 3) for name, figure in figures.items()}


def is_good(found: object) -> bool:
    return isinstance(found, dict) and all(found.get("claims", {"measured": False}).values())


def say(text: str) -> None:
    typer.echo(text, err=True)


if __name__ == "__main__":
    typer.run(main)
