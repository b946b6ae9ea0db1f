"""What a worker counts, for Prometheus, where it happens. What it is at a moment is in `gauges.py`.

Counters outlive the worker's restarts: a lost attempt often ends in one, before anybody has read its count.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from jobs.lease import Place, Reaped
from worker.errors import Superseded, WorkerError
from worker.life import Count, Life

disable_created_metrics()  # a second series beside each, that nobody reads

Outcome = Literal["finished", "failed", "canceled", "dead"]

REGISTRY = CollectorRegistry()
_COUNTERS: dict[str, Counter] = {}


def _counter(name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
    _COUNTERS[name] = counter = Counter(name, documentation, labels, registry=REGISTRY)
    return counter


def _histogram(name: str, documentation: str, *buckets: float) -> Histogram:
    return Histogram(name, documentation, buckets=buckets, registry=REGISTRY)


JOBS = _counter("h3_jobs", "Jobs that the worker has ended.", ["outcome", "cause"])
ATTEMPTS_LOST = _counter("h3_attempts_lost", "Attempts of the worker that ended before their job.", ["charge", "error"])
TAKEN_BACK = _counter("h3_jobs_taken_back", "Jobs that the worker has taken from silent ones.", ["place"])
RENDER_SECONDS = _histogram(
    "h3_render_seconds",
    "Time from the start of an attempt to its result.",
    *(10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400),
)
STEP_SECONDS = _histogram(
    "h3_step_seconds", "Time of a denoising step.", *(0.25, 0.5, 1, 2, 3, 4, 5, 7.5, 10, 15, 20, 30, 60, 120, 300)
)
SEGMENTS = _counter("h3_segments", "Segments that the worker has published.")
UPLOAD_SECONDS = _histogram(
    "h3_upload_seconds",
    "Time to upload one object, tries and all.",
    *(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
UPLOADED_BYTES = _counter("h3_uploaded_bytes", "What the store has taken from the worker.")
UPLOADS_LEFT_OUT = _counter("h3_uploads_left_out", "Previews and checkpoints that were dropped for want of room.")
STORE_RETRIES = _counter("h3_store_retries", "Requests that the store did not answer and got again.")
SPOOL_BYTES = Gauge("h3_spool_bytes", "Size of the files that wait for their upload.", registry=REGISTRY)
ProcessCollector(registry=REGISTRY)


def count_result(seconds: float) -> None:
    """An attempt has brought its job to a result."""
    count_end("finished")
    RENDER_SECONDS.observe(seconds)


def count_end(outcome: Outcome, cause: str = "") -> None:
    """A job is over."""
    JOBS.labels(outcome, cause).inc()


def count_loss(error: WorkerError, place: Place) -> None:
    """An attempt was handed back; where its job is now."""
    ATTEMPTS_LOST.labels(error.charge, type(error).__name__).inc()
    if place is not Place.QUEUED:
        JOBS.labels(place, "").inc()


def count_discard() -> None:
    """An attempt has lost its lease; who has it now counts the rest."""
    ATTEMPTS_LOST.labels("none", Superseded.__name__).inc()


def count_taken_back(reaped: Reaped) -> None:
    TAKEN_BACK.labels(Place.QUEUED).inc(len(reaped.queued))
    TAKEN_BACK.labels(Place.DEAD).inc(len(reaped.dead))


def _show_zeros() -> None:
    """Every count that may come: a rate needs something to rise from."""
    for outcome in ("finished", "canceled", "dead"):
        JOBS.labels(outcome, "")
    for cause in ("request", "store", "deadline"):
        JOBS.labels("failed", cause)
    count_taken_back(Reaped(0, (), ()))
    for kind in _kinds_of(WorkerError):
        if kind.job_may_retry:
            ATTEMPTS_LOST.labels(kind.charge, kind.__name__)
    ATTEMPTS_LOST.labels("none", Superseded.__name__)


def _kinds_of(kind: type[WorkerError]) -> Iterator[type[WorkerError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds_of(narrower)


_show_zeros()


# --- over a restart


def pass_on(life: Life) -> Life:
    """With what has been counted."""
    counted = (
        Count(metric=name, labels=sample.labels, value=sample.value)
        for name, counter in _COUNTERS.items()
        for family in counter.collect()
        for sample in family.samples
        if sample.value
    )
    return life.model_copy(update={"counts": tuple(counted)})


def take_up(life: Life) -> None:
    """Go on from what the life before has counted."""
    for count in life.counts:
        with suppress(KeyError, ValueError):  # another version's
            counter = _COUNTERS[count.metric]
            (counter.labels(**count.labels) if count.labels else counter).inc(count.value)
