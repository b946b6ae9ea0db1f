"""What a person reads before saying --yes, and which pods may end."""

from datetime import timedelta

import pytest
from pydantic import SecretStr

from infra.busy import Busyness, Work, ask_queue, judge_workers
from infra.errors import GuardRefused
from infra.order import VolumeMount
from infra.placement import Place
from infra.plan import CreatePlan, judge_termination
from jobs.workers import WorkerState, write_worker
from tests.infra.pods import NAME, NOW, make_order, make_pod, make_worker

IDLE = Busyness(Work.IDLE, "ready")


def make_plan(**fields):
    return CreatePlan(
        order=make_order(env={"SECRET": "canary-of-env"}, public_key="ssh-ed25519 canary-of-key", **fields),
        places=[Place("US-KS-2", "HIGH"), Place("EU-RO-1", "LOW")],
        usd_per_hour=15.12,
        committed=3.5,
        cap=40.0,
        lease_until=NOW + timedelta(hours=6),
        read_at=NOW,
    )


def test_a_plan_tells_places_stock_price_cap_storage_and_body():
    text = "\n".join(make_plan().to_lines())
    for told in (
        "US-KS-2 (HIGH), then EU-RO-1 (LOW)",
        "read at 2026-11-30 12:00:00 UTC; a hint, no reservation",
        "15.12 USD per hour (1.89 x 8)",
        "40.00 USD per hour; our other pods cost 3.50",
        "until 2026-11-30 18:00:00 UTC",
        "100 GB at /workspace: survives a restart, but neither termination nor the loss of its host",
        '"SECRET": "***"',
        '"PUBLIC_KEY": "***"',
    ):
        assert told in text
    assert "canary" not in text + repr(make_plan())


def test_a_volume_is_said_to_be_kept():
    text = "\n".join(make_plan(storage=VolumeMount(volume_id="vol1", path="/runpod-volume")).to_lines())
    assert "network volume vol1 at /runpod-volume: kept when the pod ends" in text


# --- terminate


def judge(pod, busyness=IDLE, *, allow_foreign=False, now_anyway=False):
    return judge_termination(
        pod, busyness, prefix="h3render", allow_foreign=allow_foreign, now_anyway=now_anyway, read_at=NOW
    )


def test_a_pod_that_ends_is_told_with_its_name_cost_and_age():
    text = "\n".join(judge(make_pod()).to_lines())
    for told in ("pod1", NAME, "1 h old, 15.12 USD per hour", "its worker is ready", "is destroyed"):
        assert told in text
    mounted = {"network": [{"volumeId": "vol1", "path": "/x"}]}
    assert "network volume vol1 is kept" in "\n".join(judge(make_pod(mounts=mounted)).to_lines())


def test_another_ones_pod_is_ended_only_by_name():
    with pytest.raises(GuardRefused, match=r"'work-of-others', and ours begin with 'h3render-'.*--foreign"):
        judge(make_pod(name="work-of-others"))
    assert "(foreign)" in judge(make_pod(name="work-of-others"), allow_foreign=True).to_lines()[0]


@pytest.mark.parametrize("work", [Work.BUSY, Work.UNKNOWN])
def test_a_pod_that_renders_or_may_render_is_ended_only_at_once(work):
    with pytest.raises(GuardRefused, match="--now"):
        judge(make_pod(), Busyness(work, "job 1"))
    assert judge(make_pod(), Busyness(work, "job 1"), now_anyway=True)


def test_foreign_alone_does_not_end_a_busy_pod():
    with pytest.raises(GuardRefused, match="--now"):
        judge(make_pod(name="x"), Busyness(Work.BUSY, "job 1"), allow_foreign=True)


# --- busy


@pytest.mark.parametrize(
    ("worker", "work"),
    [
        (make_worker(NAME), Work.BUSY),
        (make_worker("pod1"), Work.BUSY),
        (make_worker("other", host="pod1"), Work.BUSY),
        (make_worker(NAME, state=WorkerState.DRAINING), Work.BUSY),
        (make_worker(NAME, job=False), Work.BUSY),  # it says so
        (make_worker(NAME, job=False, state=WorkerState.READY), Work.IDLE),
        (make_worker(NAME, state=WorkerState.LOST), Work.ABSENT),
        (make_worker("other"), Work.ABSENT),
    ],
)
def test_a_pods_worker_is_found_by_the_name_that_the_order_gave_it(worker, work):
    assert judge_workers([worker], "pod1", NAME).work is work


def test_without_a_queue_nothing_is_checked_and_that_is_said():
    told = ask_queue(None, "pod1", NAME)
    assert not told.forbids
    assert told.describe() == "REDIS_URL is not set, so whether the pod is busy is not checked"


@pytest.mark.parametrize("url", ["redis://:canary@127.0.0.1:1/0", "canary://x"])
def test_a_queue_that_does_not_answer_forbids_and_its_url_is_not_shown(url):
    told = ask_queue(SecretStr(url), "pod1", NAME)
    assert told.forbids
    assert "canary" not in told.describe()


def test_a_real_queue_is_asked(redis, redis_url):
    seconds, _ = redis.time()
    write_worker(redis, make_worker(NAME, beat_at=float(seconds)))
    assert ask_queue(SecretStr(redis_url), "pod1", NAME).describe() == "it renders job job1, step 3 of 50"
