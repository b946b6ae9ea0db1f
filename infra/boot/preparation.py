"""All that comes before a worker, in one thread: the machine is looked at, tried and recorded, checkpoints provided."""

from collections.abc import Callable

import structlog

from infra.boot.checkpoints import provide_checkpoints
from infra.boot.checks import find_faults
from infra.boot.errors import Unfit
from infra.boot.manifest import read_manifest
from infra.boot.settings import BootSettings
from infra.boot.topology import Topology, keep_topology, read_topology
from infra.boot.trial import run_trial

log = structlog.get_logger(__name__)


def look_at_machine(settings: BootSettings) -> Topology:
    """And leave the record beside the models. Raises Unfit if there is no folder for them."""
    _make_models_folder(settings)
    topology = read_topology(settings)
    log.info("machine", **topology.summarize())
    _keep(topology, settings)
    return topology


def try_machine(settings: BootSettings, topology: Topology, is_stopped: Callable[[], bool]) -> dict[str, str]:
    """What is to be added to a worker's environment here. Raises Unfit, Stopped."""
    if faults := list(find_faults(settings, topology)):
        raise Unfit("; ".join(faults))
    gpus = len(topology.gpus)
    if gpus < 2:
        return {}
    trial = run_trial(settings.trial_arguments(gpus), limit_s=settings.trial_s, is_stopped=is_stopped)
    _keep(topology.model_copy(update={"trial": trial}), settings)
    trial.require_success()
    return trial.environment


def fetch_checkpoints(settings: BootSettings, is_stopped: Callable[[], bool]) -> None:
    """Of the manifest, if there is one. Raises Unfit, Stopped."""
    if settings.checkpoints is None:
        return
    files = read_manifest(settings.checkpoints.get_secret_value())
    provide_checkpoints(
        files,
        settings.models,
        owner=settings.name,
        fetches=settings.fetches,
        part_bytes=settings.part_bytes,
        is_stopped=is_stopped,
    )


def _make_models_folder(settings: BootSettings) -> None:
    try:
        settings.models.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise Unfit(f"H3_POD_MODELS {settings.models}: {exc.strerror or exc}: name a folder of a mounted disk") from exc


def _keep(topology: Topology, settings: BootSettings) -> None:
    try:
        path = keep_topology(topology, settings.models)
    except OSError as exc:
        raise Unfit(f"H3_POD_MODELS {settings.models} cannot be written: {exc.strerror or exc}") from exc
    log.info("the machine is recorded", path=str(path))
