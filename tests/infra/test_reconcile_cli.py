"""The commands for a whole fleet, with a real Redis and the local RunPod: guards, lease, secrets.

Those that act are real processes.
"""

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis import Redis

from infra.cli import pods_app
from infra.reconciler.lease import FleetKeys
from infra.reconciler.orphans import YOUNG_S
from infra.sweep import GRACE
from jobs.client import Client
from tests.in_process import call
from tests.infra.pod_commands import ROOT, SCRIPT, find_processes, make_environment, run_command
from tests.infra.runpod.clients import body
from tests.infra.runpod.clock import WallClock
from tests.infra.runpod.faults import Fault
from tests.infra.runpod.pods import QUICK
from tests.infra.runpod.server import RunPod, running_runpod
from tests.infra.runpod.world import World
from tests.servers import DIES_WITH_PARENT, RedisServer
from tests.waiting import eventually

KEY, SECRETS = "rpa_CANARY0123456789", ("canary-password", "canary-bucket", "canary-token")
POD_ENV = "REDIS_URL=redis://:canary-password@queue/0\nH3_STORE_URL=s3://canary-bucket/x\nFARM_TOKEN=canary-token\n"
WITHIN_S = 30.0  # for what takes two
KEYS = FleetKeys.of("h3render", "farm")
PLANNED = {
    "up": "order    one pod in",
    "plan": "order    one pod in",
    "down": "want     0",
    "sweep": "end      h3render-",
}
BUDGET = ("--budget-per-hour", 20, "--budget-total", 50)
USUAL = (*BUDGET, "--max", 2, "--count", 1, "--target-wait", 1, "--image", "example/h3render:1")


