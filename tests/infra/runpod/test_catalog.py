"""Prices and stock: what is listed follows from the machines and from what stands on them."""

import pytest

from tests.infra.runpod.catalog import H200, MI300X, MIG_SLICE, SERVER_EDITION, Gap
from tests.infra.runpod.clients import body

STOCK = "include=AVAILABILITY&product=POD"


def gpus(http, query=""):
    return {gpu["id"]: gpu for gpu in http.get(f"/v2/catalog/gpus?{query}").json()["gpus"]}


def places(gpu):
    return {center["id"]: center["availability"] for center in gpu.get("dataCenters", ())}


def test_without_include_there_are_prices_of_one_gpu_and_no_stock(http):
    gpu = gpus(http)[SERVER_EDITION]
    assert gpu["price"] == {"secure": 1.89, "community": 1.69}
    assert gpu["maxCount"] == {"secure": 8, "community": 8}
    assert not gpu.keys() & {"availability", "dataCenters", "cudaVersions"}
    assert (gpus(http)[H200]["community"], MIG_SLICE in gpus(http)) == (False, True)


def test_stock_depends_on_how_many_gpus_one_machine_shall_have(http):
    one, eight = gpus(http, STOCK)[SERVER_EDITION], gpus(http, f"{STOCK}&count=8")[SERVER_EDITION]
    assert places(one) == {"US-KS-2": "HIGH", "US-TX-3": "HIGH", "US-GA-2": "HIGH", "EU-RO-1": "HIGH"}
    assert places(eight) == {"US-KS-2": "HIGH", "US-TX-3": "LOW", "US-GA-2": "MEDIUM", "EU-RO-1": "LOW"}


def test_a_floor_or_a_set_of_cuda_versions_narrows_the_stock(http):
    floor = gpus(http, f"{STOCK}&count=8&minCudaVersion=13")[SERVER_EDITION]
    assert "US-TX-3" not in places(floor)
    assert floor["cudaVersions"] == [{"version": "13.0", "available": True}]
    exact = gpus(http, f"{STOCK}&cudaVersions=12.8")[SERVER_EDITION]
    assert places(exact) == {"US-TX-3": "HIGH"}
    assert "cudaVersions" not in gpus(http, STOCK)[MI300X]


def test_what_is_taken_is_no_longer_in_stock(http):
    http.post("/v2/pods", json=body(dataCenterIds=["EU-RO-1"]))
    gpu = gpus(http, f"{STOCK}&count=8")[SERVER_EDITION]
    assert places(gpu)["EU-RO-1"] == "NONE"


def test_without_any_stock_the_list_of_places_is_left_out(runpod, http):
    for center in runpod.world.catalog.data_centers:
        runpod.world.catalog.gaps.append(Gap(center.id, runpod.now, runpod.now + 60))
    gpu = gpus(http, STOCK)[SERVER_EDITION]
    assert (gpu["availability"], "dataCenters" in gpu) == ("NONE", False)
    assert gpu["cudaVersions"] == [{"version": "12.8", "available": False}, {"version": "13.0", "available": False}]


def test_countries_drop_gpus_from_the_list_but_not_the_one_that_is_asked_for(http):
    assert H200 not in gpus(http, f"{STOCK}&countryCodes=RO")
    alone = http.get(f"/v2/catalog/gpus/NVIDIA%20H200?{STOCK}&countryCodes=RO").json()
    assert (alone["availability"], "dataCenters" in alone) == ("NONE", False)
    assert http.get("/v2/catalog/gpus/none").status_code == 404


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"US-KS-2", "US-TX-3", "US-GA-2", "EU-RO-1"}),
        ("regions=EUROPE,ASIA", {"EU-RO-1"}),
        ("networkVolumeTypes=STANDARD,HIGH_PERFORMANCE", {"US-KS-2"}),
        ("compliance=GDPR", {"EU-RO-1"}),
        ("globalNetwork=false", {"US-TX-3", "US-GA-2"}),
        ("regions=ANTARCTICA", set()),
    ],
)
def test_data_centers_are_filtered(http, query, expected):
    centers = http.get(f"/v2/catalog/datacenters?{query}").json()["dataCenters"]
    assert {center["id"] for center in centers} == expected


def test_the_stock_of_a_data_center_counts_single_gpus(http):
    center = http.get("/v2/catalog/datacenters/US-TX-3?include=GPU_AVAILABILITY").json()
    assert {gpu["id"]: gpu["availability"] for gpu in center["gpuAvailability"]}[SERVER_EDITION] == "HIGH"
    assert "gpuAvailability" not in http.get("/v2/catalog/datacenters/US-TX-3").json()
    assert http.get("/v2/catalog/datacenters/none").status_code == 404
