"""That the records agree with what ran."""

import pytest

from tests.infra.runpod.billing import bucket_end, bucket_start
from tests.infra.runpod.clients import body, client_of
from tests.infra.runpod.clock import parse_rfc3339
from tests.infra.runpod.server import running_runpod
from tests.infra.runpod.world import World

HOURLY_USD = 8 * 1.89
DISK_USD = (50 + 100) * 0.10 / 730  # an hour
MOUNTS = {"persistent": {"size": 100, "path": "/workspace"}}


def bill(http, query="bucketSize=hour&lastN=24"):
    return http.get(f"/v2/billing/pods?{query}").json()


def test_a_pod_is_billed_from_its_creation_to_its_end_and_no_longer(runpod, http):
    pod = http.post("/v2/pods", json=body(mounts=MOUNTS)).json()
    runpod.advance(5400)
    http.delete(f"/v2/pods/{pod['id']}")
    runpod.advance(7200)
    answer = bill(http)
    assert [record["startTime"][11:13] for record in answer["records"]] == ["00", "01"]
    assert [record["gpuAmount"] for record in answer["records"]] == pytest.approx([HOURLY_USD, HOURLY_USD / 2])
    totals = answer["metadata"]["totals"]
    assert totals["totalAmount"] == pytest.approx(1.5 * (HOURLY_USD + DISK_USD))
    assert totals["diskAmount"] == pytest.approx(1.5 * DISK_USD)


def test_a_stopped_pod_pays_twice_for_its_volume_and_nothing_else(runpod, http):
    pod = http.post("/v2/pods", json=body(mounts=MOUNTS)).json()
    http.post(f"/v2/pods/{pod['id']}/action", json={"action": "stop"})
    runpod.advance(3600)
    (record,) = bill(http)["records"]
    assert (record["gpuAmount"], record["diskAmount"]) == (0, pytest.approx(100 * 0.20 / 730))


def test_one_pod_or_all_are_reported(runpod, http):
    one, two = (http.post("/v2/pods", json=body()).json()["id"] for _ in range(2))
    runpod.advance(60)
    assert {record["podId"] for record in bill(http)["records"]} == {one, two}
    alone = bill(http, f"podId={two}")
    assert [record["podId"] for record in alone["records"]] == [two]
    assert (alone["metadata"]["query"]["bucketSize"], alone["metadata"]["query"]["podId"]) == ("day", two)


def test_money_may_be_reported_late(later):
    with running_runpod(later=later, world=World(billing_lag_s=3600)) as runpod, client_of(runpod) as http:
        http.post("/v2/pods", json=body())
        runpod.advance(3600)
        assert bill(http)["records"] == []
        runpod.advance(1800)
        assert bill(http)["metadata"]["totals"]["gpuAmount"] == pytest.approx(HOURLY_USD / 2)


def test_a_window_is_widened_to_its_buckets(http):
    query = bill(http, "bucketSize=day&startTime=2026-11-29T10:00:00Z&endTime=2026-11-30T10:00:00Z")["metadata"][
        "query"
    ]
    assert (query["startTime"], query["endTime"]) == ("2026-11-29T00:00:00Z", "2026-12-01T00:00:00Z")


@pytest.mark.parametrize(
    ("size", "start", "end"),
    [
        ("hour", "2026-12-31T23:00:00Z", "2027-01-01T00:00:00Z"),
        ("day", "2026-12-31T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("week", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"),
        ("month", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("year", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
    ],
)
def test_buckets_follow_the_calendar(size, start, end):
    moment = parse_rfc3339("2026-12-31T23:30:00Z")
    assert (bucket_start(moment, size), bucket_end(moment, size)) == (parse_rfc3339(start), parse_rfc3339(end))
