"""The rows about a whole render: what it takes longer on the farm, and what Redis hears of it."""

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import cast

from jobs.client import JobHandle
from jobs.events import EVENTS_KEY
from tools.bench_queue.farm import JOB_LIMIT_S, Farm
from tools.bench_queue.measured import Amount, Measured
from tools.bench_queue.scripted import OWN_S, Script, make_request
from tools.bench_queue.traffic import Traffic, TrafficMeter

STEPS, PREVIEW_EVERY, CHECKPOINT_EVERY, SEGMENTS = 40, 5, 2, 8
MB, KB = 1_000_000, 1_000


@dataclass(frozen=True, slots=True)
class Render:
    """One job, from its claim to its last event."""

    own_s: float  # that the runner itself needed
    took_s: float
    end_s: float  # from the last step on
    told: Mapping[str, int]  # events by kind
    traffic: Traffic


def measure_render(farm: Farm, amount: Amount, decode_share: float = 0.0) -> Measured:
    """As a share of the runner's own time, which is measured on rank 0. Without a decode all segments come at once."""
    render = _render(farm, amount.render_s, decode_share)
    overhead_s = render.took_s - render.own_s
    told = render.told
    claims = {
        "one attempt": told["started"] == 1,
        "every step is told": told["step_done"] == STEPS,
        "every preview and checkpoint is kept": told["preview_ready"] == STEPS // PREVIEW_EVERY
        and told["checkpoint_saved"] == STEPS // CHECKPOINT_EVERY,
        "every segment is published": told["segment_ready"] == SEGMENTS,
    }
    details = {"own_s": render.own_s, "overhead_ms": 1e3 * overhead_s, "last_step_to_finished_ms": 1e3 * render.end_s}
    return Measured((100 * overhead_s / render.own_s,), claims, details)


def measure_busy_calls(farm: Farm, amount: Amount) -> Measured:
    return _judge_traffic(_render(farm, amount.render_s, 0.0).traffic)


def measure_idle_calls(farm: Farm, amount: Amount) -> Measured:
    farm.start_worker()
    meter = TrafficMeter(farm.redis)
    time.sleep(amount.idle_s)
    return _judge_traffic(meter.read())


def _judge_traffic(traffic: Traffic) -> Measured:
    return Measured((traffic.calls_per_s,), details=traffic.describe())


@cache  # two rows look at the same job
def _render(farm: Farm, render_s: float, decode_share: float) -> Render:
    script = Script(
        steps=STEPS,
        step_s=render_s * (1 - decode_share) / STEPS,
        preview_bytes=100 * KB,
        checkpoint_bytes=8 * MB,
        segments=SEGMENTS,
        segment_s=render_s * decode_share / SEGMENTS,
        segment_bytes=300 * KB,
        video_bytes=SEGMENTS * 300 * KB,
    )
    farm.start_worker()
    meter = TrafficMeter(farm.redis)
    job = farm.client.submit(make_request(script, PREVIEW_EVERY, CHECKPOINT_EVERY))
    job.wait(timeout_s=JOB_LIMIT_S + render_s)
    traffic = meter.read()
    report = json.loads(farm.store.get(job.result().report_key))
    told = _read_log(farm, job)
    at = dict(told)  # of the last of each kind
    return Render(
        own_s=report[OWN_S],
        took_s=at["finished"] - at["started"],
        end_s=at["finished"] - at["step_done"],
        told=Counter(kind for kind, _ in told),
        traffic=traffic,
    )


def _read_log(farm: Farm, job: JobHandle) -> list[tuple[str, float]]:
    """Kind of each event, and when: the server's clock, to a millisecond."""
    entries = cast(list[tuple[bytes, dict[bytes, bytes]]], farm.redis.xrange(EVENTS_KEY.format(job_id=job.id)))
    return [(json.loads(fields[b"event"])["kind"], int(entry.split(b"-")[0]) / 1e3) for entry, fields in entries]
