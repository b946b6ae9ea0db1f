"""`h3render bench load`: a start is told phase by phase, and the next one on the same files reads no disk."""

import pytest

from h3.bench.load import Start
from h3.bench.load_ranks import Loaded
from h3.bench.page_cache import BytesRead, count_bytes_read, find_files, read_into_cache
from tests.h3.bench.command import bench, read_json

A_MEGABYTE = 10**6  # what the kernel may have taken back in between, of Python's own files
TINY = ("load", "--tiny", "--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("load")


@pytest.fixture(scope="module")
def of_denoiser(folder):
    """What two ranks with random weights say, and the report."""
    said = bench(*TINY, "--folder", folder, "--world-size", 2, "--report", folder / "denoiser.json")
    return said, read_json(folder / "denoiser.json")


@pytest.fixture(scope="module")
def of_model(folder, tiny):
    root = tiny.transformer.parents[1]
    bench("load", "--model", root, "--precision", "fp8", "--device", "cpu", "--report", folder / "model.json")
    return read_json(folder / "model.json")


def assert_phases_add_up(start):
    assert sum(start["phases"].values()) == pytest.approx(start["seconds"], abs=1e-6)
    assert min(start["phases"].values()) >= 0


def test_the_phases_of_each_start_add_up_to_it(of_denoiser, of_model):
    for report in (of_denoiser[1], of_model):
        assert len(report["starts"]) == 2
        for start in report["starts"]:
            assert_phases_add_up(start)


def test_a_second_start_on_the_same_files_reads_no_disk(of_denoiser):
    second = of_denoiser[1]["starts"][1]
    assert [rank["rank"] for rank in second["ranks"]] == [0, 1]
    if second["read_bytes"] is not None:
        assert second["read_bytes"] < A_MEGABYTE


def test_each_rank_has_read_the_weights_that_it_holds(of_denoiser):
    for rank in of_denoiser[1]["starts"][1]["ranks"]:
        assert rank["weight_bytes"] > 5 * A_MEGABYTE
        assert rank["asked_bytes"] is None or rank["asked_bytes"] > rank["weight_bytes"]
        assert rank["setup_s"] > 0


def test_the_report_says_what_was_loaded_and_by_whom(of_denoiser, of_model, folder, tiny):
    report = of_denoiser[1]
    written = folder / "untrained-nvfp4-4x192" / "FL2VA" / "transformer.safetensors"
    expected = {"version": 1, "model": str(written), "loads": "the denoiser", "precision": "nvfp4", "mode": "ulysses"}
    assert {name: report[name] for name in expected} == expected
    assert report["world_size"] == 2
    assert report["page_cache"]["size_bytes"] == written.stat().st_size
    assert report["machine"]["devices"]
    assert (of_model["loads"], of_model["precision"]) == ("the whole model", "fp8")
    assert of_model["model"] == str(tiny.transformer.parents[1])


def test_the_whole_model_is_told_part_by_part(of_model):
    phases = list(of_model["starts"][0]["phases"])
    parts = ["imports", "headers", "denoiser", "video decoder", "text encoder", "video encoder", "audio decoder"]
    assert phases == ["processes, torch, device", "process groups", *parts, "the rest of setup", "until all are ready"]


def test_the_table_has_a_line_for_each_phase_and_says_what_was_read(of_denoiser):
    said, report = of_denoiser
    assert "A start of 2 ranks with the denoiser, nvfp4, ulysses" in said
    for phase, seconds in report["starts"][0]["phases"].items():
        assert f"{seconds:.2f} s" in next(line for line in said.splitlines() if line.startswith(phase))
    assert "start 2, rank 1: read" in said


def test_bytes_are_counted_as_they_are_read_and_files_found_below_a_folder(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "one").write_bytes(bytes(3 * A_MEGABYTE))
    (tmp_path / "two").write_bytes(bytes(10))
    before, warming = count_bytes_read(), read_into_cache(find_files(tmp_path))
    assert (warming.files, warming.size_bytes) == (2, 3 * A_MEGABYTE + 10)
    assert find_files(tmp_path / "two") == [tmp_path / "two"]
    if before:
        assert count_bytes_read().asked - before.asked >= warming.size_bytes


def test_a_start_is_cut_at_the_moments_that_rank_0_tells():
    ranks = tuple(
        Loaded(rank, 12.0 + rank, 13.0, 18.0 + rank, {"headers": 1.0, "weights": 3.5}, read, 0, 0)
        for rank, read in enumerate([BytesRead(100, 7), BytesRead(100, 5)])
    )
    start = Start.between(10.0, 20.0, ranks)
    assert list(start.phases.values()) == [2.0, 1.0, 1.0, 3.5, 0.5, 2.0]
    assert (start.seconds, start.from_disk_bytes) == (10.0, 12)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--tiny", "--model", "x"), "--model has its own sizes"),
        (("--tiny", "--precision", "fp16"), "precision 'fp16' is not one of fp32, bf16, nvfp4, fp8"),
        (("--tiny", "--mode", "pipeline"), "--mode 'pipeline' is not one of ulysses, tensor"),
        (("--tiny", "--world-size", 10), "9 attention heads"),
        (("--model", "gone"), "gone is missing"),
        (("--tiny", "--report", "x.txt"), "let its name end with .json"),
        (("--tiny", "--device", "tpu"), "--device 'tpu' is not one of cuda, cpu"),
    ],
    ids=str,
)
def test_what_cannot_be_loaded_is_told_in_a_line(folder, flags, text):
    said = bench("load", "--folder", folder, "--device", "cpu", *flags, code=2)
    assert text in said.splitlines()[-1]
