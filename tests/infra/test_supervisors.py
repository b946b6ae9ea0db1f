"""What supervisors are told agrees with what a worker does: its grace time, its exit codes, its pages."""

import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from typer.main import get_group

from infra.cli import pods_app
from infra.errors import GuardRefused, KeyRefused, LeaseHeld
from infra.transport import Limits as TransportLimits
from jobs.http.cli import SHUTDOWN_S
from jobs.http.settings import ServeSettings
from tests.conftest import require
from worker.cli import EXIT_UNHEALTHY, EXIT_WRONG_USAGE
from worker.departure import RESERVE_S
from worker.serve import END_TIMEOUT_S
from worker.settings import WorkerSettings

ROOT = Path(__file__).parent.parent.parent
UNIT, SERVE_UNIT, PODS_UNIT, SWEEP_UNIT = (
    ROOT / f"infra/h3render-{name}.service" for name in ("worker", "serve", "pods", "sweep")
)
SWEEP_TIMER = SWEEP_UNIT.with_suffix(".timer")
# A worker ends within the first by itself, the fleet after it; the rest is for a slow machine.
LEAST_GRACE_S = WorkerSettings.model_fields["drain_s"].default + max(RESERVE_S, END_TIMEOUT_S)


def read_service(unit):
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read(unit)
    return parser["Service"]


def find_analyzer():
    if (found := shutil.which("systemd-analyze")) is None:
        raise FileNotFoundError("no `systemd-analyze` on PATH: it comes with systemd")
    return Path(found)


@pytest.fixture(scope="module")
def service():
    return read_service(UNIT)


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "infra/compose.yaml").read_text())


@pytest.mark.parametrize("path", sorted((ROOT / "infra").glob("h3render-*")), ids=lambda path: path.name)
def test_systemd_understands_the_unit(tmp_path, path):
    require(find_analyzer)
    for other in (ROOT / "infra").glob("h3render-*"):  # the timer names its service
        text = re.sub("^ExecStart=[^ ]+", f"ExecStart={sys.executable}", other.read_text(), flags=re.MULTILINE)
        (tmp_path / other.name).write_text(text)
    unit = tmp_path / path.name
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_gives_a_worker_its_grace_time_and_tells_it_alone(service):
    assert float(service["TimeoutStopSec"]) >= LEAST_GRACE_S
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")


def test_systemd_starts_a_worker_again_unless_a_person_has_to_act(service):
    assert service["Restart"] == "on-failure"  # not after 0: it was told to stop
    assert set(map(int, service["RestartPreventExitStatus"].split())) == {EXIT_WRONG_USAGE, EXIT_UNHEALTHY}


def test_systemd_leaves_a_rank_that_ran_out_of_memory_to_the_worker(service):
    assert service["OOMPolicy"] == "continue"


@pytest.mark.parametrize(
    "key", ["PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "MemoryDenyWriteExecute", "PrivateIPC"]
)
def test_systemd_takes_no_gpu_away(service, key):
    assert key not in service


def test_compose_gives_a_worker_its_grace_time_and_room_to_exchange_tensors(compose):
    worker = compose["services"]["worker"]
    assert float(worker["stop_grace_period"].removesuffix("s")) >= LEAST_GRACE_S
    assert worker["init"] is True
    assert worker["shm_size"] == "8gb"
    assert worker["restart"] == "on-failure:5"


def test_compose_looks_at_the_page_that_the_worker_serves(compose):
    worker = compose["services"]["worker"]
    port = worker["environment"]["H3_METRICS_PORT"]
    assert f"http://127.0.0.1:{port}/healthz" in worker["healthcheck"]["test"][-1]


def test_the_service_has_time_to_end_and_stays_down_only_for_a_person():
    service = read_service(SERVE_UNIT)
    assert float(service["TimeoutStopSec"]) > 2 * SHUTDOWN_S
    assert service["Restart"] == "on-failure"
    assert int(service["RestartPreventExitStatus"]) == EXIT_WRONG_USAGE


def test_the_reconciler_stays_down_only_for_a_person_and_has_time_for_an_answer():
    service = read_service(PODS_UNIT)
    assert float(service["TimeoutStopSec"]) > TransportLimits().create_s
    assert service["Restart"] == "on-failure"
    stays_down = set(map(int, service["RestartPreventExitStatus"].split()))
    assert stays_down == {GuardRefused.exit_code, KeyRefused.exit_code}
    assert LeaseHeld.exit_code not in stays_down  # of one that was killed a moment ago


@pytest.mark.parametrize("unit", [PODS_UNIT, SWEEP_UNIT], ids=["pods", "sweep"])
def test_the_units_for_pods_give_flags_that_there_are(unit):
    words = shlex.split(read_service(unit)["ExecStart"])
    group = get_group(pods_app)
    command = group.commands[words[2]]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    assert words[-1] == "--yes"


def test_the_sweeper_is_run_by_its_timer():
    assert SWEEP_TIMER.stem == SWEEP_UNIT.stem
    assert "OnUnitActiveSec=10min" in SWEEP_TIMER.read_text()


def test_compose_looks_at_the_page_of_the_service_where_it_listens(compose):
    serve = compose["services"]["serve"]
    port = ServeSettings.model_fields["serve_port"].default
    assert f"http://127.0.0.1:{port}/healthz" in serve["healthcheck"]["test"][-1]
    assert serve["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert serve["command"][-1] in serve["volumes"][0]


def test_compose_keeps_what_must_not_be_lost(compose):
    services = compose["services"]
    assert services["redis"]["command"][1:] == ["--appendonly", "yes", "--maxmemory-policy", "noeviction"]
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source.startswith(("$", "./")) or source in compose["volumes"]


def test_compose_lets_nobody_in_from_outside(compose):
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert "AWS_SECRET_ACCESS_KEY" in compose["services"]["s3"]["environment"]  # without keys anybody may write


def test_the_image_is_made_of_what_is_there(compose):
    build = compose["services"]["worker"]["build"]
    dockerfile = ROOT / "infra" / build["context"] / build["dockerfile"]
    assert dockerfile.samefile(ROOT / "infra/Dockerfile")
    kept = [line[1:] for line in Path(f"{dockerfile}.dockerignore").read_text().splitlines() if line.startswith("!")]
    assert [name for name in kept if not (ROOT / name).exists()] == []
