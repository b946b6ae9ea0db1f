"""The file of orders: what is written is on the disk, a crash spoils at most the line that it cut short."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from infra.clock import Clock
from infra.errors import LedgerUnusable
from infra.ledger import MOVES, Ledger, RowState
from tests.infra.pods import NOW, TOKEN, make_row


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "state" / "pods.jsonl", Clock(now=lambda: NOW + timedelta(minutes=1)))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "pods.jsonl"


def test_nothing_was_ordered_where_no_file_is(ledger):
    assert ledger.read() == []


def test_the_last_line_of_a_token_tells_how_it_stands(ledger, path):
    ledger.append(make_row())
    ledger.append(make_row(token="f" * 16))
    created = ledger.move(make_row(), RowState.CREATED, pod_id="pod1")
    assert ledger.read() == [created, make_row(token="f" * 16)]
    assert (created.at, created.ordered_at) == (NOW + timedelta(minutes=1), NOW)
    assert ledger.find("pod1") == created
    assert ledger.find("pod2") is None
    assert [json.loads(line)["state"] for line in path.read_text().splitlines()] == ["intent", "intent", "created"]


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
def test_nobody_else_may_read_it(ledger, path):
    ledger.append(make_row())
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_each_line_is_on_the_disk_before_the_call_returns(ledger, path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    ledger.append(make_row())
    assert path.stat().st_size in synced


@pytest.mark.parametrize("kept", [1, 20, -2, -1])
def test_a_line_that_a_crash_cut_short_is_passed_over_and_the_next_is_whole(ledger, path, kept):
    ledger.append(make_row())
    line = make_row(token="f" * 16).model_dump_json()
    with path.open("a") as file:
        file.write(line[:kept])
    assert [row.token for row in ledger.read()] == [TOKEN]
    ledger.append(make_row(token="e" * 16))
    assert [row.token for row in ledger.read()] == [TOKEN, "e" * 16]


def test_a_line_without_its_end_is_whole_if_all_of_it_is_there(ledger, path):
    ledger.append(make_row())
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    ledger.append(make_row(token="e" * 16))
    assert [row.token for row in ledger.read()] == [TOKEN, "e" * 16]


def test_zeros_that_a_power_cut_leaves_are_passed_over(ledger, path):
    ledger.append(make_row())
    with path.open("ab") as file:
        file.write(b"\0" * 100)
    ledger.append(make_row(token="e" * 16))
    assert [row.token for row in ledger.read()] == [TOKEN, "e" * 16]


@pytest.mark.parametrize("line", ['{"token": "x"}', "[]", '{"version": 2}'])
def test_a_file_that_is_not_ours_is_told_by_its_line_and_never_added_to_in_silence(ledger, path, line):
    ledger.append(make_row())
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(LedgerUnusable, match=r"line 2.*H3_PODS_LEDGER"):
        ledger.read()


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    tmp_path.joinpath("file").write_text("")
    with pytest.raises(LedgerUnusable, match="H3_PODS_LEDGER"):
        Ledger(tmp_path / "file" / "pods.jsonl").append(make_row())


def test_commands_that_append_at_a_time_do_not_mix(ledger):
    tokens = [f"{number:016x}" for number in range(50)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda token: ledger.append(make_row(token=token)), tokens))
    assert {row.token for row in ledger.read()} == set(tokens)


def test_a_file_of_an_earlier_version_is_read(ledger, path):
    ledger.append(make_row())
    line = json.loads(path.read_text())
    del line["lease_until"]
    path.write_text(f"{json.dumps(line)}\n")
    assert ledger.read() == [make_row()]


def test_a_pod_that_drains_may_be_kept_after_all(ledger):
    draining = ledger.move(make_row(RowState.CREATED, pod_id="pod1"), RowState.DRAINING)
    assert ledger.move(draining, RowState.CREATED).pod_id == "pod1"
    assert ledger.move(draining, RowState.TERMINATING).pod_id == "pod1"


def test_what_is_gone_stays_gone():
    assert MOVES[RowState.GONE] == set()
    assert set(MOVES) == set(RowState)
    assert all(RowState.INTENT not in after for after in MOVES.values())


def test_a_move_that_is_not_in_the_table_is_our_mistake(ledger):
    with pytest.raises(AssertionError, match="gone does not become created"):
        ledger.move(make_row(RowState.GONE), RowState.CREATED)
