"""Renders prompts that were kept from training, in each way that the farm renders, and has the judge look at them.

python -m tests.quality.report build/demo-model benchmarks/reports/demo-model.json
python -m tests.quality.report build/demo-model benchmarks/reports/demo-model.json --way fp8 --device cuda
"""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated

import torch
import typer

from h3.machine import describe_machine
from h3.model_folder import ModelFolder
from tests.quality.drawn import SIZE, STEPS
from tests.quality.judge import ASPECTS, first_frame_psnr_db, judge, said, wrong
from tests.quality.ways import EVERYWHERE, FIRST_FRAME, OF_THE_MODEL, WAYS
from tools.demo_model.scenes import HELD_OUT, held_out_prompts

FEWER = 20  # prompts, where it is not the model that is judged but a way to render with it


def count(prompts: dict[str, dict[str, str]]) -> dict[str, dict[str, int]]:
    """Of prompts with what was seen otherwise: in how many each aspect was asked for, and in how many it was right."""
    asked = Counter(aspect for prompt in prompts for aspect in said(prompt))
    missed = Counter(aspect for seen in prompts.values() for aspect in seen)
    return {
        aspect: {"asked": asked[aspect], "right": asked[aspect] - missed[aspect]} for aspect in ASPECTS if asked[aspect]
    }


def places_of(way: str) -> range:
    """Of the prompts that a way is judged by, among those kept from training."""
    return range(HELD_OUT if way in OF_THE_MODEL else FEWER)


def judge_way(way: str, model: Path, device: torch.device, places: range) -> dict[str, object]:
    """What the judge says of these prompts rendered in it, whose seeds are their places."""
    held_out, seen = held_out_prompts(), dict[str, dict[str, str]]()
    kept: list[float] = []
    with WAYS[way](model, device) as render:
        for place in places:
            scene, prompt = held_out[place]
            with tempfile.TemporaryDirectory() as folder:
                work = Path(folder) / "render"
                video = render(work, scene, prompt, place)
                seen[prompt] = wrong(prompt, judge(video))
                if (work / FIRST_FRAME).exists():
                    kept.append(first_frame_psnr_db(video, work / FIRST_FRAME))
            typer.echo(f"{way}: {prompt}: {seen[prompt] or 'right'}")
    outcome: dict[str, object] = {"prompts": len(places), "right": count(seen)}
    if kept:
        outcome["first_frame_psnr_db"] = {"least": round(min(kept), 1), "mean": round(sum(kept) / len(kept), 1)}
    return outcome | {"wrong": {prompt: otherwise for prompt, otherwise in seen.items() if otherwise}}


def main(
    model: Annotated[Path, typer.Argument(help="Root of a model.")],
    report: Annotated[Path, typer.Argument(help="A JSON report: written, or what it has of this model kept.")],
    way: Annotated[list[str] | None, typer.Option(help=f"Only these, of {'; '.join(WAYS)}.")] = None,
    device: Annotated[str, typer.Option(help="For the ways that are a precision; the others are on CPUs.")] = "cpu",
) -> None:
    """Say in words how good a model is, and that every way to render with it is as good."""
    told = {
        "version": 1,
        "model": ModelFolder.below(model).digest(),
        "size": f"{SIZE.width}x{SIZE.height}x{SIZE.frames}",
        "steps": STEPS,
        "ways": {},
    }
    if report.exists():
        before = json.loads(report.read_text())
        if before["model"] != told["model"]:
            raise typer.BadParameter(f"{report} is of another model: name a new file, or delete that one first")
        told["ways"] = before["ways"]
    machine = describe_machine(on_gpus=device == "cuda")
    for name in way or EVERYWHERE:
        told["ways"][name] = judge_way(name, model, torch.device(device), places_of(name)) | {"machine": machine}
        report.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
