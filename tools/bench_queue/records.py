"""The row about what a job leaves in Redis for its thirty days: a render as a worker tells of it, without its ranks."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from redis import Redis

from jobs.client import Client
from jobs.lease import Lease, Leases
from jobs.request import GenerateRequest
from jobs.store import open_store
from tools.bench_queue.farm import Farm, private_redis
from tools.bench_queue.measured import Amount, Measured
from worker import items
from worker.errors import WorkerError
from worker.outputs import OutputLimits, Outputs
from worker.payload import read_waiting

STEPS, PREVIEW_EVERY, CHECKPOINT_EVERY, SEGMENTS, PROMPT_LETTERS = 50, 5, 2, 8, 500
QUEUE, WORKER = "default", "bench-0123456789abcdef"
SENTENCE = "A red kite climbs over the harbour while the ferry sounds its horn and gulls drift past the crane. "
KINDS = {"step_done": STEPS, "preview_ready": STEPS // PREVIEW_EVERY, "checkpoint_saved": STEPS // CHECKPOINT_EVERY}


def measure_record_memory(_: Farm, amount: Amount) -> Measured:
    """By the server's own account, before and after so many jobs."""
    with private_redis() as url, Redis.from_url(url) as redis, tempfile.TemporaryDirectory(prefix="h3-bench-") as name:
        folder = Path(name)
        _finish_one(redis, folder)  # scripts, buffers and the like are there from now on
        before = _used_bytes(redis)
        told = [_finish_one(redis, folder) for _ in range(amount.records)]
        used = _used_bytes(redis) - before
    is_whole = all(len(kinds) == len(told[0]) and _is_whole(kinds) for kinds in told)
    return Measured((used / amount.records,), {"all of a render is told": is_whole}, {"events_a_job": len(told[0])})


def _finish_one(redis: Redis, folder: Path) -> list[str]:
    """Submit a job, render it, commit its result; what was told of it."""
    prompt = (SENTENCE * PROMPT_LETTERS)[:PROMPT_LETTERS]
    request = GenerateRequest(
        prompt=prompt, steps=STEPS, preview_every=PREVIEW_EVERY, checkpoint_every=CHECKPOINT_EVERY
    )
    job = Client(redis).submit(request, queue=QUEUE)
    leases = Leases(redis)
    [[waiting]] = leases.peek([QUEUE], 0, 1)
    lease = leases.claim(waiting, WORKER)
    if lease is None:
        raise RuntimeError("the job could not be claimed")
    store_url = (folder / "store").as_uri()
    limits = OutputLimits(least_free_bytes=0)
    failures: list[WorkerError] = []
    outputs = Outputs(
        open_store(store_url), store_url, lease, read_waiting(waiting), limits=limits, on_failure=failures.append
    )
    try:
        _publish(outputs, lease, folder)
    finally:
        outputs.close()
    if failures:
        raise RuntimeError(f"a job's output could not be published: {failures[0]}")
    return [event.kind for event in job.news()]


def _publish(outputs: Outputs, lease: Lease, folder: Path) -> None:
    """As worker/attempt.py and worker/rq_worker.py do it."""
    outputs.begin()
    for item in _render(folder):
        outputs.publish(item)
    finished = outputs.commit(items.Finished(_file(folder / "video.mp4"), _file(folder / "report.json")))
    lease.finish(finished, {"result_key": finished.result_key})


def _render(folder: Path) -> Iterator[items.Item]:
    yield items.TextEncoded(110, 0.4217)
    for step in range(1, STEPS + 1):
        yield items.StepDone(step, STEPS, 1 - (step - 1) / STEPS, 3.1234567)
        if step % PREVIEW_EVERY == 0:
            yield items.Preview(step, _file(folder / f"preview-{step:04}.png"))
        if step % CHECKPOINT_EVERY == 0:
            yield items.Checkpoint(step, _file(folder / f"checkpoint-{step:04}.safetensors"))
    yield items.StreamHeader(_file(folder / "init.mp4"), SEGMENTS)
    for index in range(SEGMENTS):
        yield items.Segment(index, _file(folder / f"segment-{index:05}.m4s"), 17 / 24)


def _file(path: Path) -> Path:
    path.write_bytes(path.name.encode())
    return path


def _is_whole(kinds: list[str]) -> bool:
    counts = {**KINDS, "segment_ready": SEGMENTS, "finished": 1}
    return all(kinds.count(kind) == count for kind, count in counts.items())


def _used_bytes(redis: Redis) -> int:
    return int(cast(dict[str, int], redis.info("memory"))["used_memory"])
