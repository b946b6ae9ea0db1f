"""Commands that look at pods, at what could be rented, and at the bill. They change nothing."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from infra.desk import Count, Desk, Gpu, PodId, note, open_desk, plain_errors, read_settings_for
from infra.errors import GuardRefused, LedgerUnusable
from infra.ledger import Row
from infra.order import Cloud
from infra.settings import read_pod_settings

if TYPE_CHECKING:
    from infra.answers import Pod

app = typer.Typer()

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# --- catalog


@app.command()
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


# --- pods


@app.command()
def get(
    pod_id: PodId,
    wait: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="Until it is up; else exit 7.")] = None,
    as_json: Json = False,
) -> None:
    """One pod: status, place, cost, SSH."""
    with plain_errors(), open_desk(read_settings_for(pod_id)) as desk:
        pod = desk.api.get_pod(pod_id) if wait is None else _await(desk, pod_id, wait, needs_worker=False)
        _show_pod(desk, pod, as_json=as_json)


@app.command()
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
        settings = read_settings_for(pod_id)
        if worker and settings.redis_url is None:
            raise GuardRefused("--worker: REDIS_URL is not set, so no worker can be heard of")
        with open_desk(settings) as desk:
            _show_pod(desk, _await(desk, pod_id, timeout, needs_worker=worker), as_json=as_json)


def _await(desk: Desk, pod_id: str, within_s: float, *, needs_worker: bool) -> "Pod":
    from infra.busy import ask_queue
    from infra.wait import await_pod

    def is_ready(pod: "Pod") -> bool:
        return pod.is_up and (not needs_worker or ask_queue(desk.settings.redis_url, pod.id, pod.name).is_alive)

    told: list[str] = []

    def tell(pod: "Pod") -> None:
        if pod.status not in told[-1:]:
            told.append(pod.status)
            note(f"{pod.id} is {pod.status}")

    return await_pod(desk.api, desk.clock, pod_id, within_s=within_s, is_ready=is_ready, tell=tell)


def _show_pod(desk: Desk, pod: "Pod", *, as_json: bool) -> None:
    from infra.views import describe_pod, pod_to_dict

    for line in [json.dumps(pod_to_dict(pod))] if as_json else describe_pod(pod, desk.clock.now()):
        typer.echo(line)


@app.command("list")
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
    note(say_spend(found, settings.prefix))


def _settle_rows(desk: Desk, found: "list[Pod]") -> list[Row]:
    """Who cannot read what was ordered sees what there is all the same."""
    from infra.plan import settle_rows

    try:
        return settle_rows(desk.ledger, found, desk.clock.now())
    except LedgerUnusable as exc:
        note(str(exc))
        return []


@app.command()
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
        with open_desk(read_settings_for(pod_id)) as desk:
            for line in desk.api.read_logs(pod_id, for_s=seconds, tail=tail, source=source):
                typer.echo(describe_line(line))


@app.command()
def cost(
    pod_id: Annotated[str | None, typer.Argument(metavar="[POD_ID]", help="Else every pod.")] = None,
    hours: Annotated[int, typer.Option(min=1, max=24 * 90, help="Until now.")] = 24,
    as_json: Json = False,
) -> None:
    """What pods have cost, by RunPod's bill."""
    from infra.views import describe_billing

    with plain_errors():
        settings = read_settings_for(pod_id) if pod_id is not None else read_pod_settings()
        with open_desk(settings) as desk:
            billing = desk.api.read_billing(pod_id, hours)
    for line in [billing.model_dump_json()] if as_json else describe_billing(billing, hours):
        typer.echo(line)
