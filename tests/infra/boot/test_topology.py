"""What is read of a machine, from a tool that says what the real one says, and what is thought of it."""

import os

import pytest

from infra.boot.checks import find_faults
from infra.boot.driver import Answer, Peers, read_cuda, read_peers
from infra.boot.settings import BootSettings
from infra.boot.topology import Limits, Topology, keep_topology, read_limits, read_topology
from tests.infra.boot.driver_tool import ANSWERS, QUERY, peers, put_tool

CANARY = "canary-of-the-environment"


@pytest.fixture
def settings(models):
    return BootSettings(
        name="h3render-f1-pod-0001", pod_id="p1", data_center="US-XX-1", models=models, redis_url=CANARY
    )


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts the tool first on PATH, with these answers changed."""

    def put(**changes):
        monkeypatch.setenv("PATH", f"{put_tool(tmp_path / 'bin', ANSWERS | changes)}:{os.environ['PATH']}")

    return put


def test_a_machine_is_read_and_kept_with_every_answer_and_nothing_of_the_environment(tool, settings, monkeypatch):
    tool()
    monkeypatch.setenv("SECRET", CANARY)
    topology = read_topology(settings)
    path = keep_topology(topology, settings.models)
    assert path.name == "h3render-f1-pod-0001.topology.json"
    assert CANARY not in path.read_text()
    assert Topology.model_validate_json(path.read_bytes()) == topology
    assert [gpu.bus_id for gpu in topology.gpus] == ["00000000:C1:00.0", "00000000:E1:00.0"]
    assert [(gpu.link_generation, gpu.link_generation_max) for gpu in topology.gpus] == [(1, 5), (5, 5)]
    assert topology.cuda == (13, 0)
    assert (topology.pod_id, topology.data_center) == ("p1", "US-XX-1")
    assert topology.answers["matrix"].stdout.startswith("GPU0\tGPU1")
    assert topology.summarize()["gpus"] == 2


def test_an_option_that_the_tool_does_not_have_is_unknown_and_its_refusal_is_kept(tool, settings):
    tool()
    topology = read_topology(settings)
    said = {"read": Peers.YES, "write": Peers.YES, "nvlink": Peers.NO, "atomics": Peers.UNKNOWN, "prop": Peers.UNKNOWN}
    assert topology.peers == said
    assert topology.answers["p2p prop"] == Answer(exit_code=2, stderr="Invalid p2p capability index")


def test_a_machine_without_the_tool_has_no_gpu(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    topology = read_topology(settings)
    [fault] = find_faults(settings, topology)
    assert fault.startswith("no GPU: nvidia-smi cannot be run: No such file")
    assert list(find_faults(settings.model_copy(update={"gpus": 0}), topology)) == []


@pytest.mark.parametrize(
    ("text", "cuda"),
    [("CUDA Version : 13.2", (13, 2)), ("CUDA UMD Version: 13.1", (13, 1)), ("CUDA Version: N/A", None)],
)
def test_the_newest_cuda_of_a_driver_is_read_as_far_as_it_says(text, cuda):
    assert read_cuda(Answer(exit_code=0, stdout=text)) == cuda


def test_one_pair_that_does_not_reach_each_other_is_a_no():
    text = peers("OK").replace("OK", "CNS", 1)
    assert read_peers(Answer(exit_code=0, stdout=text)) is Peers.NO
    assert read_peers(Answer(exit_code=0, stdout=" \tGPU0\t\n GPU0\tX\t\n")) is Peers.UNKNOWN  # there is no pair


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        ({"cpu.max": "1600000 100000", "memory.max": "1073741824"}, Limits(cpus=16, memory_bytes=1 << 30)),
        ({"cpu.max": "max 100000", "memory.max": "max"}, Limits(cpus=None, memory_bytes=None)),
        (
            {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000", "memory/memory.limit_in_bytes": "5"},
            Limits(cpus=1.5, memory_bytes=5),
        ),
        (
            {"cpu/cpu.cfs_quota_us": "-1", "memory/memory.limit_in_bytes": "9223372036854771712"},
            Limits(cpus=None, memory_bytes=None),
        ),
        ({}, Limits(cpus=None, memory_bytes=None)),
    ],
)
def test_limits_of_a_container_are_read_in_either_form(tmp_path, files, limits):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert read_limits(tmp_path) == limits


def test_each_fault_is_told_with_its_values(tool, settings):
    tool()
    well = read_topology(settings).model_copy(update={"shm_bytes": 2 << 30})
    assert list(find_faults(settings, well)) == []
    assert list(find_faults(settings, well.model_copy(update={"cuda": None}))) == []  # unknown is no fault
    poor = well.model_copy(update={"cuda": (12, 9), "shm_bytes": 64 << 20})
    told = list(find_faults(settings.model_copy(update={"gpus": 8, "redis_url": None}), poor))
    assert told == [
        "REDIS_URL is not set: put the queue's into the env file of the order",
        "2 GPUs where 8 were ordered; another machine is needed",
        "the driver runs CUDA 12.9 where 13.0 is needed: order with minCudaVersion 13.0",
        "shared memory: /dev/shm has 0.062 GiB, 2 GPUs need 2: --shm-size, or another machine",
    ]


def test_a_driver_that_fails_is_quoted(tool, settings):
    tool(**{QUERY: "No devices were found\n"})
    [fault] = find_faults(settings, read_topology(settings))
    assert fault == "no GPU: No devices were found; another machine is needed"
