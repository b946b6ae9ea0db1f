"""What the environment says to a worker. Read once, by the command line."""

from enum import StrEnum
from pathlib import Path

from pydantic import Field, PositiveFloat, PositiveInt

from jobs.settings import ClientSettings, default_cache_dir


class Backend(StrEnum):
    """How ranks talk to each other."""

    AUTO = "auto"  # NCCL where there is a GPU, else Gloo
    NCCL = "nccl"  # one GPU a rank
    GLOO = "gloo"  # on the CPU


class LogFormat(StrEnum):
    """How log lines look."""

    AUTO = "auto"  # text on a terminal, else JSON
    TEXT = "text"
    JSON = "json"


class WorkerSettings(ClientSettings):
    """A client's settings, and those of one machine."""

    model_path: Path | None = None  # root of a checkpoint in the official layout
    runner: str = "h3.runner:H3Runner"  # module:class
    backend: Backend = Backend.AUTO
    world_size: PositiveInt | None = None  # ranks; else every visible GPU, or 2 on the CPU
    spool_dir: Path | None = None  # where outputs wait for upload; else a temporary folder
    cache_dir: Path = Field(default_factory=default_cache_dir)  # the demo's checkpoint and logs
    start_timeout_s: PositiveFloat = 1800.0  # to load the model on every rank
    log_format: LogFormat = LogFormat.AUTO
