"""The commands for a whole fleet of pods: up, plan, down, status and sweep.

Without `--yes` they print what they would do at this moment, and change nothing.
"""

import json
import signal
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from infra.change_cli import DryRun, Yes, check_confirmation, end_unconfirmed
from infra.desk import Count, Desk, Gpu, note, open_desk, plain_errors
from infra.errors import GaveUpWaiting, GuardRefused, LeaseLost, LedgerLost
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
from infra.settings import PodSettings, read_pod_settings
from jobs.in_words import say_count, say_time
from jobs.plain_text import plain

if TYPE_CHECKING:
    from infra.farm import Farm
    from infra.order import PodOrder
    from infra.reconciler.decisions import Plan
    from infra.reconciler.keep import Keeper, StopWish
    from infra.reconciler.limits import Limits
    from infra.reconciler.orphans import Sweep
    from infra.reconciler.reconciler import Reconciler

EXIT_JOBS_LEFT = 1

app = typer.Typer()

Fleet = Annotated[str, typer.Option(metavar="NAME", help="In the names of its pods.")]

# --- up and plan


@app.command(help="Keep as many pods as the queue needs, within the budget, until stopped.")
@app.command("plan", help="What `up` with the same flags would do now.")
def up(
    context: typer.Context,
    budget_per_hour: Annotated[float, typer.Option(min=0, help="USD, of all our pods together.")],
    budget_total: Annotated[float, typer.Option(min=0, help="USD, of the campaign: until it is down again.")],
    least: Annotated[int, typer.Option("--min", min=0, help="Pods, while nothing waits.")] = 0,
    most: Annotated[int, typer.Option("--max", min=0, help="Pods.")] = 4,
    count: Count = 8,
    gpu: Gpu = None,
    image: Image = None,
    datacenter: Annotated[list[str] | None, typer.Option(help="Only there; again for more. Else any.")] = None,
    network_volume: VolumeId = None,
    volume_mount_path: MountPath = None,
    workspace_gb: WorkspaceGb = 100,
    ssh_public_key: PublicKeyFile = None,
    env_file: EnvFile = None,
    fleet: Fleet = "farm",
    target_wait: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Until what waits is rendered.")] = 900.0,
    max_hours: Annotated[float | None, typer.Option(help="Of one pod (env: H3_PODS_MAX_HOURS; else 6)")] = None,
    until_done: Annotated[
        bool, typer.Option("--until-done", help="End when no job is left, and no pod; exit 1 if the money ends first.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Order again, after RunPod refused for good.")] = False,
    restore_ledger: Annotated[
        bool, typer.Option("--restore-ledger", help="Write back the orders that Redis has lost.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    from infra.farm import check_fleet, check_serves, keep_idle, open_farm
    from infra.reconciler.limits import Limits

    dry_run = dry_run or context.info_name == "plan"
    with plain_errors():
        check_confirmation(yes=yes, dry_run=dry_run)
        settings = read_pod_settings(gpu=gpu, image=image, env_file=env_file, max_hours=max_hours)
        storage = choose_storage(network_volume, volume_mount_path, workspace_gb)
        order = make_order(settings, check_fleet(fleet, settings), count, "pod", storage, ssh_public_key)
        check_serves(order)
        order = keep_idle(order, settings.max_hours) if least else order
        limits = Limits(
            least=least,
            most=most,
            usd_per_hour=budget_per_hour,
            usd_total=budget_total,
            horizon_s=target_wait,
            raise_every_s=settings.raise_every_s,
            surplus_s=settings.surplus_s,
            idle_s=settings.idle_s,
            boot_s=settings.boot_s,
            until_done=until_done,
            max_hours=settings.max_hours,
        )
        with open_farm(settings, fleet) as farm:
            limits = _check_places(farm, limits, order, datacenter or [])
            if not yes:
                _show_plan(farm.make_reconciler(limits, order, typer.echo), dry_run=dry_run, how="`up --yes`")
            stop = _heed_signals()
            with farm.lease.held():
                _begin(farm, resume=resume, restore_ledger=restore_ledger)
                last = _keep_up(farm, farm.make_reconciler(limits, order, _log), stop)
    if last is not None and last.jobs and last.is_spent:
        note(f"{say_count(last.jobs, 'job')} left: {last.why}; raise --budget-total to go on")
        raise typer.Exit(EXIT_JOBS_LEFT)


def _check_places(farm: "Farm", limits: "Limits", order: "PodOrder", wanted: list[str]) -> "Limits":
    """With the data centers that may be ordered in. Raises GuardRefused, and what reading the catalog does."""
    from infra.placement import check_count, choose_data_center, find_gpu
    from infra.plan import read_volume

    check_count(find_gpu(farm.desk.api.list_gpus(order.count), order.gpu), order.count)
    volume, centers = read_volume(farm.desk.api, order), farm.desk.api.list_data_centers()
    asked: list[str | None] = [*wanted] or [None]
    places = [choose_data_center(centers, place, volume) for place in asked]
    return replace(limits, data_centers=tuple(place for place in places if place is not None))


def _show_plan(reconciler: "Reconciler", *, dry_run: bool, how: str) -> NoReturn:
    """What one look gives reason for."""
    from infra.reconciler.planner import plan

    situation, _ = reconciler.look()
    for line in plan(situation).to_lines():
        typer.echo(line)
    end_unconfirmed("nothing was changed", dry_run=dry_run, how=how)


def _begin(farm: "Farm", *, resume: bool, restore_ledger: bool) -> None:
    """Raises LedgerLost, LedgerUnusable."""
    farm.wish.take_back()
    if restore_ledger:
        for row in farm.ledger.restore():
            _log(f"restored {row.name} ({row.state})")
    farm.ledger.open()
    notes = farm.notebook.read()
    memory = notes.memory.with_(stopped="") if resume else notes.memory
    farm.notebook.write(notes.with_memory(memory).with_spend(notes.spend.begin_campaign(farm.desk.clock.now())))


def _heed_signals() -> "StopWish":
    """From now on they end what is kept, in good order."""
    from infra.reconciler.keep import StopWish

    stop = StopWish()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.make())
    return stop


def _keep_up(farm: "Farm", reconciler: "Reconciler", stop: "StopWish") -> "Plan | None":
    """The last plan; None if a signal came first."""

    def is_done(plan: "Plan") -> bool:
        may_end = reconciler.limits.until_done and (plan.jobs == 0 or plan.is_spent)
        return plan.left == 0 and (may_end or plan.is_going_down)

    last = _make_keeper(farm, reconciler, stop).run(is_done=is_done)
    if last is None:
        _say_rest(farm)
    else:
        _end_campaign(farm)
    return last


def _make_keeper(farm: "Farm", reconciler: "Reconciler", stop: "StopWish") -> "Keeper":
    from infra.reconciler.keep import Keeper

    return Keeper(reconciler, farm.lease, farm.desk.clock, farm.desk.settings.look_s, stop, _log)


def _say_rest(farm: "Farm") -> None:
    rows = [row for row in farm.ledger.read() if not row.has_ended]
    usd_per_hour = sum(row.usd_per_hour for row in rows)
    note(
        f"stopped; {say_count(len(rows), 'pod')} may go on, for {usd_per_hour:.2f} USD per hour, until they have been "
        "idle for long: `h3render pods down --yes` ends them"
    )


def _end_campaign(farm: "Farm") -> None:
    """One that `up` has ended already costs nothing any more."""
    notes = farm.notebook.read()
    if notes.spend.campaign is None:
        note("no pod is left")
        return
    note(f"no pod is left; the campaign has cost about {notes.spend.campaign_usd:.2f} USD")
    farm.notebook.write(notes.with_spend(notes.spend.end_campaign()))


def _log(line: str) -> None:
    typer.echo(f"{say_time(datetime.now(UTC))}  {line}")


# --- down


@app.command()
def down(
    fleet: Fleet = "farm",
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Else exit 7.")] = 7200.0,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """End all pods of `up`, once each has finished what it renders."""
    from infra.farm import check_fleet, open_farm
    from infra.reconciler.limits import Limits

    with plain_errors():
        check_confirmation(yes=yes, dry_run=dry_run)
        settings = read_pod_settings()
        with open_farm(settings, check_fleet(fleet, settings)) as farm:
            reconciler = farm.make_reconciler(Limits.of_none(), None, _log, goes_down=True)
            if not yes:
                _show_plan(reconciler, dry_run=dry_run, how="`down --yes`")
            farm.wish.make()
            _go_down(farm, reconciler, timeout)


def _go_down(farm: "Farm", reconciler: "Reconciler", timeout_s: float) -> None:
    """By ourselves, once no other acts: one that does has the wish, too. Raises GaveUpWaiting."""
    end_s = farm.desk.clock.monotonic() + timeout_s
    while not farm.lease.take():
        if farm.desk.clock.monotonic() >= end_s:
            raise GaveUpWaiting(f"{farm.lease.holder_told()} still ends pods: `h3render pods status` tells which")
        farm.desk.clock.sleep(farm.desk.settings.look_s)
    with farm.lease.held():
        farm.ledger.open()
        keeper = _make_keeper(farm, reconciler, _heed_signals())
        last = keeper.run(is_done=lambda plan: plan.left == 0 or farm.desk.clock.monotonic() >= end_s)
        if last is None or last.left:
            raise GaveUpWaiting("pods are left, and bill: `h3render pods status` tells which; run `down` again")
        farm.wish.take_back()
        _end_campaign(farm)


# --- status


@app.command()
def status(fleet: Fleet = "farm", as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Who looks after the pods, what they do, and what they have cost."""
    from infra.farm import check_fleet, open_farm
    from infra.reconciler.lease import read_lease
    from infra.reconciler.limits import Limits
    from infra.reconciler.views import describe_status, status_to_dict

    with plain_errors():
        settings = read_pod_settings()
        with open_farm(settings, check_fleet(fleet, settings)) as farm:
            situation, notes = farm.make_reconciler(Limits.of_none(), None, note).look()
            holder = read_lease(farm.redis, settings.prefix, fleet)
    if as_json:
        typer.echo(json.dumps(status_to_dict(situation, notes, holder)))
        return
    for line in describe_status(situation, notes, holder):
        typer.echo(line)


# --- sweep


@app.command()
def sweep(fleet: Fleet = "farm", yes: Yes = False, dry_run: DryRun = False) -> None:
    """End pods of ours that are past their lease, and, if REDIS_URL is set, those of the fleet that no order tells of.

    For cron on another machine, with a key of its own.
    """
    from infra.farm import check_fleet
    from infra.reconciler.orphans import Sweep

    with plain_errors():
        check_confirmation(yes=yes, dry_run=dry_run)
        settings = read_pod_settings()
        check_fleet(fleet, settings)
        strays = _find_strays(settings, fleet) if settings.redis_url is not None else Sweep()
        with open_desk(settings) as desk:
            _sweep(desk, strays, yes=yes, dry_run=dry_run)


def _find_strays(settings: PodSettings, fleet: str) -> "Sweep":
    """None if the ledger cannot be asked: what is past its lease ends all the same."""
    from infra.farm import open_farm
    from infra.reconciler.limits import Limits
    from infra.reconciler.orphans import Sweep, judge_strays

    try:
        with open_farm(settings, fleet) as farm:
            situation, _ = farm.make_reconciler(Limits.of_none(), None, note).look()
            return judge_strays(situation)
    except (GuardRefused, LeaseLost, LedgerLost) as exc:
        note(f"which pods are in no order is not known: {exc}")
        return Sweep()


def _sweep(desk: "Desk", strays: "Sweep", *, yes: bool, dry_run: bool) -> None:
    """Raises what ending the last that could not be ended did."""
    from infra.sweep import end_pods, find_overdue

    overdue = find_overdue(desk.api.list_pods(), desk.settings.prefix, desk.clock.now())
    for alert in strays.alerts:
        note(alert)
    ends = {pod.id: (pod, "in no order") for pod in strays.ends} | {pod.id: (pod, "past its lease") for pod in overdue}
    for pod, why in ends.values():
        line = f"end      {plain(pod.name)} ({pod.id}), {pod.cost:.2f} USD per hour: {why}"
        typer.echo(line, err=yes)
    if not ends:
        note("nothing to end")
        return
    if not yes:
        end_unconfirmed("they go on, and bill", dry_run=dry_run)
    end_pods(desk, [pod for pod, _ in ends.values()], typer.echo)
