"""What a fleet costs its machine, and when it costs too much."""

import os
import subprocess
import sys

import pytest

from jobs.workers import GPURecord, RankRecord
from worker.vitals import Driver, Growth, GrowthLimits, read_rss_bytes

LIMITS = GrowthLimits(rss_bytes=100 << 20, vram_bytes=50 << 20)
SMALL, LARGE = 100, 200  # pixels


@pytest.fixture
def growth():
    return Growth(LIMITS)


def look(growth, pixels=SMALL, rss_mib=1000, vram_mib=5000):
    ranks = [RankRecord(rank=rank, pid=1, phase="ready", rss_bytes=(rss_mib << 20) // 2) for rank in range(2)]
    gpus = [GPURecord(used_bytes=(vram_mib << 20) // 2, total_bytes=1 << 40) for _ in range(2) if vram_mib]
    return growth.look(pixels, ranks, gpus)


def test_a_fleet_may_be_of_any_size_and_grow_up_to_the_limit(growth):
    assert look(growth) == ""
    assert look(growth, rss_mib=1100, vram_mib=5050) == ""


def test_beyond_the_limit_it_is_said_who_has_grown_by_how_much(growth):
    look(growth)
    assert look(growth, rss_mib=1102) == "the ranks hold 102 MiB more than after the first render of this size"
    assert look(growth, vram_mib=5052) == "the GPUs hold 52 MiB more than after the first render of this size"


def test_little_by_little_counts_together(growth):
    said = [look(growth, rss_mib=1000 + 30 * number) for number in range(5)]
    assert [bool(reason) for reason in said] == [False, False, False, False, True]


def test_a_larger_render_may_need_more_and_what_it_has_had_is_kept(growth):
    look(growth)
    assert look(growth, LARGE, vram_mib=9000) == ""
    assert look(growth, SMALL, vram_mib=9000) == ""
    assert look(growth, LARGE, vram_mib=9051) != ""


def test_a_driver_that_does_not_answer_for_a_while_changes_nothing(growth):
    """Else all that is there would be growth when it answers again."""
    assert look(growth, vram_mib=0) == ""
    assert look(growth, vram_mib=5000) == ""
    assert look(growth, vram_mib=0) == ""
    assert look(growth, vram_mib=5051) != ""


def test_memory_of_a_process_is_what_it_really_has():
    command = [sys.executable, "-c", "held = b'x' * (64 << 20); print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert 64 << 20 < read_rss_bytes(process.pid) < 128 << 20
        process.stdin.close()
    assert read_rss_bytes(process.pid) == 0


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A program in the place of NVIDIA's, which does what a test says, and its calls."""
    program, calls = tmp_path / "nvidia-smi", tmp_path / "calls"

    def make(script):
        program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{script}\n')
        program.chmod(0o755)
        return Driver(["0", "GPU-5"])

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    make.calls = lambda: calls.read_text().splitlines()
    return make


def test_the_driver_is_asked_for_the_gpus_of_this_worker(driver):
    asked = driver("echo '1000, 143771'; echo '2, 143771'")
    assert [gpu.used_bytes >> 20 for gpu in asked.read_gpus()] == [1000, 2]
    assert [gpu.total_bytes >> 20 for gpu in asked.read_gpus()] == [143771, 143771]
    assert driver.calls()[0].endswith("--id=0,GPU-5")


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'", "echo '[N/A], 12'"])
def test_of_a_driver_that_has_nothing_to_say_nothing_is_read(driver, script):
    assert driver(script).read_gpus() == ()


def test_a_machine_without_gpus_asks_nobody():
    assert Driver([]).read_gpus() == ()


def test_a_driver_that_hangs_is_not_asked_a_second_time_meanwhile(driver, monkeypatch):
    """Nothing ends a process that hangs in the kernel; this one can be ended, and is not yet."""
    monkeypatch.setattr("worker.vitals.QUERY_TIMEOUT_S", 0.3)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _: None)
    asked = driver("exec sleep 60")
    assert asked.read_gpus() == ()
    monkeypatch.undo()
    assert asked.read_gpus() == ()
    assert len(driver.calls()) == 1
    asked._hung.kill()
    asked._hung.communicate()
