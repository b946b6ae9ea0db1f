"""The commands `h3render pods ...`: rented machines, looked at, created and terminated by hand.

Without `--yes` nothing is sent that could change anything. What speaks HTTP is imported when a command is called.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from infra.clock import Clock
from infra.errors import GuardRefused, InfraError, LedgerUnusable
from infra.ledger import Ledger, Row
from infra.order import VOLUME_PATH, Cloud, PodOrder, VolumeMount, Workspace, check_env, check_mount_path
from infra.pod_names import check_pod_id, check_slot
from infra.settings import PodSettings, read_pod_settings
from jobs.logs import LogFormat, configure_logs

if TYPE_CHECKING:
    from infra.answers import Pod
    from infra.runpod import RunPod

EXIT_NOT_CONFIRMED = 2

app = typer.Typer()
pods_app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(pods_app, name="pods")

PodId = Annotated[str, typer.Argument(metavar="POD_ID", help="As `list` and `create` print it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Count = Annotated[int, typer.Option(min=1, help="GPUs on one machine.")]
Gpu = Annotated[
    str | None, typer.Option(help="Id in the catalog (env: H3_PODS_GPU; else the RTX PRO 6000 server edition)")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without, the plan is printed and the exit code is 2.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan; the exit code is 0.")]


@pods_app.callback()
def pods() -> None:
    """Rented machines at RunPod: what is free, and one pod at a time."""
    configure_logs(LogFormat.AUTO, level=logging.WARNING)


@dataclass(frozen=True, slots=True)
class Desk:
    """What the commands work with."""

    settings: PodSettings
    api: "RunPod"
    ledger: Ledger
    clock: Clock


@contextmanager
def plain_errors() -> Iterator[None]:
    """Tell a person what is wrong, without a traceback; the class has the exit code."""
    try:
        yield
    except InfraError as exc:
        typer.echo(str(exc), err=True)
        raise typer.Exit(exc.exit_code) from exc


@contextmanager
def open_desk(settings: PodSettings) -> Iterator[Desk]:
    """With the key of the settings. Raises KeyUnusable."""
    from infra.runpod import RunPod

    clock = Clock()
    with RunPod(settings.runpod_api_url, settings.key, clock) as api:
        yield Desk(settings, api, Ledger(settings.ledger, clock), clock)


# --- catalog


@pods_app.command()
def catalog(
    count: Count = 8,
    gpu: Gpu = None,
    all_types: Annotated[bool, typer.Option("--all", help="Every type that is free somewhere.")] = False,
    cloud: Annotated[str, typer.Option(help="SECURE or COMMUNITY.")] = "SECURE",
    as_json: Json = False,
) -> None:
    """What is free, where, and what it costs."""
    from infra.placement import find_gpu
    from infra.views import describe_stock, stock_to_dicts

    with plain_errors():
        asked = _check_cloud(cloud)
        settings = read_pod_settings(gpu=gpu)
        with open_desk(settings) as desk:
            found, centers = desk.api.list_gpus(count, asked), desk.api.list_data_centers()
            read_at = desk.clock.now()
        shown = [one for one in found if one.places] if all_types else [find_gpu(found, settings.gpu)]
    if as_json:
        typer.echo(json.dumps(stock_to_dicts(shown, centers, count, asked, read_at)))
        return
    for line in describe_stock(shown, centers, count, asked, read_at):
        typer.echo(line)


def _check_cloud(text: str) -> Cloud:
    if text == "SECURE":
        return "SECURE"
    if text == "COMMUNITY":
        return "COMMUNITY"
    raise GuardRefused(f"--cloud {text!a}: write SECURE or COMMUNITY")


# --- create


@pods_app.command()
def create(
    count: Count = 8,
    datacenter: Annotated[
        str | None, typer.Option(metavar="US-XX-N", help="Else the volume's, else each that has stock, most first.")
    ] = None,
    network_volume: Annotated[str | None, typer.Option(metavar="ID", help="Mounted instead of a workspace.")] = None,
    volume_mount_path: Annotated[str | None, typer.Option(help=f"Of the volume; else {VOLUME_PATH}.")] = None,
    ssh_public_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="May log in as root; else the account's keys.")
    ] = None,
    gpu: Gpu = None,
    image: Annotated[
        str | None, typer.Option(help="(env: H3_PODS_IMAGE; else RunPod's, CUDA 13.0, Torch 2.9.1)")
    ] = None,
    name: Annotated[str, typer.Option(help="The part of the pod's name that is yours.")] = "pod",
    workspace_gb: Annotated[int, typer.Option(min=10, help="At /workspace, where there is no volume.")] = 100,
    env_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Lines NAME=VALUE for the pod; mode 600.")
    ] = None,
    max_usd_per_hour: Annotated[
        float | None, typer.Option(help="Of all our pods together (env: H3_PODS_MAX_USD_PER_HOUR; else 40)")
    ] = None,
    max_hours: Annotated[float | None, typer.Option(help="Told to the pod (env: H3_PODS_MAX_HOURS; else 6)")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Rent one machine; prints its id."""
    from infra.create import Creator
    from infra.plan import read_create_plan

    with plain_errors():
        _check_confirmation(yes=yes, dry_run=dry_run)
        settings = read_pod_settings(gpu=gpu, image=image, max_usd_per_hour=max_usd_per_hour, max_hours=max_hours)
        storage = _choose_storage(network_volume, volume_mount_path, workspace_gb)
        order = _make_order(settings, count, name, storage, ssh_public_key, env_file)
        with open_desk(settings) as desk:
            plan = read_create_plan(
                desk.api,
                desk.ledger,
                desk.clock,
                order,
                data_center=datacenter,
                cap=settings.max_usd_per_hour,
                max_hours=settings.max_hours,
            )
            _show_plan(plan.to_lines(), yes=yes)
            if not yes:
                _end_unconfirmed("no pod was created", dry_run=dry_run)
            pod = Creator(desk.api, desk.ledger, desk.clock, tell_pod=typer.echo, tell=_note).create(plan)
    _note(f"{pod.id} is {pod.status} and costs {pod.cost:.2f} USD per hour until `terminate {pod.id} --yes`")


