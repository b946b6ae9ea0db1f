"""The worker's life: check everything, start the fleet, serve the queue, and start over when the fleet is sick."""

import importlib
import inspect
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Literal

import structlog
import torch
from redis import Redis
from redis.exceptions import RedisError

from jobs.connection import connect, redis_errors, redis_url
from jobs.lease import BEATS_A_LEASE
from jobs.offers import Offer
from jobs.request import Attention, Mode, Precision
from jobs.store import open_store
from jobs.workers import WorkerState, write_worker
from worker import metrics
from worker.errors import TOLD_TO_STOP, FleetNotStarted, Interrupted, StartRefused, Unhealthy
from worker.life import FailedStart, Life, hold_signals, reap_former_children, start_over
from worker.logs import tell_line
from worker.mgpu import ControllerShutdownError, FatalFleetError, MGPUController, MGPURunner, RunnerError
from worker.monitor import pages
from worker.rq_worker import RenderWorker
from worker.settings import Backend, WorkerSettings
from worker.standing import Standing
from worker.surroundings import ANSWER_TIMEOUT_S

CPU_WORLD_SIZE = 2
END_TIMEOUT_S = 5.0  # of an idle fleet
RETRY_S = 1.0  # and longer each time, after a fleet that did not start

log = structlog.get_logger()


def serve(settings: WorkerSettings, queues: Sequence[str], *, burst: bool) -> None:
    """Serve until told to stop (or, with `burst`, until the queues are empty).

    Starts over in the same process when the fleet is lost, or does not start. Everything that can be refused is refused
    before the model is loaded; what is around the worker has been looked at: `surroundings.py`. Raises
    RedisUnavailable, StoreUnavailable, StartRefused, and Unhealthy.
    """
    life = Life.take_up()
    redis = connect(settings, answer_timeout_s=ANSWER_TIMEOUT_S, retries=0)  # the worker tries again by itself
    store = open_store(settings.store_url)
    backend = choose_backend(settings.backend)
    world_size = choose_world_size(settings.world_size, backend)
    runner, setup = choose_runner(settings, world_size)
    offer = read_offer(runner, world_size, setup, backend).model_copy(update={"queues": tuple(map(str, queues))})
    if life.most_pixels is not None:
        offer = offer.limited_to(life.most_pixels)
    controller = MGPUController(
        runner, num_gpus=world_size, backend=backend, outputs="cpu", self_test=True, logs_specs=tell_line
    )
    gpus = visible_gpus(world_size) if backend == "nccl" else ()
    standing = Standing(settings.worker_name, life, offer, controller, gpus, settings.lease_s / BEATS_A_LEASE)
    with redis_errors():  # RQ tells the server its name
        worker = RenderWorker(redis, redis_url(settings), queues, controller, store, settings, standing, life)
    metrics.take_up(life)
    reap_former_children()
    with pages(settings, worker.view):
        try:
            worker.serve(burst=burst, start=lambda: start(controller, settings, setup))
        except FleetNotStarted as exc:
            try_again(worker, standing, redis, exc)
        finally:
            controller.shutdown(graceful_timeout=END_TIMEOUT_S)
    hold_signals()  # one that comes from here on is heard by the next life
    if worker.duty.must_restart:
        start_over(metrics.pass_on(worker.life.with_started_fleet()), worker.duty.why_replaced)


def try_again(worker: RenderWorker, standing: Standing, redis: Redis, error: FleetNotStarted) -> None:
    """Start over after a fleet that did not start, unless told to leave meanwhile.

    Raises Unhealthy if that has been tried in vain.
    """
    life = worker.life.with_failed_start(error.failed_start)
    if not life.is_hopeless:
        time.sleep(RETRY_S * len(life.failed_starts))
        hold_signals()
        if worker.duty.is_leaving:
            log.info("leaving though the fleet did not start", reason=str(error))
            return
        start_over(metrics.pass_on(life), str(error))
    reason = f"the fleet did not start {len(life.failed_starts)} times in a row: {error}"
    try:
        write_worker(redis, standing.record(WorkerState.UNHEALTHY, reason))
    except RedisError as exc:
        log.warning("Redis cannot be told that this worker is unhealthy", error=str(exc))
    raise Unhealthy(reason) from error


def start(controller: MGPUController, settings: WorkerSettings, setup: dict[str, object]) -> None:
    """Load the model on every rank. Raises FleetNotStarted, and Interrupted if it was shut down meanwhile."""
    log.info(
        "starting the fleet",
        runner=settings.runner,
        mode=settings.mode,
        precision=settings.precision,
        attention=settings.attention,
        model=str(settings.model_path),
    )
    began_at = time.monotonic()
    try:
        controller.start(timeout=timedelta(seconds=settings.start_timeout_s), **setup)
    except ControllerShutdownError as exc:
        raise Interrupted(TOLD_TO_STOP) from exc
    except FatalFleetError as exc:
        raise FleetNotStarted(explain(exc), FailedStart(began_at=began_at, ended_at=time.monotonic())) from exc


def explain(error: FatalFleetError) -> str:
    """What it says, from the cause on: lists show the first line."""
    return str(error).partition("\n")[2] if error.failures else str(error)


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
            "(`h3render checkpoint demo DIR` writes a small one to try)"
        )
    setup: dict[str, object] = {"checkpoint": str(settings.model_path)}
    for name in ("mode", "precision", "attention"):
        value: Mode | Precision | Attention = getattr(settings, name)
        if value != "auto":
            require_taken(runner, name, value)
            setup[name] = value.value
    preflight(runner, world_size, setup)
    return runner, setup


def require_taken(runner: type[MGPURunner], name: str, value: str) -> None:
    """Raises StartRefused if the runner cannot be told this setting."""
    for method_name in ("setup", "preflight", "abilities", "describe_placement"):
        method: Callable[..., object] | None = getattr(runner, method_name, None)
        if method is not None and not takes(method, name):
            raise StartRefused(
                f"H3_{name.upper()} {value}: `{method_name}` of {runner.__module__}:{runner.__qualname__} "
                f"takes no {name}: leave H3_{name.upper()} and --{name} out, or name another runner in H3_RUNNER"
            )


def takes(method: Callable[..., object], name: str) -> bool:
    """Whether it has this keyword, or hands on whatever it gets."""
    if method is MGPURunner.setup:  # of a runner without its own: takes everything, and does nothing with it
        return False
    parameters = inspect.signature(method).parameters.values()
    return any(each.name == name or each.kind is each.VAR_KEYWORD for each in parameters)


def preflight(runner: type[MGPURunner], world_size: int, setup: dict[str, object]) -> None:
    """Let the runner refuse its set-up before any rank is started, if it has a say. Raises StartRefused."""
    try:
        getattr(runner, "preflight", lambda *_, **__: None)(world_size, **setup)
    except RunnerError as exc:
        raise StartRefused(str(exc)) from exc


def read_offer(
    runner: type[MGPURunner], world_size: int, setup: dict[str, object], backend: Literal["nccl", "gloo"]
) -> Offer:
    """What this worker can serve. If the runner does not say: whatever is asked for, in the mode that it was given.

    Raises StartRefused.
    """
    abilities = getattr(runner, "abilities", None)
    if abilities is not None:
        able = asdict(abilities(world_size, **setup))
    else:
        able = {"modes": (setup["mode"],)} if "mode" in setup else {}
    offer = Offer(world_size=world_size, **able)
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


def visible_gpus(world_size: int) -> tuple[str, ...]:
    """As the driver's tools name those that the ranks use."""
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return tuple(named or map(str, range(world_size)))[:world_size]
