"""JSON files of results: looked into before the work, and written whole or not at all."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

from h3.errors import ConfigError
from h3.report import Run

VERSION = 1
RUNS = "runs"

Report = dict[str, object]  # as `h3.on_files.describe` makes it, and more


def read_results(path: Path, member: str) -> list[Report]:
    """What a file holds under this name; nothing if there is no file. Raises ConfigError for a file of others."""
    try:
        results: list[Report] = json.loads(path.read_bytes())[member]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as exc:
        raise ConfigError(f"{path} holds no {member}: name another file, or a new one") from exc
    return results


def read_runs(path: Path) -> list[Report]:
    """Those that `keep_run` has kept. Raises ConfigError for a file of others."""
    reports = read_results(path, RUNS)
    try:
        for report in reports:
            parse_run(report)
    except ValueError as exc:
        raise ConfigError(f"{path} holds runs of another kind ({exc}): name another file, or a new one") from exc
    return reports


def require_writable(path: Path) -> None:
    """Make the folder. Raises OSError where `write_json` would, after the work."""
    path.parent.mkdir(parents=True, exist_ok=True)
    TemporaryFile(dir=path.parent).close()


def keep_run(path: Path, report: Report) -> None:
    """Append it, in place of an earlier one of the same shape, mode, ranks, precision, attention, steps and seed."""
    write_json(path, {"version": VERSION, RUNS: put(read_runs(path), report)})


def put(reports: Sequence[Report], report: Report) -> list[Report]:
    return [*(other for other in reports if identify(other) != identify(report)), report]


def identify(report: Report) -> tuple[object, ...]:
    """What two runs may not have in common if both are to be kept."""
    run = parse_run(report)
    known = run.provenance
    ranks = known.mode, known.world_size, known.precision, known.attention_backend
    return run.width, run.height, run.frames, run.steps, run.seed, *ranks


def parse_run(report: Report) -> Run:
    """As `h3render report` reads it. Raises ValueError."""
    return Run.model_validate_json(json.dumps(report))


def write_json(path: Path, content: object) -> None:
    """Atomically; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)