def _choose_storage(volume: str | None, path: str | None, workspace_gb: int) -> Workspace | VolumeMount:
    if volume is not None:
        return VolumeMount(volume_id=_check_volume_id(volume), path=check_mount_path(path or VOLUME_PATH))
    if path is not None:
        raise GuardRefused(f"--volume-mount-path {path!a}: there is no --network-volume to mount there")
    return Workspace(size=workspace_gb)


def _check_volume_id(text: str) -> str:
    try:
        return check_pod_id(text)  # RunPod's ids are alike
    except GuardRefused:
        raise GuardRefused(f"--network-volume {text!a} is no id of a volume: RunPod's console lists them") from None


def _make_order(
    settings: PodSettings,
    count: int,
    name: str,
    storage: Workspace | VolumeMount,
    public_key_file: Path | None,
    env_file: Path | None,
) -> PodOrder:
    """All that can be checked before anything is asked. Raises GuardRefused, KeyUnusable."""
    from infra.given_files import read_env_file, read_public_key

    slot = check_slot(name)
    public_key = read_public_key(public_key_file) if public_key_file is not None else None
    env = read_env_file(env_file) if env_file is not None else {}
    check_env(env, settings.key.get_secret_value())
    return PodOrder(
        prefix=settings.prefix,
        fleet=settings.fleet,
        slot=slot,
        gpu=settings.gpu,
        count=count,
        image=settings.image,
        storage=storage,
        env=env,
        public_key=public_key,
    )


# --- terminate


