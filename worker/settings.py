"""What the environment says to a worker. Read once, by the command line."""

from enum import StrEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated

from pydantic import Field, IPvAnyAddress, PositiveFloat, PositiveInt

from jobs.folders import default_cache_dir
from jobs.lease import LEASE_S
from jobs.logs import LogFormat
from jobs.request import Attention, Mode, Precision
from jobs.settings import ClientSettings

WorkerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]


class Backend(StrEnum):
    """How ranks talk to each other."""

    AUTO = "auto"  # NCCL where there is a GPU, else Gloo
    NCCL = "nccl"  # one GPU a rank
    GLOO = "gloo"  # on the CPU


class WorkerSettings(ClientSettings):
    """A client's settings, and those of one machine."""

    model_path: Path | None = None  # root of a checkpoint in the official layout
    runner: str = "h3.runner:H3Runner"  # module:class
    backend: Backend = Backend.AUTO
    world_size: PositiveInt | None = None  # ranks; else every visible GPU, or 2 on the CPU
    mode: Mode = Mode.AUTO  # how they share a render; auto: as the runner does by itself
    precision: Precision = Precision.AUTO  # of the model's weights; auto: as the checkpoint has them
    attention: Attention = Attention.AUTO  # what computes it where a request names none; auto: the runner chooses
    spool_dir: Path | None = None  # where outputs wait for upload; else a temporary folder
    cache_dir: Path = Field(default_factory=default_cache_dir)  # the demo's checkpoint and logs
    start_timeout_s: PositiveFloat = 1800.0  # to load the model on every rank
    first_step_timeout_s: PositiveFloat = 600.0  # of a size that this worker has not rendered before
    step_timeout_s: PositiveFloat = 180.0  # or ten times the median step, if that is more
    clip_timeout_s: PositiveFloat = 120.0  # to decode one
    upload_timeout_s: PositiveFloat = 300.0  # of one piece, tries and all
    denoise_timeout_s: PositiveFloat = 4 * 3600.0  # all steps of an attempt
    decode_timeout_s: PositiveFloat = 3600.0  # all its clips
    drain_s: PositiveFloat = 25.0  # from SIGTERM to the end of the process
    worker_name: WorkerName | None = None  # else the host's name
    rss_growth_bytes: PositiveInt = 16 << 30  # of all ranks since their first job of a size; beyond, they are replaced
    vram_growth_bytes: PositiveInt = 8 << 30  # likewise, of all its GPUs
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None = None  # else neither /metrics nor /healthz is served
    metrics_host: IPvAnyAddress = IPv4Address("0.0.0.0")  # noqa: S104  # pods are looked at from outside; no secrets
    lease_s: PositiveFloat = LEASE_S  # the same for every worker of a queue
    longest_wait_s: PositiveFloat = 1800.0  # a job of a later queue that has waited so long is next
    spool_bytes: PositiveInt = 20 << 30  # of files that wait for their upload
    least_free_bytes: int = Field(1 << 30, ge=0)  # on the disk of the spool; with less, no job is taken
    log_format: LogFormat = LogFormat.AUTO
