"""The real command, with real workers (small shell scripts), a real Redis and a real file server."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis

from infra.boot.errors import Unfit
from infra.boot.preparation import look_at_machine, try_machine
from infra.boot.settings import BootSettings
from infra.boot.topology import Topology
from infra.pod_report import BootState, note_contact, read_reports
from jobs.workers import WorkerState, write_worker
from tests.infra.boot.driver_tool import put_tool
from tests.infra.pod_commands import ROOT, make_environment
from tests.jobs.records import LASTING_BEAT_S, record
from tests.servers import DIES_WITH_PARENT
from tests.waiting import eventually

NAME = "h3render-f1-pod-0001"
COMMAND = ["-m", "h3render", "pods", "boot"]
FASTER = [str(ROOT / "tools/runpod_api.py"), "boot"]  # the same, without the other packages' commands
PART = 1000
CONTENT = random.Random(2).randbytes(10 * PART)
# Serves until it is told to leave: what it notes is what a test looks at.
WORKER = "trap 'echo drained >> notes; kill $!; exit {code}' TERM; echo started $0 >> notes; sleep 60 & wait"
IMPATIENT = (
    "import infra.boot.worker_process as w; w.SHORTEST_PAUSE_S = 0.01; from infra.cli import pods_app; pods_app()"
)


class Boots:
    """Pods of one test, which run in its folder."""

    def __init__(self, folder, redis, redis_url, stack):
        self.folder = folder
        self.log = folder / "log"
        self._redis = redis
        self._stack = stack
        self._environment = {
            "H3_WORKER_NAME": NAME,
            "FLEET_ID": "f1",
            "RUNPOD_POD_ID": "p1",
            "REDIS_URL": redis_url,
            "H3_POD_GPUS": "0",
            "H3_POD_MODELS": str(folder / "models"),
            "H3_POD_HEALTH_FILE": str(folder / "healthy"),
            "H3_POD_START_SCRIPT": str(folder / "start.sh"),
            "H3_POD_LOOK_S": "0.05",
            "H3_POD_END_COMMAND": "sh -c 'echo ended >> notes'",
            "H3_POD_END_GRACE_S": "0.05",
            "H3_POD_WORKER_COMMAND": shlex.join(["sh", "-c", WORKER.format(code=0)]),
        }

    def start(self, *command, **variables):
        log = self._stack.enter_context(self.log.open("ab"))
        environment = make_environment(self.folder, self._environment | variables)
        environment["PYTHONPATH"] = str(ROOT)  # for it runs elsewhere
        arguments = [*DIES_WITH_PARENT, sys.executable, *(command or FASTER)]
        pod = subprocess.Popen(arguments, env=environment, cwd=self.folder, stdout=log, stderr=log)
        self._stack.callback(self._end, pod)
        return pod

    @staticmethod
    def _end(pod):
        pod.kill()  # by then each test has seen to its worker
        pod.wait()

    @property
    def notes(self):
        path = self.folder / "notes"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    @property
    def report(self):
        return read_reports(self._redis).get(NAME)

    def is_in(self, state, **fields):
        told = self.report
        return told is not None and told.state is state and all(getattr(told, key) == fields[key] for key in fields)

    @property
    def is_healthy(self):
        return (self.folder / "healthy").exists()

    def stop(self, pod):
        """As a container's end; the exit code."""
        pod.send_signal(signal.SIGTERM)
        return pod.wait(timeout=20)


@pytest.fixture
def boots(tmp_path, redis, redis_url):
    with ExitStack() as stack:
        yield Boots(tmp_path, redis, redis_url, stack)


