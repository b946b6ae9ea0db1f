"""The worker's life: check everything, start the fleet, serve the queue, and start over when the fleet is sick."""

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Literal

import structlog
import torch

from jobs.connection import connect, redis_url, require_usable
from jobs.offers import Offer
from jobs.store import open_store
from worker.errors import FleetNotStarted, StartRefused
from worker.mgpu import FatalFleetError, MGPUController, MGPURunner, RunnerError
from worker.rq_worker import ANSWER_TIMEOUT_S, RenderWorker
from worker.settings import Backend, WorkerSettings

CPU_WORLD_SIZE = 2

log = structlog.get_logger()


def serve(settings: WorkerSettings, queues: Sequence[str], *, burst: bool) -> None:
    """Serve until told to stop (or, with `burst`, until the queues are empty).

    Everything that can be refused is refused before the model is loaded. Raises RedisUnavailable, StoreUnavailable,
    StartRefused, FleetNotStarted.
    """
    redis = connect(settings, answer_timeout_s=ANSWER_TIMEOUT_S, retries=0)  # the worker tries again by itself
    require_usable(redis)
    store = open_store(settings.store_url)
    store.check()
    check_spool(settings.spool_dir)
    backend = choose_backend(settings.backend)
    world_size = choose_world_size(settings.world_size, backend)
    runner, setup = choose_runner(settings, world_size)
    offer = read_offer(runner, world_size, setup, backend).model_copy(update={"queues": tuple(map(str, queues))})
    controller = MGPUController(runner, num_gpus=world_size, backend=backend, outputs="cpu")
    try:
        start(controller, settings, setup)
        worker = RenderWorker(redis, redis_url(settings), queues, controller, store, settings, offer)
        worker.serve(burst=burst)
    finally:
        controller.shutdown(graceful_timeout=5.0)
    if worker.must_restart:
        restart()


def check_spool(folder: Path | None) -> None:
    """Raises StartRefused unless outputs can wait there."""
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        raise StartRefused(f"H3_SPOOL_DIR {folder} is no folder that this user can write: make it, or name another")


def start(controller: MGPUController, settings: WorkerSettings, setup: dict[str, object]) -> None:
    """Load the model on every rank. Raises FleetNotStarted."""
    log.info("starting the fleet", runner=settings.runner, model=str(settings.model_path))
    try:
        controller.start(timeout=timedelta(seconds=settings.start_timeout_s), **setup)
    except FatalFleetError as exc:
        raise FleetNotStarted(str(exc)) from exc


def choose_runner(settings: WorkerSettings, world_size: int) -> tuple[type[MGPURunner], dict[str, object]]:
    """The runner class and what its `setup` gets. Raises StartRefused."""
    module_name, _, class_name = settings.runner.partition(":")
    try:
        runner: type[MGPURunner] = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as exc:
        raise StartRefused(f"H3_RUNNER {settings.runner} cannot be loaded ({exc}): write module:class") from exc
    if settings.model_path is None:
        raise StartRefused(
            "no checkpoint is named: give --checkpoint DIR or set H3_MODEL_PATH "
            "(`h3render checkpoint tiny DIR` writes an untrained one to try)"
        )
    setup: dict[str, object] = {"checkpoint": str(settings.model_path)}
    preflight(runner, world_size, setup)
    return runner, setup


def preflight(runner: type[MGPURunner], world_size: int, setup: dict[str, object]) -> None:
    """Let the runner refuse its set-up before any rank is started, if it has a say. Raises StartRefused."""
    try:
        getattr(runner, "preflight", lambda *_, **__: None)(world_size, **setup)
    except RunnerError as exc:
        raise StartRefused(str(exc)) from exc


def read_offer(
    runner: type[MGPURunner], world_size: int, setup: dict[str, object], backend: Literal["nccl", "gloo"]
) -> Offer:
    """What this worker can serve: whatever is asked for, if the runner does not say. Raises StartRefused."""
    abilities = getattr(runner, "abilities", None)
    offer = Offer(world_size=world_size, **(asdict(abilities(world_size, **setup)) if abilities else {}))
    if backend == "gloo":  # on the CPU, whatever GPUs there are
        return offer.model_copy(update={"most_pixels": None})
    if offer.most_pixels == 0:
        raise StartRefused("the model's weights leave no room for a render on these GPUs: take more, or larger ones")
    return offer


def choose_backend(wanted: Backend) -> Literal["nccl", "gloo"]:
    """NCCL where there is a GPU, unless told otherwise."""
    if wanted is Backend.AUTO:
        return "nccl" if torch.cuda.is_available() else "gloo"
    return "nccl" if wanted is Backend.NCCL else "gloo"


def choose_world_size(wanted: int | None, backend: Literal["nccl", "gloo"]) -> int:
    """Every visible GPU, or a few ranks on the CPU, unless told otherwise. Raises StartRefused."""
    if backend == "gloo":
        return wanted or CPU_WORLD_SIZE
    gpus = torch.cuda.device_count()
    if (wanted or 1) > gpus:
        raise StartRefused(f"{wanted or 1} ranks need as many GPUs; {gpus} are visible: set H3_WORLD_SIZE")
    return wanted or gpus


def restart() -> None:
    """Become a fresh worker under the same pid: a fleet that lost a rank cannot be trusted again."""
    log.warning("restarting after a lost fleet")
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  our own command line
