"""`h3render bench decode`, on a toy checkpoint."""

import json

import pytest

from tests.h3.bench.command import run


@pytest.fixture(scope="module")
def bench(tiny, tmp_path_factory):
    report = tmp_path_factory.mktemp("bench") / "decode.json"
    root = tiny.transformer.parent
    done = run("decode", "--model", root, "--shape", "96x64x56", "--peer", "diffusers", "--report", report)
    return json.loads(report.read_text()), done


def test_both_decode_by_turns_and_ours_has_a_segment_before_the_end(bench):
    report, done = bench
    told = [line.partition(":")[0] for line in done.stderr.splitlines() if "96x64/56" in line]
    assert told == ["h3render", "diffusers", "diffusers", "h3render"]
    ours, theirs = report["results"]
    assert (ours["name"], theirs["name"]) == ("h3render", "diffusers")
    for turn in ours["turns"]:
        assert 0 < turn["first_segment_s"] < turn["seconds"]
    for result in (ours, theirs):
        seconds = [turn["seconds"] for turn in result["turns"]]
        assert min(seconds) <= result["seconds"] <= max(seconds)


def test_a_person_sees_seconds_and_frames(bench):
    _, done = bench
    for told in ("96x64, 56 frames", "first segment", "frames/s"):
        assert told in done.stdout


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path):
    done = run("decode", "--model", tmp_path / "nowhere", code=2)
    assert "nowhere" in done.stderr
