"""The two commands that spend money or destroy: create and terminate.

Without `--yes` they do all that comes before, print what they would do, and send nothing that changes anything.
"""

from typing import Annotated, NoReturn

import typer

from infra.desk import Count, Gpu, PodId, note, open_desk, plain_errors, read_settings_for
from infra.errors import GuardRefused
from infra.order_flags import (
    EnvFile,
    Image,
    MountPath,
    PublicKeyFile,
    VolumeId,
    WorkspaceGb,
    choose_storage,
    make_order,
)
from infra.settings import read_pod_settings

EXIT_NOT_CONFIRMED = 2

app = typer.Typer()

Yes = Annotated[bool, typer.Option("--yes", help="Do it; without, the plan is printed and the exit code is 2.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan; the exit code is 0.")]

# --- create


@app.command()
def create(
    count: Count = 8,
    datacenter: Annotated[
        str | None, typer.Option(metavar="US-XX-N", help="Else the volume's, else each that has stock, most first.")
    ] = None,
    network_volume: VolumeId = None,
    volume_mount_path: MountPath = None,
    ssh_public_key: PublicKeyFile = None,
    gpu: Gpu = None,
    image: Image = None,
    name: Annotated[str, typer.Option(help="The part of the pod's name that is yours.")] = "pod",
    workspace_gb: WorkspaceGb = 100,
    env_file: EnvFile = None,
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
        check_confirmation(yes=yes, dry_run=dry_run)
        settings = read_pod_settings(
            gpu=gpu, image=image, env_file=env_file, max_usd_per_hour=max_usd_per_hour, max_hours=max_hours
        )
        storage = choose_storage(network_volume, volume_mount_path, workspace_gb)
        order = make_order(settings, settings.fleet, count, name, storage, ssh_public_key)
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
                end_unconfirmed("no pod was created", dry_run=dry_run)
            pod = Creator(desk.api, desk.ledger, desk.clock, tell_pod=typer.echo, tell=note).create(plan)
    note(f"{pod.id} is {pod.status} and costs {pod.cost:.2f} USD per hour until `terminate {pod.id} --yes`")


# --- terminate


@app.command()
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
        check_confirmation(yes=yes, dry_run=dry_run)
        settings = read_settings_for(pod_id)
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
                end_unconfirmed("the pod goes on, and bills", dry_run=dry_run)
            terminate_pod(desk.api, desk.ledger, desk.clock, pod.id)
    typer.echo(f"{pod_id} terminated")


# --- confirmation


def check_confirmation(*, yes: bool, dry_run: bool) -> None:
    if yes and dry_run:
        raise GuardRefused("--yes and --dry-run exclude each other: leave one out")


def _show_plan(lines: list[str], *, yes: bool) -> None:
    """On stdout where it is the result, else beside it."""
    for line in lines:
        typer.echo(line, err=yes)


def end_unconfirmed(outcome: str, *, dry_run: bool, how: str = "--yes") -> NoReturn:
    note(f"{outcome}; {how} does it")
    raise typer.Exit(0 if dry_run else EXIT_NOT_CONFIRMED)
