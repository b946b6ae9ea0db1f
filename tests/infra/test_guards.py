"""Money, orders and pods: tables of what was read and what follows."""

import pytest

from infra.answers import NetworkVolume
from infra.errors import GuardRefused, NoCapacity
from infra.guards import check_cap, find_differences, find_moves, find_overcharge, sum_committed
from infra.ledger import RowState
from infra.order import VolumeMount
from infra.placement import check_count, choose_data_center, choose_places, find_gpu, price_machine
from infra.settings import SERVER_EDITION
from tests.infra.pods import NAME, NOW, make_body, make_centers, make_gpu, make_pod, make_row

VOLUME = VolumeMount(volume_id="vol1", path="/runpod-volume")

# --- money


@pytest.mark.parametrize(
    ("pods", "rows", "committed"),
    [
        ([], [], 0.0),
        ([make_pod()], [], 15.12),
        ([make_pod()], [make_row(RowState.CREATED)], 15.12),  # one pod, counted once
        ([make_pod(name="somebody-elses")], [], 0.0),
        ([make_pod(status="EXITED", cost=0)], [make_row(RowState.CREATED)], 0.0),
        ([make_pod(status="PROVISIONING", cost=0)], [make_row(RowState.CREATED)], 15.12),  # it will cost that
        ([], [make_row(RowState.INTENT, age_s=1)], 15.12),
        ([], [make_row(RowState.UNKNOWN, age_s=899)], 15.12),
        ([], [make_row(RowState.UNKNOWN, age_s=900)], 0.0),
        ([], [make_row(RowState.CREATED, age_s=10)], 15.12),  # no list shows it yet
        ([], [make_row(RowState.DRAINING, age_s=10)], 15.12),
        ([], [make_row(RowState.FAILED), make_row(RowState.TERMINATING), make_row(RowState.GONE)], 0.0),
        ([make_pod(), make_pod(id="pod2", name="h3render-other-1-f", cost=1.5)], [], 16.62),
    ],
)
def test_what_our_pods_cost_together(pods, rows, committed):
    assert sum_committed(pods, rows, "h3render", NOW) == pytest.approx(committed)


@pytest.mark.parametrize(("price", "committed", "cap"), [(15.12, 0, 15.12), (0.1, 0.2, 0.3), (40, 0, 40)])
def test_the_cap_itself_may_be_reached(price, committed, cap):
    check_cap(price, committed, cap)


def test_what_goes_beyond_is_refused_with_all_figures():
    with pytest.raises(GuardRefused, match=r"15\.12 .* 30\.24, together 45\.36; the cap is 40\.00") as caught:
        check_cap(15.12, 30.24, 40)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("cost", "cap", "said"),
    [(15.12, 40, ""), (15.87, 40, ""), (15.88, 40, "by the catalog 15.12"), (15.5, 20, "the cap is 20.00")],
)
def test_a_pod_that_costs_more_than_the_catalog_says_is_noticed(cost, cap, said):
    assert said in "".join(find_overcharge(make_pod(cost=cost), 15.12, 5.0, cap))
    assert bool(said) == bool(find_overcharge(make_pod(cost=cost), 15.12, 5.0, cap))


# --- what came


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"dataCenterId": None, "cudaVersion": None}, ""),  # not told yet
        ({"cudaVersion": "13.10"}, ""),
        ({"cudaVersion": "12.9"}, "CUDA is 12.9"),
        ({"gpu": {"id": SERVER_EDITION, "count": 4}}, "gpu count is 4, not 8"),
        ({"gpu": {"id": f"{SERVER_EDITION} MIG 1g.24gb", "count": 8}}, "MIG"),
        ({"gpu": None}, "gpu is none"),
        ({"cloud": "COMMUNITY"}, "cloud is COMMUNITY"),
        ({"dataCenterId": "US-TX-3"}, "data center is US-TX-3, not US-KS-2"),
        ({"mounts": {}}, "mounts is none"),
        ({"mounts": {"persistent": {"size": 10, "path": "/workspace"}}}, "mounts is 10 GB"),
    ],
)
def test_a_pod_that_is_not_as_ordered_is_noticed(fields, said):
    differences = find_differences(make_body(), make_pod(**fields))
    assert said in "".join(differences)
    assert bool(said) == bool(differences)


def test_a_volume_is_compared_too():
    mounted = {"network": [{"volumeId": "vol1", "path": "/runpod-volume"}]}
    assert find_differences(make_body(storage=VOLUME), make_pod(mounts=mounted)) == []
    assert find_differences(make_body(storage=VOLUME), make_pod()) != []


