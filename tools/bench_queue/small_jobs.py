"""The rows about what every job costs, however short it is."""

import statistics
import tempfile
import time
from collections.abc import Callable

from tools.bench_queue.farm import JOB_LIMIT_S, Farm, fleet_alone
from tools.bench_queue.measured import Amount, Measured
from tools.bench_queue.scripted import Script, make_request
from worker.mgpu import MGPUController

WARM_UP_JOBS = 5
UNSERVED_QUEUE = "bench-enqueue"
EMPTY = make_request(Script())


def measure_enqueue(farm: Farm, amount: Amount) -> Measured:
    """One client submits one job after the other. No worker is there; and again with one that waits for other jobs."""
    undisturbed = _submit_per_s(farm, amount.enqueue_jobs)
    farm.start_worker()
    while_a_worker_waits = _submit_per_s(farm, amount.enqueue_jobs)
    queued = farm.redis.llen(f"rq:queue:{UNSERVED_QUEUE}")
    return Measured(
        (undisturbed,),
        {"every job is queued": queued == 2 * amount.enqueue_jobs},
        {"while_a_worker_waits": while_a_worker_waits},
    )


def measure_empty_job(farm: Farm, amount: Amount) -> Measured:
    """From `submit` to the last event at its client, less what the fleet alone needs for the same job."""
    with fleet_alone(farm.ranks) as controller:
        alone_ms = _repeat(lambda: _run_alone(controller), amount.empty_jobs)
    farm.start_worker()
    farmed_ms = _repeat(lambda: _run_farmed(farm), amount.empty_jobs)
    baseline_ms = statistics.median(alone_ms)
    details = {"fleet_alone_ms": baseline_ms, "submit_to_finished_ms": statistics.median(farmed_ms)}
    return Measured(tuple(took_ms - baseline_ms for took_ms in farmed_ms), details=details)


def _submit_per_s(farm: Farm, jobs: int) -> float:
    begun = time.perf_counter()
    for _ in range(jobs):
        farm.client.submit(EMPTY, queue=UNSERVED_QUEUE)
    return jobs / (time.perf_counter() - begun)


def _repeat(run: Callable[[], None], times: int) -> tuple[float, ...]:
    return tuple([_time_ms(run) for _ in range(WARM_UP_JOBS + times)][WARM_UP_JOBS:])


def _time_ms(run: Callable[[], None]) -> float:
    begun = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begun)


def _run_alone(controller: MGPUController) -> None:
    with tempfile.TemporaryDirectory(prefix="h3-bench-") as folder:
        for _ in controller.stream(request=EMPTY.resolve(), work_dir=folder, resume=None, timeout=JOB_LIMIT_S):
            pass


def _run_farmed(farm: Farm) -> None:
    farm.client.submit(EMPTY).wait(timeout_s=JOB_LIMIT_S)
