"""`h3render bench transport`: the exchanges of a block between two ranks."""

import json

from tests.h3.bench.command import run


def test_every_exchange_is_timed_and_no_bit_is_changed(tmp_path):
    report = tmp_path / "transport.json"
    done = run("transport", "--shape", "64x32x22", "--attention", "sdpa", "--report", report)
    [sequence] = json.loads(report.read_text())["sequences"]
    assert sequence["is_identity"]
    assert sequence["operations"].keys() == {
        *("scatter_heads", "gather_heads", "gather_rows", "reduce_rows"),
        "attention",
    }
    assert all(seconds > 0 for seconds in sequence["operations"]["scatter_heads"]["seconds"])
    assert "identity" in done.stdout


def test_more_ranks_than_heads_are_refused():
    assert "57 ranks" in run("transport", "--world-size", 57, code=2).stderr