# --- orders, by a complete list


@pytest.mark.parametrize(
    ("state", "age_s", "pods", "becomes"),
    [
        (RowState.INTENT, 149, [make_pod()], None),  # its command may still wait for the answer
        (RowState.INTENT, 150, [make_pod()], RowState.CREATED),
        (RowState.UNKNOWN, 150, [make_pod()], RowState.CREATED),
        (RowState.UNKNOWN, 899, [], None),
        (RowState.UNKNOWN, 900, [], RowState.FAILED),
        (RowState.INTENT, 900, [], RowState.FAILED),
        (RowState.FAILED, 2000, [make_pod()], RowState.CREATED),  # it came after all
        (RowState.CREATED, 2000, [make_pod()], None),
        (RowState.CREATED, 100, [], None),  # a list may lag
        (RowState.CREATED, 900, [], RowState.GONE),
        (RowState.DRAINING, 2000, [make_pod()], None),
        (RowState.DRAINING, 900, [], RowState.GONE),
        (RowState.TERMINATING, 900, [make_pod(status="TERMINATED")], RowState.GONE),
        (RowState.GONE, 2000, [], None),
    ],
)
def test_what_a_list_tells_of_an_order(state, age_s, pods, becomes):
    moves = find_moves([make_row(state, age_s)], pods, NOW)
    assert [move.state for move in moves] == ([becomes] if becomes else [])
    if becomes is RowState.CREATED:
        assert moves[0].pod_id == "pod1"


@pytest.mark.parametrize("state", [RowState.INTENT, RowState.UNKNOWN])
def test_where_nobody_else_creates_a_pod_is_known_by_its_name_at_once(state):
    [move] = find_moves([make_row(state)], [make_pod()], NOW, in_flight_s=0)
    assert (move.state, move.pod_id) == (RowState.CREATED, "pod1")


def test_a_pod_with_a_name_that_is_only_alike_proves_nothing():
    assert find_moves([make_row(RowState.UNKNOWN, 200)], [make_pod(name=f"{NAME}0")], NOW) == []


# --- where


def test_a_type_is_found_by_its_whole_id():
    slice_ = make_gpu(gpu_id=f"{SERVER_EDITION} MIG 1g.24gb")
    assert find_gpu([slice_, make_gpu()], SERVER_EDITION).id == SERVER_EDITION
    with pytest.raises(GuardRefused, match="near it: 'NVIDIA RTX PRO 6000 Blackwell Server Edition MIG"):
        find_gpu([slice_], SERVER_EDITION)
    with pytest.raises(GuardRefused, match="largest machine has 4"):
        check_count(make_gpu(largest=4), 8)


def test_nothing_is_ordered_without_a_price():
    assert price_machine(make_gpu(usd=1.5), 8) == 12.0
    with pytest.raises(GuardRefused, match="no price"):
        price_machine(make_gpu(usd=0), 8)


def test_places_are_tried_by_their_stock_and_those_without_are_not():
    gpu = make_gpu(places=[("A", "LOW"), ("B", "NONE"), ("C", "HIGH"), ("D", "PLENTY"), ("E", "MEDIUM"), ("F", "HIGH")])
    assert [place.data_center for place in choose_places(gpu, 8, None)] == ["C", "F", "E", "A"]
    assert [place.data_center for place in choose_places(gpu, 8, "A")] == ["A"]
    with pytest.raises(NoCapacity, match=r"free in B: there are some in C \(HIGH\)") as caught:
        choose_places(gpu, 8, "B")
    assert caught.value.exit_code == 4


def test_a_volume_decides_where_and_another_wish_is_refused_with_both_names():
    centers = make_centers("US-KS-2", "EUR-IS-1")
    volume = NetworkVolume(id="vol1", name="weights", size=100, dataCenter="EUR-IS-1")
    assert choose_data_center(centers, None, None) is None
    assert choose_data_center(centers, "US-KS-2", None) == "US-KS-2"
    assert choose_data_center(centers, None, volume) == "EUR-IS-1"
    assert choose_data_center(centers, "EUR-IS-1", volume) == "EUR-IS-1"
    with pytest.raises(GuardRefused, match=r"US-KS-2: network volume vol1 is in EUR-IS-1"):
        choose_data_center(centers, "US-KS-2", volume)
    with pytest.raises(GuardRefused, match=r"'us-ks-2' is not in the catalog; near it: US-KS-2"):
        choose_data_center(centers, "us-ks-2", None)
