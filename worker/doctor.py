"""Checks what a worker needs on this machine; every finding says how to mend what fails."""

import importlib.metadata
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from jobs.connection import check_eviction, check_rights, check_version, connect, read_version, redis_errors
from jobs.errors import JobsError
from jobs.request import Mode, Precision
from jobs.store import open_store
from worker.errors import StartRefused
from worker.settings import WorkerSettings

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 9)
LEAST_DISK_BYTES = 10 * 2**30
LEAST_SHM_BYTES = 64 * 2**20
SHM = Path("/dev/shm")  # noqa: S108  the mount itself is examined


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing examined. `remedy` is empty where all is well."""

    subject: str
    found: str
    remedy: str = ""


def examine(settings: WorkerSettings) -> Iterator[Finding]:
    """Every finding, as it is made."""
    yield _python()
    yield _torch()
    yield _gpus()
    yield from _redis(settings)
    yield _store(settings)
    yield _disk("disk for outputs", settings.spool_dir or Path(tempfile.gettempdir()), LEAST_DISK_BYTES)
    yield _disk("shared memory", SHM, LEAST_SHM_BYTES)
    if settings.model_path is not None:
        yield from _model(settings)


def _python() -> Finding:
    remedy = "" if sys.version_info >= OLDEST_PYTHON else "install Python 3.11 or newer"
    return Finding("python", platform.python_version(), remedy)


def _torch() -> Finding:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", "not installed", "pip install 'h3render[h3]'")
    remedy = "" if read_version(version) >= OLDEST_TORCH else "pip install --upgrade 'torch>=2.9'"
    return Finding("torch", version, remedy)


def _gpus() -> Finding:
    try:
        import torch
    except ImportError as exc:
        return Finding("gpus", f"unknown: {exc}", "pip install 'h3render[h3]'")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Finding("gpus", ", ".join(names) or "none: ranks run on the CPU")


def _redis(settings: WorkerSettings) -> Iterator[Finding]:
    try:
        with connect(settings) as redis, redis_errors():
            yield _redis_version(redis)
            yield Finding("redis eviction", str(redis.info("memory").get("maxmemory_policy")), check_eviction(redis))
            yield Finding("redis rights", "of this user", check_rights(redis))
    except JobsError as exc:
        yield Finding("redis", "does not do", str(exc))


def _redis_version(redis: Redis) -> Finding:
    server = redis.info("server")
    found = f"{server.get('server_name', 'redis')}, speaks {server['redis_version']}"
    return Finding("redis", found, check_version(redis))


def _store(settings: WorkerSettings) -> Finding:
    try:
        open_store(settings.store_url).check()
    except JobsError as exc:
        return Finding("store", settings.store_url, str(exc))
    return Finding("store", f"{settings.store_url} can be written and read")


def _model(settings: WorkerSettings) -> Iterator[Finding]:
    """Whether its files are whole, and where a worker would keep its parts."""
    from worker.serve import choose_backend, choose_runner, choose_world_size

    subject = "model"
    try:
        world_size = choose_world_size(settings.world_size, choose_backend(settings.backend))
        runner, setup = choose_runner(settings, world_size)
    except (ImportError, StartRefused) as exc:
        yield Finding(subject, f"{settings.model_path} cannot be served", str(exc))
        return
    in_mode = "" if settings.mode is Mode.AUTO else f" in mode {settings.mode}"
    in_precision = "" if settings.precision is Precision.AUTO else f" with {settings.precision} weights"
    yield Finding(subject, f"{settings.model_path} can be served by {world_size} ranks{in_mode}{in_precision}")
    describe: Callable[..., list[str]] = getattr(runner, "describe_placement", lambda *_, **__: [])
    for line in describe(world_size, **setup):
        yield Finding("placement", line)


def _disk(subject: str, folder: Path, least_bytes: int) -> Finding:
    if not folder.is_dir():
        return Finding(subject, f"{folder} does not exist", f"make {folder}, or name another in H3_SPOOL_DIR")
    free = shutil.disk_usage(folder).free
    remedy = "" if free >= least_bytes else f"free {least_bytes / 2**30:.2g} GiB there"
    return Finding(subject, f"{free / 2**30:.1f} GiB free in {folder}", remedy)