def test_sigterm_drains_the_worker_and_its_exit_code_is_the_pods(boots):
    script = boots.folder / "start.sh"
    script.write_text("#!/bin/sh\necho ssh >> notes; exec sleep 60\n")
    script.chmod(0o755)
    pod = boots.start(*COMMAND, H3_POD_WORKER_COMMAND=shlex.join(["sh", "-c", WORKER.format(code=3)]))
    eventually(lambda: {"ssh", "started sh"} <= set(boots.notes))
    eventually(lambda: boots.is_in(BootState.SERVING, wants_end=False, gpus=0))
    assert boots.is_healthy
    assert boots.stop(pod) == 3
    assert boots.notes.count("drained") == 1
    assert "ended" not in boots.notes
    assert boots.is_in(BootState.LEAVING, wants_end=False, reason="told to stop")
    assert not boots.is_healthy


def test_an_unhealthy_worker_is_not_started_again_and_the_pod_stays_to_be_looked_at(boots):
    pod = boots.start(H3_POD_WORKER_COMMAND="sh -c 'echo once >> notes; exit 78'")
    eventually(lambda: boots.notes.count("ended") == 2)  # it is still there, so it asks again
    assert pod.poll() is None
    assert boots.notes.count("once") == 1
    assert not boots.is_healthy
    assert boots.is_in(BootState.UNFIT, wants_end=True)
    assert "its worker is unhealthy (78)" in boots.report.reason
    assert boots.stop(pod) == 78


def test_a_worker_that_fails_is_started_again(boots):
    worker = "echo once >> notes; [ $(grep -c once notes) = 3 ] || exit 75; " + WORKER.format(code=0)
    pod = boots.start("-c", IMPATIENT, "boot", H3_POD_WORKER_COMMAND=shlex.join(["sh", "-c", worker]))
    eventually(lambda: "started sh" in boots.notes)
    assert boots.stop(pod) == 0
    assert boots.notes == ["once", "once", "once", "started sh", "drained"]


def test_a_pod_leaves_once_it_has_been_idle_and_asks_for_its_end(boots, redis):
    write_worker(redis, record(redis, NAME, state=WorkerState.BUSY, beat_s=LASTING_BEAT_S))
    pod = boots.start(H3_POD_IDLE_S="0.2", H3_POD_CONTACT_S="0.1")
    began = eventually(lambda: boots.is_in(BootState.SERVING) and boots.report.at)
    eventually(lambda: boots.report.at > began + 0.4)  # longer than an idle one would stay
    assert "drained" not in boots.notes
    write_worker(redis, record(redis, NAME, state=WorkerState.READY, beat_s=LASTING_BEAT_S))
    note_contact(redis, "f1")
    eventually(lambda: boots.notes.count("ended") == 2)
    assert boots.notes[:2] == ["started sh", "drained"]
    assert pod.poll() is None
    assert boots.is_in(BootState.LEAVING, wants_end=True)
    assert boots.report.reason.startswith(("no job for", "idle, and no reconciler"))
    assert boots.stop(pod) == 0


def test_a_pod_whose_lease_is_over_leaves_whatever_it_is_at(boots):
    past = datetime.now(UTC) - timedelta(minutes=1)
    pod = boots.start(LEASE_UNTIL=past.isoformat())
    eventually(lambda: "ended" in boots.notes)
    assert boots.is_in(BootState.LEAVING, wants_end=True)
    assert boots.report.reason.startswith("its lease ended 1 min")
    assert boots.stop(pod) == 0
    assert "started sh" not in boots.notes


def test_a_worker_that_renders_is_left_alone_while_redis_is_away_even_by_the_lease(tmp_path, redis_server):
    lease = datetime.now(UTC) + timedelta(seconds=5)
    with Redis.from_url(redis_server.url) as redis, ExitStack() as stack:
        boots = Boots(tmp_path, redis, redis_server.url, stack)
        write_worker(redis, record(redis, NAME, state=WorkerState.BUSY, beat_s=LASTING_BEAT_S))
        pod = boots.start(LEASE_UNTIL=lease.isoformat())
        eventually(lambda: "started sh" in boots.notes)
        began = boots.report.at
        eventually(lambda: boots.report.at > began + 0.2)  # it has heard that its worker is busy
        redis_server.kill()
        eventually(lambda: datetime.now(UTC) > lease + timedelta(seconds=0.5), interval_s=0.1)
        assert boots.notes == ["started sh"]
        redis_server.start()
        eventually(lambda: boots.notes == ["started sh", "drained", "ended"])
        assert boots.stop(pod) == 0


