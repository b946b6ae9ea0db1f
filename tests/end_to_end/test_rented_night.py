"""A night on rented machines: a batch brings pods, they render it, and they go; whatever dies meanwhile."""

from itertools import pairwise

import pytest

from tests.end_to_end.rented import KEY, SECRET, Rented, count_most, find_end, renting
from tests.infra.pod_commands import find_processes
from tests.waiting import eventually

ENDS_WITHIN_S = 90.0


@pytest.fixture
def most(full):
    """Pods at once."""
    return 3 if full else 2


@pytest.fixture
def shots(full):
    """Work for seconds after the last pod was ordered."""
    return 60 if full else 36


@pytest.fixture
def rented(redis_server, tmp_path, most):
    with renting(redis_server, tmp_path, most) as rented:
        yield rented
    eventually(lambda: find_processes(SECRET, "environ") == [])


def find_renders(rented: Rented) -> dict[str, list[tuple[float, float]]]:
    """From the begin of each attempt to its end, by the pod; the time is that of Redis, which is this machine's."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for row in rented.read_rows():
        events = rented.read_events(row.job_id)
        for (begun_at, began), (ended_at, _) in pairwise(e for e in events if e[1]["kind"] in ("started", "finished")):
            spans.setdefault(began["worker"].rpartition("-")[0], []).append((begun_at, ended_at))
    return spans


@pytest.mark.parametrize(("most", "shots"), [(3, 60)])
def test_a_batch_brings_as_many_pods_as_it_may_and_all_go_once_it_is_rendered(rented, shots):
    rented.submit(shots, steps=4)
    assert rented.runpod.alive() == []
    with rented.running_up() as up:
        eventually(lambda: len(rented.runpod.alive()) == rented.most, timeout_s=30)
        assert find_processes(KEY, "cmdline") == find_processes(SECRET, "cmdline") == []
        assert up.await_end(ENDS_WITHIN_S) == 0, up.read()
    pods = rented.runpod.world.pods
    assert rented.runpod.alive() == []
    assert (len(pods), count_most(pods)) == (rented.most, rented.most)
    assert rented.find_flaws() == []
    assert len(rented.read_rows()) == shots

    renders = find_renders(rented)
    assert sum(map(len, renders.values())) == shots
    for pod in pods:
        assert not any(begun < find_end(pod) < ended for begun, ended in renders.get(pod.settings["name"], []))
    assert up.read().splitlines()[-1].startswith("no pod is left; the campaign has cost about 0.")
    books = rented.read_books()
    assert pods[0].settings["name"].encode() in books
    for secret in (KEY, SECRET):
        assert secret not in up.read()
        assert secret.encode() not in books


@pytest.mark.slow
def test_neither_a_reconciler_that_dies_nor_a_pod_that_vanishes_costs_a_result_or_leaves_a_pod(rented, shots):
    rented.submit(shots, steps=8)
    with rented.running_up() as up:
        eventually(lambda: len(rented.runpod.alive()) == rented.most, timeout_s=30)
        busy = eventually(rented.find_busy, timeout_s=60)
        up.kill()
    victim = next(pod for pod in rented.runpod.alive() if pod.settings["name"] in busy)
    rented.runpod.end_pod(victim.id)
    rented.let_lease_run_out()
    with rented.running_up() as up:
        assert up.await_end(ENDS_WITHIN_S) == 0, up.read()
    pods = rented.runpod.world.pods
    assert f"{victim.settings['name']} is gone: RunPod does not know it any more" in up.read()
    assert rented.runpod.alive() == []
    assert count_most(pods) == rented.most
    assert len({pod.settings["env"]["FLEET_TOKEN"] for pod in pods}) == len(pods)
    assert rented.find_flaws() == []
    assert sum(row.attempts - 1 for row in rented.read_rows()) <= 1  # what the pod rendered when it vanished
