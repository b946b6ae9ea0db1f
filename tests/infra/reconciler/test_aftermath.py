"""What is asked of RunPod about pods that are over: the bill, and what one wrote last."""

import pytest

from infra.reconciler.bills import ASK_EVERY_S, Bills
from infra.reconciler.last_words import LastWords
from infra.reconciler.spend import Spend, accrue
from tests.infra.runpod.clients import body
from tests.infra.runpod.faults import Fault
from tests.infra.runpod.pods import Status

HOUR_S = 3600.0


@pytest.fixture
def pod(runpod):
    """One that runs."""
    pod = runpod.add_pod(body(name="h3render-farm-pod-0123456789abcdef"))
    runpod.advance(600)
    return pod


def test_the_bill_raises_what_was_counted_and_is_not_asked_for_at_each_look(runpod, api, clock, pod):
    bills = Bills(api, clock)
    began = Spend().begin_campaign(clock.now())
    runpod.advance(2 * HOUR_S)
    assert accrue(began, [], [], clock.now()).campaign_usd == 0  # nobody of ours has seen it
    seen = accrue(began, api.list_pods(), [], clock.now())
    billed = bills.read()
    assert sum(bill.total_amount for bill in billed) > 0
    assert {bill.pod_id for bill in billed} == {pod.id}
    assert seen.raise_to(billed).campaign_usd >= seen.campaign_usd
    assert bills.read() == []
    runpod.advance(ASK_EVERY_S)
    assert bills.read() != []


def test_without_a_bill_the_look_goes_on(runpod, api, clock):
    for _ in range(9):
        runpod.script("GET", "/v2/billing/pods", Fault.SERVER_ERROR)
    assert Bills(api, clock).read() == []


def test_what_a_pod_wrote_is_kept_and_nobody_else_may_read_it(runpod, api, pod, tmp_path):
    told = []
    runpod.log_line(pod.id, "CUDA error: an illegal memory access")
    LastWords(api, tmp_path / "logs", told.append).keep(pod.id, "a-pod")
    path = tmp_path / "logs" / "a-pod.log"
    assert "CUDA error: an illegal memory access" in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert str(path) in told[0]


def test_a_pod_that_is_gone_has_no_last_words(runpod, api, pod, tmp_path):
    told = []
    runpod.end_pod(pod.id, Status.TERMINATED)
    LastWords(api, tmp_path, told.append).keep(pod.id, "a-pod")
    assert told[0].startswith("failed   the log of a-pod could not be kept")
