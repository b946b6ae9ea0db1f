"""The worker's life: check everything, start the fleet, serve the queue, and start over when the fleet is sick."""

import importlib
import os
import sys
from datetime import timedelta

import structlog

from jobs.connection import connect, redis_url
from jobs.store import open_store
from worker.errors import FleetNotStarted, StartRefused
from worker.mgpu import FatalFleetError, MGPUController, MGPURunner, RunnerError
from worker.rq_worker import RenderWorker
from worker.settings import Backend, WorkerSettings

CPU_WORLD_SIZE = 2

log = structlog.get_logger()


def serve(settings: WorkerSettings, *, burst: bool) -> None:
    """Serve until told to stop (or, with `burst`, until the queues are empty).

    Everything that can be refused is refused before the model is loaded. Raises RedisUnavailable, StoreUnavailable,
    StartRefused, FleetNotStarted.
    """
    redis = connect(settings)
    store = open_store(settings.store_url)
    store.check()
    runner, setup = choose_runner(settings)
    controller = make_controller(runner, settings)
    try:
        start(controller, settings, setup)
        worker = RenderWorker(redis, redis_url(settings), controller, store, settings)
        worker.work(burst=burst, logging_level="WARNING")
    finally:
        controller.shutdown(graceful_timeout=5.0)
    if worker.must_restart:
        restart()


def start(controller: MGPUController, settings: WorkerSettings, setup: dict[str, object]) -> None:
    """Load the model on every rank. Raises FleetNotStarted."""
    log.info("starting the fleet", runner=settings.runner, model=str(settings.model_path))
    try:
        controller.start(timeout=timedelta(seconds=settings.start_timeout_s), **setup)
    except FatalFleetError as exc:
        raise FleetNotStarted(str(exc)) from exc


def choose_runner(settings: WorkerSettings) -> tuple[type[MGPURunner], dict[str, object]]:
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
    preflight(runner, setup)
    return runner, setup


def preflight(runner: type[MGPURunner], setup: dict[str, object]) -> None:
    """Let the runner refuse its set-up before any rank is started, if it has a say. Raises StartRefused."""
    try:
        getattr(runner, "preflight", lambda **_: None)(**setup)
    except RunnerError as exc:
        raise StartRefused(str(exc)) from exc


def make_controller(runner: type[MGPURunner], settings: WorkerSettings) -> MGPUController:
    """A fleet on every visible GPU, or on the CPU where there is none."""
    if use_gloo(settings.backend):
        return MGPUController(runner, num_gpus=settings.world_size or CPU_WORLD_SIZE, backend="gloo", outputs="cpu")
    return MGPUController(runner, num_gpus=settings.world_size, outputs="cpu")


def use_gloo(backend: Backend) -> bool:
    if backend is not Backend.AUTO:
        return backend is Backend.GLOO
    import torch

    return not torch.cuda.is_available()


def restart() -> None:
    """Become a fresh worker under the same pid: a fleet that lost a rank cannot be trusted again."""
    log.warning("restarting after a lost fleet")
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  our own command line