def test_what_was_fetched_before_a_kill_is_there_after_it(boots, server):
    manifest = json.dumps([server.put("model.safetensors", CONTENT)])
    settings = {"H3_POD_CHECKPOINTS": manifest, "H3_POD_PART_BYTES": str(PART), "H3_POD_FETCHES": "2"}
    server.held = {7 * PART, 8 * PART}
    pod = boots.start(**settings)
    eventually(lambda: server.held <= set(server.asked))
    assert boots.is_in(BootState.FETCHING)
    assert boots.is_healthy
    pod.kill()
    pod.wait()
    server.held.clear()
    server.asked.clear()
    pod = boots.start(**settings)
    eventually(lambda: boots.is_in(BootState.SERVING) and "started sh" in boots.notes)
    assert (boots.folder / "models/model.safetensors").read_bytes() == CONTENT
    assert min(server.asked) == 7 * PART
    assert boots.stop(pod) == 0
    assert "canary" not in boots.log.read_text()  # the URL's signature


def test_a_pod_with_a_wrong_setting_stays_and_says_so(boots):
    pod = boots.start(H3_POD_IDLE_S="soon")
    eventually(lambda: boots.is_in(BootState.UNFIT, wants_end=True))
    assert boots.report.reason.startswith("H3_POD_IDLE_S: input should be")
    assert not boots.is_healthy
    assert boots.stop(pod) == 78
    assert "started sh" not in boots.notes


# --- the machine


@pytest.fixture
def two_gpus(tmp_path, models, monkeypatch):
    """A machine with enough shared memory, wherever this is run."""
    monkeypatch.setenv("PATH", f"{put_tool(tmp_path / 'bin')}:{os.environ['PATH']}")
    monkeypatch.setattr("infra.boot.topology.SHM", tmp_path)

    def make(trial):
        return BootSettings(
            name=NAME, models=models, redis_url="redis://x", trial_command=shlex.join(["sh", "-c", trial])
        )

    return make


def examine(settings):
    return try_machine(settings, look_at_machine(settings), lambda: False)


def test_a_machine_with_too_few_gpus_is_refused_before_they_are_tried(two_gpus, models):
    with pytest.raises(Unfit, match="2 GPUs where 8 were ordered"):
        examine(two_gpus("exit 1").model_copy(update={"gpus": 8}))
    assert Topology.model_validate_json((models / f"{NAME}.topology.json").read_bytes()).trial is None


def test_gpus_that_work_without_p2p_alone_are_served_so_and_it_is_kept(two_gpus, models):
    assert examine(two_gpus('[ "$NCCL_P2P_DISABLE" = 1 ]')) == {"NCCL_P2P_DISABLE": "1"}
    kept = Topology.model_validate_json((models / f"{NAME}.topology.json").read_bytes())
    assert [attempt.exit_code for attempt in kept.trial.attempts] == [1, 0]


def test_gpus_that_do_not_work_are_refused_and_it_is_kept(two_gpus, models):
    with pytest.raises(Unfit, match="the GPUs do not exchange tensors"):
        examine(two_gpus("exit 1"))
    assert len(Topology.model_validate_json((models / f"{NAME}.topology.json").read_bytes()).trial.attempts) == 2


def test_a_folder_for_models_that_cannot_be_made_is_told(two_gpus, tmp_path):
    (tmp_path / "file").touch()
    settings = two_gpus("true").model_copy(update={"models": tmp_path / "file" / "models"})
    with pytest.raises(Unfit, match=r"H3_POD_MODELS .*: Not a directory: name a folder of a mounted disk"):
        examine(settings)
