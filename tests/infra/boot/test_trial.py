"""The GPUs' first exchange: commands that work, fail and hang, as real processes."""

import json
import os
from pathlib import Path

import pytest

from infra.boot.errors import Stopped, Unfit
from infra.boot.trial import run_trial
from tests.infra.boot.driver_tool import put_tool
from tests.waiting import eventually

WORKS = 'echo \'{"nccl_transport": ["P2P/CUMEM"]}\' > "$2"; echo done'  # after --report
HANGS = "sleep 60 & echo $! >> {pids}; wait"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A trial by this shell script; sleepers note their process ids."""
    monkeypatch.setenv("PATH", f"{put_tool(tmp_path / 'bin')}:{os.environ['PATH']}")

    def run(script, *, limit_s=10.0, is_stopped=lambda: False):
        command = ["sh", "-c", script.replace("{pids}", str(tmp_path / "pids")), "trial"]
        return run_trial(command, limit_s=limit_s, is_stopped=is_stopped)

    return run


def sleeps(pid):
    """Whether that process is there; who has ended may wait to be collected."""
    status = Path("/proc", pid, "stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_no_sleeper(folder):
    eventually(lambda: not any(map(sleeps, (folder / "pids").read_text().split())))


def test_an_exchange_that_works_is_kept_with_its_report_and_needs_nothing(run):
    trial = run(WORKS)
    [attempt] = trial.attempts
    assert (attempt.exit_code, attempt.said, attempt.report) == (0, "done\n", {"nccl_transport": ["P2P/CUMEM"]})
    assert trial.environment == {}
    trial.require_success()


def test_one_that_hangs_is_killed_with_all_its_children_and_tried_without_p2p(run, tmp_path):
    trial = run(f'[ -n "$NCCL_P2P_DISABLE" ] || {{ {HANGS}; }}', limit_s=0.2)
    assert [attempt.exit_code for attempt in trial.attempts] == [None, 0]
    assert trial.environment == {"NCCL_P2P_DISABLE": "1"}
    trial.require_success()
    assert_no_sleeper(tmp_path)


def test_a_machine_whose_gpus_hang_twice_is_rejected(run, tmp_path):
    trial = run(HANGS, limit_s=0.1)
    with pytest.raises(Unfit, match=r"do not exchange tensors: hung for 0 s, then without P2P hung for 0 s; another"):
        trial.require_success()
    assert trial.environment == {}
    assert_no_sleeper(tmp_path)


def test_one_that_fails_is_tried_without_p2p_and_its_last_words_are_kept(run):
    trial = run('echo "NCCL WARN $NCCL_P2P_DISABLE" >&2; exit 1')
    assert [attempt.said for attempt in trial.attempts] == ["NCCL WARN \n", "NCCL WARN 1\n"]
    with pytest.raises(Unfit, match="exit code 1, then without P2P exit code 1"):
        trial.require_success()


def test_links_are_looked_at_while_they_are_busy(run, monkeypatch):
    monkeypatch.setattr("infra.boot.trial.GLANCE_S", 0.01)
    [attempt] = run("sleep 0.2").attempts
    assert attempt.busy_links == {"00000000:C1:00.0": (1, 16), "00000000:E1:00.0": (5, 16)}


def test_it_can_be_stopped_and_leaves_no_process(run, tmp_path, monkeypatch):
    monkeypatch.setattr("infra.boot.trial.GLANCE_S", 0.01)
    with pytest.raises(Stopped):
        run(HANGS, is_stopped=(tmp_path / "pids").exists)
    assert_no_sleeper(tmp_path)


def test_a_command_that_is_not_there_is_told():
    with pytest.raises(Unfit, match="the trial cannot be run: no-such-program: No such file"):
        run_trial(["no-such-program"], limit_s=1, is_stopped=lambda: False)


def test_a_report_can_be_part_of_the_record(run):
    assert json.loads(run(WORKS).model_dump_json())["attempts"][0]["report"] == {"nccl_transport": ["P2P/CUMEM"]}
