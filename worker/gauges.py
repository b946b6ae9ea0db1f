"""What a worker is at a moment, for Prometheus. What it has counted is in `metrics.py`."""

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from jobs.workers import WorkerRecord, WorkerState
from worker.farm import Farm
from worker.mgpu.state import State
from worker.view import View


class Gauges:
    """Asked anew by each scrape; nothing in it waits for Redis or for a driver."""

    def __init__(self, look: Callable[[], View]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        view = self._look()
        yield _build(view.record)
        yield from _worker(view)
        yield from _memory(view.record)
        yield from _farm(view.farm)


def _build(record: WorkerRecord) -> Metric:
    build = {"version": _version("h3render"), "torch": _version("torch"), "model": record.offer.model_digest}
    return InfoMetricFamily("h3_build", "Versions, and the digest of the model.", value=build)


_version = cache(importlib.metadata.version)  # reads files


def _worker(view: View) -> Iterator[Metric]:
    record = view.record
    states = {state.value: float(state is record.state) for state in WorkerState if state is not WorkerState.LOST}
    yield _gauge("h3_worker_state", "1 for the state that the worker is in.", "state", states)
    reasons = {record.reason: 1.0} if record.reason else {}
    yield _gauge("h3_worker_held", "1 for the reason why the worker takes no job, if there is one.", "reason", reasons)
    yield _value("h3_worker_healthy", "1 if /healthz answers 200.", not view.fault)
    yield _value("h3_fleet_up", "1 if every rank is up and in step.", record.fleet in (State.IDLE, State.RUNNING))
    yield CounterMetricFamily(
        "h3_worker_restarts", "Times that the worker has started over by itself.", value=record.restarts
    )
    yield _value("h3_fleet_failed_starts", "Starts of the fleet that have failed in a row.", view.failed_starts)
    yield _value("h3_redis_unanswered_seconds", "Time since Redis answered the worker.", view.unanswered_s)
    if (most_pixels := record.offer.most_pixels) is not None:
        yield _value("h3_largest_render_pixels", "Pixels of all frames of the largest render taken.", most_pixels)


def _memory(record: WorkerRecord) -> Iterator[Metric]:
    resident = {str(rank.rank): rank.rss_bytes for rank in record.ranks}
    used = {str(index): gpu.used_bytes for index, gpu in enumerate(record.gpus)}
    total = {str(index): gpu.total_bytes for index, gpu in enumerate(record.gpus)}
    yield _gauge("h3_rank_resident_bytes", "Resident memory of a rank process.", "rank", resident)
    yield _gauge("h3_gpu_used_bytes", "Memory in use on a GPU, by whomever, at the last beat.", "gpu", used)
    yield _gauge("h3_gpu_total_bytes", "Memory of a GPU.", "gpu", total)


def _farm(farm: Farm) -> Iterator[Metric]:
    backlogs = farm.backlogs.items()
    jobs = {queue: backlog.jobs for queue, backlog in backlogs}
    waits = {queue: backlog.head_wait_s for queue, backlog in backlogs}
    paused = {queue: backlog.is_paused for queue, backlog in backlogs}
    workers = {state.value: farm.workers.get(state, 0) for state in WorkerState}
    yield _gauge("h3_queue_jobs", "Jobs that wait in a queue, at the last beat.", "queue", jobs)
    yield _gauge("h3_queue_head_wait_seconds", "Time that the job at the head of a queue has waited.", "queue", waits)
    yield _gauge("h3_queue_paused", "1 if nothing is taken of a queue.", "queue", paused)
    yield _value("h3_dead_jobs", "Jobs that have used up their attempts, and wait for a person.", farm.dead)
    yield _value("h3_quarantined_jobs", "What was put into a queue and is no job.", farm.quarantined)
    yield _gauge("h3_workers", "Workers of the farm, at the last beat.", "state", workers)


def _value(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)


def _gauge(name: str, documentation: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for label_value, value in values.items():
        family.add_metric([label_value], value)
    return family
