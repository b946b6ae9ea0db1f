"""Renders the prompts that were kept from training and has the judge look at each.

python -m tests.quality.report build/demo-model benchmarks/reports/demo-model.json
"""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated

import torch
import typer

from h3.model_folder import ModelFolder
from h3.precision import Precision
from h3.sequence import Geometry
from tests.quality.judge import ASPECTS, judge, said, wrong
from tests.quality.studio import Studio
from tools.demo_model.scenes import HELD_OUT, held_out_prompts


def count(prompts: dict[str, dict[str, str]]) -> dict[str, dict[str, int]]:
    """Of prompts with what was seen otherwise: in how many each aspect was asked for, and in how many it was right."""
    asked = Counter(aspect for prompt in prompts for aspect in said(prompt))
    missed = Counter(aspect for seen in prompts.values() for aspect in seen)
    return {
        aspect: {"asked": asked[aspect], "right": asked[aspect] - missed[aspect]} for aspect in ASPECTS if asked[aspect]
    }


def main(
    model: Annotated[Path, typer.Argument(help="Root of a model.")],
    report: Annotated[Path | None, typer.Argument(help="Where to write a JSON report.")] = None,
    steps: Annotated[int, typer.Option(min=1)] = 16,
    prompts: Annotated[int, typer.Option(min=1, max=HELD_OUT)] = HELD_OUT,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHTxFRAMES")] = "256x160x39",
    device: Annotated[str, typer.Option()] = "cpu",
    precision: Annotated[Precision | None, typer.Option(help="Whatever the files have, if not said.")] = None,
) -> None:
    """Say in words how good a model is."""
    folder = ModelFolder.below(model)
    studio, geometry = Studio.open(folder, precision, torch.device(device)), Geometry.parse(size)
    seen: dict[str, dict[str, str]] = {}
    for seed, (_, prompt) in enumerate(held_out_prompts()[:prompts]):
        with tempfile.TemporaryDirectory() as work:
            video = studio.render(Path(work), prompt, geometry=geometry, steps=steps, seed=seed)
            seen[prompt] = wrong(prompt, judge(video))
        typer.echo(f"{prompt}: {seen[prompt] or 'right'}")
    right = count(seen)
    typer.echo(json.dumps(right))
    if report is not None:
        made = {"version": 1, "model": folder.digest(), "size": size, "steps": steps, "right": right, "wrong": seen}
        report.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
