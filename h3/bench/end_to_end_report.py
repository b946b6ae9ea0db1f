"""Tells what a whole render took: a table for people, and everything for a file."""

from dataclasses import asdict

from h3.bench.end_to_end import Outcome, Phase, Rendered
from h3.bench.load import Subject
from h3.bench.load_report import describe_ranks, describe_start
from h3.bench.report import VERSION, open_console, open_table
from h3.machine import describe_machine
from h3.text_files import CONDITIONING_LAYER


def describe_renders(subject: Subject, outcome: Outcome) -> dict[str, object]:
    """Everything, for a file."""
    return {
        "version": VERSION,
        "machine": describe_machine(on_gpus=subject.on_gpus),
        "model": str(subject.path),
        "mode": subject.mode,
        "world_size": subject.world_size,
        "text_encoder": {"layers": outcome.text_layers, "published_layers": CONDITIONING_LAYER},
        "request": outcome.request.model_dump(mode="json"),
        "provenance": outcome.cold.report.provenance,
        "page_cache": asdict(outcome.warming),
        "start": describe_start(outcome.start) | {"shutdown_s": outcome.shutdown_s},
        "cold": _describe(outcome.cold),
        "warm": _describe(outcome.warm),
        "same_latents": outcome.is_reproduced,
    }


def _describe(rendered: Rendered) -> dict[str, object]:
    timings = rendered.report.timings
    return {
        "seconds": rendered.seconds,
        "phases": dict(rendered.phases),
        "step_s": list(timings.step_s),
        "median_step_s": rendered.median_step_s,
        "sound_s": timings.sound_s,
        "decode_s": timings.decode_s,
        "until_first_segment_s": rendered.first_segment_s,
        "text_tokens": rendered.text_tokens,
        "video_bytes": rendered.video_bytes,
        "peak_bytes": dict(rendered.peak_bytes),
        "latents_sha256": rendered.report.latents_sha256,
    }


def print_renders(subject: Subject, outcome: Outcome) -> None:
    """To stdout."""
    console, request, provenance = open_console(), outcome.request, outcome.cold.report.provenance
    many = f"{subject.world_size} rank{'s' if subject.world_size > 1 else ''}"
    table = open_table(
        f"A render of {request.width}x{request.height}, {request.frames} frames, {request.steps} steps on {many}, "
        f"{provenance['precision']}, {subject.mode}",
        "",
        *("cold", "share", "warm", "share"),
    )
    both = (outcome.cold, outcome.warm)
    for phase in Phase:
        table.add_row(phase, *[cell for each in both for cell in _cells(each.phases[phase], each)])
    table.add_section()
    table.add_row("all", *[cell for each in both for cell in _cells(each.seconds, each)])
    console.print(table)
    console.print()
    for line in _remarks(outcome):
        console.print(line)


def _cells(seconds: float, rendered: Rendered) -> tuple[str, str]:
    return f"{seconds:.2f} s", f"{seconds / rendered.seconds:.1%}"


def _remarks(outcome: Outcome) -> list[str]:
    cold, warm = outcome.cold, outcome.warm
    remarks = [
        f"a step takes {cold.median_step_s:.3f} s cold and {warm.median_step_s:.3f} s warm, in the median",
        f"the first segment is there {cold.first_segment_s:.2f} s after a cold start, "
        f"and {warm.first_segment_s:.2f} s after a request",
        f"latents: {'the same in both' if outcome.is_reproduced else 'NOT the same in both'}",
        *describe_ranks(outcome.start),
    ]
    if peaks := {phase: size for phase, size in warm.peak_bytes.items() if size}:
        told = ", ".join(f"{phase} {size / 1e9:.1f} GB" for phase, size in peaks.items())
        remarks.append(f"GPU memory of rank 0 at its most, warm: {told}")
    if outcome.text_layers < CONDITIONING_LAYER:
        remarks.append(
            f"the text encoder is small: {outcome.text_layers} layers where the published one runs "
            f"{CONDITIONING_LAYER}, so a real one takes longer to load and to encode ({warm.text_tokens} tokens here)"
        )
    return remarks