@dataclass
class Desk:
    """Where somebody gives the commands."""

    runpod: RunPod
    server: RedisServer
    redis: Redis
    folder: Path
    env_file: Path
    stack: ExitStack
    ups: int = 0  # that were started

    @property
    def environment(self):
        variables = {
            "REDIS_URL": self.server.url,
            "H3_PODS_LOOK_S": "0.25",
            "H3_PODS_RAISE_EVERY_S": "0.1",
            **self.runpod.environment,
        }
        return make_environment(self.folder, variables)

    def run(self, *arguments, code=0, **variables):
        done = run_command(arguments, self.environment | variables, (KEY, *SECRETS))
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def ask(self, *arguments, code=0, **variables):
        """The same in this process."""
        done = call(pods_app, *arguments, **(self.environment | {"COLUMNS": "200"} | variables))
        assert done.exit_code == code, done.output
        assert not any(secret in done.output for secret in (KEY, *SECRETS))
        return done

    def start_up(self, *flags):
        """`up`, whose output is read from its file."""
        self.ups += 1
        log = self.folder / f"up-{self.ups}.log"
        command = [*SCRIPT, "up", *USUAL, "--env-file", self.env_file, "--yes", *flags]
        with log.open("w") as output:
            process = subprocess.Popen(
                [*DIES_WITH_PARENT, sys.executable, *map(str, command)],
                cwd=ROOT,
                env=self.environment,
                stdout=output,
                stderr=output,
            )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return Up(process, log)

    def submit(self, jobs):
        for number in range(jobs):
            Client(self.redis).submit({"prompt": f"a red kite, {number}"})

    def dump(self):
        """All that is in Redis."""
        return {key: self.redis.dump(key) for key in self.redis.scan_iter()}

    def read_all(self):
        """What commands have written into files, and all that was ever written into Redis."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and path != self.env_file]
        return b"".join(path.read_bytes() for path in [*files, *self.server.socket.parent.rglob("*.aof")])


@dataclass
class Up:
    process: subprocess.Popen
    log: Path

    def await_line(self, text):
        eventually(lambda: text in self.log.read_text() or self.process.poll() is not None, timeout_s=WITHIN_S)
        assert text in self.log.read_text()

    def await_end(self):
        return self.process.wait(timeout=WITHIN_S)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.await_end() == 0
        return self.log.read_text()


@pytest.fixture
def desk(redis_server, tmp_path):
    """No request but what the document has, and neither the key nor what pods are told is left anywhere."""
    env_file = tmp_path / "pod.env"
    env_file.touch(mode=0o600)
    env_file.write_text(POD_ENV)
    with (
        running_runpod(clock=WallClock(), world=World(course=QUICK), key=KEY) as runpod,
        Redis.from_url(redis_server.url) as redis,
        ExitStack() as stack,
    ):
        desk = Desk(runpod, redis_server, redis, tmp_path, env_file, stack)
        yield desk
        assert runpod.outside() == []
        for secret in (KEY, *SECRETS):
            assert find_processes(secret, "cmdline") == []
            assert secret.encode() not in desk.read_all()


def make_old(pod, age_s):
    """As if it had been created then."""
    pod.created_at -= age_s


def own_body(number, **fields):
    lease = datetime.now(UTC) + timedelta(seconds=fields.pop("lease_s", 3600))
    name = f"{fields.pop('begin', 'h3render-farm-pod')}-{number:016x}"
    return body(name=name, env={"LEASE_UNTIL": lease.isoformat()}, **fields)


# --- guards


def test_without_yes_nothing_is_ordered_ended_or_written(desk):
    desk.submit(3)
    desk.runpod.add_pod(own_body(1, lease_s=-GRACE.total_seconds()))
    before = desk.dump()
    up = (*USUAL, "--env-file", desk.env_file)
    for code, command in ((2, ("up", *up)), (0, ("plan", *up)), (2, ("down",)), (2, ("sweep",))):
        done = desk.ask(*command, code=code)
        assert done.stderr.endswith(" does it\n")
        assert PLANNED[command[0]] in done.stdout
    assert desk.runpod.changes() == []
    assert desk.dump() == before
    assert not list(desk.folder.glob("pods*"))


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (("up", "--budget-per-hour", 20, "--yes"), {}, "--budget-total"),
        (("down", "--fleet", "manual", "--yes"), {}, "pods of `h3render pods create` go by this name"),
        (("down", "--yes"), {"REDIS_URL": None}, "REDIS_URL is not set"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_sent(desk, arguments, variables, said):
    assert said in desk.ask(*arguments, code=2, **variables).stderr
    assert desk.runpod.seen() == []


def test_a_redis_that_keeps_nothing_is_refused_and_the_lease_is_given_back(desk):
    desk.submit(1)
    desk.redis.config_set("appendonly", "no")
    done = desk.ask("up", *USUAL, "--env-file", desk.env_file, "--yes", code=2)
    assert "CONFIG SET appendonly yes" in done.stderr
    assert not desk.redis.exists(KEYS.lease)
    assert desk.runpod.changes() == []


# --- one at a time


def test_one_reconciler_acts_and_who_looks_is_told_which_until_it_is_stopped(desk):
    desk.submit(3)
    up = desk.start_up()
    eventually(lambda: len(desk.runpod.alive()) == 2, timeout_s=WITHIN_S)
    second = desk.run("up", *USUAL, "--env-file", desk.env_file, "--yes", code=75)
    assert f"process {up.process.pid}, for another " in second.stderr

    lines = desk.ask("status").stdout.splitlines()
    assert f"process {up.process.pid}" in lines[0]
    assert sum(line.startswith("starting") for line in lines) == 2
    told = json.loads(desk.ask("status", "--json").stdout)
    assert told["reconciler"]["holder"].endswith(f"process {up.process.pid}")
    assert {pod["id"] for pod in told["pods"]} == {pod.id for pod in desk.runpod.alive()}
    assert (told["usd_per_hour"], told["work"]["waiting"]) == (3.78, 3)

    assert "stopped; 2 pods may go on, for 3.78 USD per hour" in up.stop()
    assert not desk.redis.exists(KEYS.lease)
    assert len(desk.runpod.alive()) == 2
    desk.run("down", "--yes")  # of an `up` that is gone
    assert desk.runpod.alive() == []


def test_an_order_that_is_refused_for_good_stops_all_until_a_person_resumes_and_down_ends_up(desk):
    desk.submit(3)
    desk.runpod.script("POST", "/v2/pods", Fault.NO_BALANCE)
    up = desk.start_up()
    up.await_line("stopped  no pod is ordered any more")
    up.stop()
    again = desk.start_up()
    again.await_line("`h3render pods up --resume` goes on")
    again.stop()
    assert [seen.method for seen in desk.runpod.changes()] == ["POST"]
    resumed = desk.start_up("--resume")
    eventually(lambda: len(desk.runpod.alive()) == 2, timeout_s=WITHIN_S)

    desk.run("down", "--yes")
    assert resumed.await_end() == 0
    assert desk.runpod.alive() == []
    assert "jobs left" not in resumed.log.read_text()
    assert not desk.redis.exists(KEYS.lease, "h3:pods:h3render-farm:down")


# --- sweep


def test_sweep_ends_what_is_past_its_lease_and_what_certainly_nobody_ordered(desk):
    late_s, old_s = -GRACE.total_seconds() - 1, YOUNG_S + 60
    born_at = datetime.now(UTC) - timedelta(seconds=2 * old_s)
    desk.redis.hset(KEYS.facts, "born_ms", round(born_at.timestamp() * 1000))
    ended = [
        desk.runpod.add_pod(own_body(1, lease_s=late_s)),
        desk.runpod.add_pod(own_body(2, lease_s=late_s, begin="h3render-manual-pod")),
        orphan := desk.runpod.add_pod(own_body(3)),
    ]
    kept = [
        desk.runpod.add_pod(own_body(4)),  # its order may be on its way
        desk.runpod.add_pod(own_body(5, lease_s=late_s + 60)),
        older := desk.runpod.add_pod(own_body(6)),
        desk.runpod.add_pod(own_body(7, begin="h3render-other-pod")),
        foreign := desk.runpod.add_pod(own_body(8, lease_s=late_s, begin="somebody-elses")),
    ]
    with desk.runpod.changing():
        make_old(orphan, old_s)
        make_old(foreign, old_s)
        make_old(older, 3 * old_s)  # than the ledger
    done = desk.run("sweep", "--yes")
    assert {line.split()[0] for line in done.stdout.splitlines()} == {pod.id for pod in ended}
    assert [pod.id for pod in desk.runpod.alive()] == [pod.id for pod in kept]
    assert f"pod {older.id}" in done.stderr
