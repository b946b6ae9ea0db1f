"""Trains the small H3 that the demo draws with, from nothing but a seed, and writes it in the official layout.

python tools/train_demo_model.py build/demo-model --minutes 8

Run it again until it says that it is done: what is finished is kept, what is not goes on where it was. About
twelve minutes of one H200; a CPU is for trying, with --scale.
"""

import random
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script that is run sees only its own folder

from h3.convert import Target, save_denoiser
from h3.machine import describe_machine
from h3.model_folder import PARTITION
from h3.sequence import Geometry
from h3.text import load_text_encoder
from h3.tiny import write_audio_vae, write_video_vae
from h3.vae import load_audio_vae, load_video_vae
from tools.demo_model import audio_vae, denoiser, video_vae
from tools.demo_model.clips import Clips, sample_clips
from tools.demo_model.examples import Statistics, make_examples, make_texts
from tools.demo_model.scenes import Scene, split_scenes
from tools.demo_model.trainer import Plan
from tools.demo_model.training_report import write_report
from tools.demo_model.words import write_text_encoder, write_tokenizer

CLIPS, KEYFRAMED = 4096, 1024  # that the denoiser is trained on
PLANS = {
    "audio": Plan(2400, 60.0, 2e-3, mean_over=100),
    "video": Plan(5000, 120.0, 1.5e-3, mean_over=100),
    "denoiser": Plan(8000, 400.0, 1.2e-3),
}
GEOMETRY = Geometry(256, 160, 39)


@dataclass(frozen=True, slots=True)
class Training:
    """Where everything is, and how long and large it is made."""

    out: Path
    state: Path
    device: torch.device
    deadline: float  # time.monotonic()
    seed: int
    scale: float  # of the numbers of steps and clips

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def scaled(self, number: int) -> int:
        return max(1, round(number * self.scale))

    def plan(self, name: str) -> Plan:
        return replace(PLANS[name], steps=self.scaled(PLANS[name].steps))

    def file(self, name: str) -> Path:
        """What a training goes on from."""
        return self.state / f"{name}.pt"

    def draw(self, count: int, seed: int) -> tuple[list[Scene], Clips]:
        """So many clips of scenes that may be trained on."""
        scenes = random.Random(self.seed + seed).choices(split_scenes()[0], k=count)  # noqa: S311
        return scenes, sample_clips(scenes, GEOMETRY, self.seed + seed).to(self.device)

    def is_done(self, stage: str) -> bool:
        return (self.state / f"{stage}.done").is_file()

    def close(self, stage: str) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / f"{stage}.done").touch()


def make_words(training: Training) -> bool:
    """As all of these: returns whether it is done."""
    ids = write_tokenizer(training.out / "tokenizer")
    write_text_encoder(training.out / "text_encoder", ids, training.seed)
    return True


def make_training_texts(training: Training) -> bool:
    scenes, clips = training.draw(training.scaled(CLIPS), 3)
    text = load_text_encoder(training.out / "text_encoder", training.out / "tokenizer", training.device)
    texts = make_texts(scenes, clips, text, training.scaled(KEYFRAMED))
    training.state.mkdir(parents=True, exist_ok=True)
    torch.save([part.to(torch.device("cpu")) for part in texts], training.state / "texts.pt")
    return True


def make_audio_vae(training: Training) -> bool:
    vae = audio_vae.build_audio_vae(training.device)
    scenes, clips = training.draw(training.scaled(4096), 1)
    plan = training.plan("audio")
    if not audio_vae.train(vae, scenes, GEOMETRY, plan, 32, training.file("audio"), training.deadline):
        return False
    known = Statistics.of(audio_vae.encode_all(vae, clips.rows(slice(0, 512)), 16), 3)
    _keep_statistics(vae, known)
    write_audio_vae(vae.float().cpu(), training.out / "audio_vae")
    return True


def make_video_vae(training: Training) -> bool:
    vae = video_vae.build_video_vae(training.device, training.dtype)
    _, clips = training.draw(training.scaled(1024), 2)
    latents, noise = video_vae.encode_all(vae, clips, 16)
    plan, file = training.plan("video"), training.file("video")
    if not video_vae.train_decoder(vae, clips, latents, noise, plan, 32, file, training.deadline):
        return False
    _keep_statistics(vae, Statistics.of(latents, 1))
    write_video_vae(vae.float().cpu(), training.out / "video_vae")
    return True


def _keep_statistics(vae: torch.nn.Module, known: Statistics) -> None:
    vae.register_to_config(latents_mean=known.mean.tolist(), latents_std=known.std.tolist())


def make_denoiser(training: Training) -> bool:
    model = denoiser.build_denoiser(training.device, training.dtype)
    _, clips = training.draw(training.scaled(CLIPS), 3)
    texts = [part.to(training.device) for part in torch.load(training.state / "texts.pt", weights_only=False)]
    video = load_video_vae(training.out / "video_vae", training.device, training.dtype)
    audio = load_audio_vae(training.out / "audio_vae", training.device)
    examples = make_examples(clips, texts, video, audio)
    typer.echo(f"{len(clips)} clips encoded")
    plan = training.plan("denoiser")
    if not denoiser.train(model, examples, plan, 128, training.file("denoiser"), training.deadline):
        return False
    save_denoiser(model.cpu(), training.out / "transformer", Target.OFFICIAL)
    return True


STAGES = {
    "words": make_words,
    "texts": make_training_texts,
    "audio": make_audio_vae,
    "video": make_video_vae,
    "denoiser": make_denoiser,
}


def main(
    out: Annotated[Path, typer.Argument(help="Where the model is written.")],
    state: Annotated[Path | None, typer.Option(help="Where training goes on from; OUT-state if not said.")] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Of this slice.")] = 8.0,
    scale: Annotated[float, typer.Option(min=0.0, help="Of all numbers of steps and clips.")] = 1.0,
    seed: Annotated[int, typer.Option()] = 0,
    stage: Annotated[list[str] | None, typer.Option(help=f"Only these, of {', '.join(STAGES)}.")] = None,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Train until done, or until the slice is over: then exit code 1, and the same command goes on."""
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    deadline = time.monotonic() + 60 * minutes
    training = Training(
        out / PARTITION, state or out.with_name(f"{out.name}-state"), torch.device(device), deadline, seed, scale
    )
    for name in stage or STAGES:
        began = time.monotonic()
        if not training.is_done(name):
            if not STAGES[name](training):
                raise typer.Exit(1)
            training.close(name)
            typer.echo(f"{name}: done in {time.monotonic() - began:.0f} s")
    machine = describe_machine(on_gpus=training.device.type == "cuda")
    write_report([training.file(name) for name in PLANS], machine, out)


if __name__ == "__main__":
    typer.run(main)