@pods_app.command()
def terminate(
    pod_id: PodId,
    foreign: Annotated[bool, typer.Option("--foreign", help="Also a pod whose name is not one of ours.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Also one that renders, or whose queue cannot be asked.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """End a pod for good, and wait until it is gone."""
    from infra.busy import ask_queue
    from infra.errors import NotFound
    from infra.plan import judge_termination
    from infra.terminate import record_gone, terminate_pod

    with plain_errors():
        _check_confirmation(yes=yes, dry_run=dry_run)
        settings = _read_settings_for(pod_id)
        with open_desk(settings) as desk:
            try:
                pod = desk.api.get_pod(pod_id)
            except NotFound:
                record_gone(desk.ledger, pod_id)
                typer.echo(f"{pod_id} is gone already")
                return
            plan = judge_termination(
                pod,
                ask_queue(settings.redis_url, pod.id, pod.name),
                prefix=settings.prefix,
                allow_foreign=foreign,
                now_anyway=now,
                read_at=desk.clock.now(),
            )
            _show_plan(plan.to_lines(), yes=yes)
            if not yes:
                _end_unconfirmed("the pod goes on, and bills", dry_run=dry_run)
            terminate_pod(desk.api, desk.ledger, desk.clock, pod.id)
    typer.echo(f"{pod_id} terminated")


# --- look


@pods_app.command()
def get(
    pod_id: PodId,
    wait: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="Until it is up; else exit 7.")] = None,
    as_json: Json = False,
) -> None:
    """One pod: status, place, cost, SSH."""
    with plain_errors(), open_desk(_read_settings_for(pod_id)) as desk:
        pod = desk.api.get_pod(pod_id) if wait is None else _await(desk, pod_id, wait, needs_worker=False)
        _show_pod(desk, pod, as_json=as_json)


@pods_app.command()
def wait(
    pod_id: PodId,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Else exit 7.")] = 1200.0,
    worker: Annotated[
        bool, typer.Option("--worker", help="Until its worker is heard of, too (needs REDIS_URL).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Until a pod is up: it runs, and takes SSH."""
    with plain_errors():
        settings = _read_settings_for(pod_id)
        if worker and settings.redis_url is None:
            raise GuardRefused("--worker: REDIS_URL is not set, so no worker can be heard of")
        with open_desk(settings) as desk:
            _show_pod(desk, _await(desk, pod_id, timeout, needs_worker=worker), as_json=as_json)


def _read_settings_for(pod_id: str) -> PodSettings:
    """Once the id is one: what is wrong with a command is told before the key is looked at."""
    check_pod_id(pod_id)
    return read_pod_settings()


def _await(desk: Desk, pod_id: str, within_s: float, *, needs_worker: bool) -> "Pod":
    from infra.busy import ask_queue
    from infra.wait import await_pod

    def is_ready(pod: "Pod") -> bool:
        return pod.is_up and (not needs_worker or ask_queue(desk.settings.redis_url, pod.id, pod.name).is_alive)

    told: list[str] = []

    def tell(pod: "Pod") -> None:
        if pod.status not in told[-1:]:
            told.append(pod.status)
            _note(f"{pod.id} is {pod.status}")

    return await_pod(desk.api, desk.clock, pod_id, within_s=within_s, is_ready=is_ready, tell=tell)


def _show_pod(desk: Desk, pod: "Pod", *, as_json: bool) -> None:
    from infra.views import describe_pod, pod_to_dict

    for line in [json.dumps(pod_to_dict(pod))] if as_json else describe_pod(pod, desk.clock.now()):
        typer.echo(line)


@pods_app.command("list")
def list_(as_json: Json = False) -> None:
    """Every pod of the account, ours and others', and orders that may still have one."""
    from infra.views import describe_pods, pod_to_dict, say_spend

    with plain_errors():
        settings = read_pod_settings()
        with open_desk(settings) as desk:
            found, now = desk.api.list_pods(), desk.clock.now()
            rows = _settle_rows(desk, found)
    if as_json:
        typer.echo(json.dumps([pod_to_dict(pod) for pod in found]))
        return
    for line in describe_pods(found, rows, settings.prefix, now):
        typer.echo(line)
    _note(say_spend(found, settings.prefix))


def _settle_rows(desk: Desk, found: "list[Pod]") -> list[Row]:
    """Who cannot read what was ordered sees what there is all the same."""
    from infra.plan import settle_rows

    try:
        return settle_rows(desk.ledger, found, desk.clock.now())
    except LedgerUnusable as exc:
        _note(str(exc))
        return []


@pods_app.command()
def logs(
    pod_id: PodId,
    tail: Annotated[int, typer.Option(min=0, max=5000, help="Lines from before.")] = 100,
    seconds: Annotated[float, typer.Option(min=1, help="How long to listen; RunPod ends no log.")] = 5.0,
    source: Annotated[str | None, typer.Option(help="container or system; else both.")] = None,
) -> None:
    """A pod's log: what there is, and what comes."""
    from infra.views import describe_line

    with plain_errors():
        if source not in (None, "container", "system"):
            raise GuardRefused(f"--source {source!a}: write container or system, or leave it out")
        with open_desk(_read_settings_for(pod_id)) as desk:
            for line in desk.api.read_logs(pod_id, for_s=seconds, tail=tail, source=source):
                typer.echo(describe_line(line))


@pods_app.command()
def cost(
    pod_id: Annotated[str | None, typer.Argument(metavar="[POD_ID]", help="Else every pod.")] = None,
    hours: Annotated[int, typer.Option(min=1, max=24 * 90, help="Until now.")] = 24,
    as_json: Json = False,
) -> None:
    """What pods have cost, by RunPod's bill."""
    from infra.views import describe_billing

    with plain_errors():
        settings = _read_settings_for(pod_id) if pod_id is not None else read_pod_settings()
        with open_desk(settings) as desk:
            billing = desk.api.read_billing(pod_id, hours)
    for line in [billing.model_dump_json()] if as_json else describe_billing(billing, hours):
        typer.echo(line)


# --- confirmation


def _check_confirmation(*, yes: bool, dry_run: bool) -> None:
    if yes and dry_run:
        raise GuardRefused("--yes and --dry-run exclude each other: leave one out")


def _show_plan(lines: list[str], *, yes: bool) -> None:
    """On stdout where it is the result, else beside it."""
    for line in lines:
        typer.echo(line, err=yes)


def _end_unconfirmed(outcome: str, *, dry_run: bool) -> NoReturn:
    _note(f"{outcome}; --yes does it")
    raise typer.Exit(0 if dry_run else EXIT_NOT_CONFIRMED)


def _note(line: str) -> None:
    typer.echo(line, err=True)
