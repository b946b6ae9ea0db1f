"""What a pod reads from its environment, and that a typo there does not end it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.main import get_group

import h3render
from infra.boot.settings import BootSettings, read_boot_settings
from infra.errors import GuardRefused

OPERATIONS = Path(__file__).parents[3].joinpath("docs/operations.md").read_text()
TOLD = {
    "H3_WORKER_NAME": "h3render-f1-pod-0001",
    "FLEET_ID": "f1",
    "LEASE_UNTIL": "2026-12-01T00:00:00+00:00",
    "RUNPOD_POD_ID": "p1",
    "RUNPOD_DC_ID": "US-XX-1",
    "REDIS_URL": "redis://:canary@queue/0",
}


@pytest.fixture
def read(monkeypatch):
    def read(**variables):
        for name, value in (TOLD | variables).items():
            monkeypatch.setenv(name, value)
        return read_boot_settings()

    return read


def test_the_order_tells_a_pod_who_it_is_and_until_when(read):
    settings, problem = read()
    assert problem == ""
    assert (settings.name, settings.fleet, settings.pod_id) == ("h3render-f1-pod-0001", "f1", "p1")
    assert settings.lease_until == datetime(2026, 12, 1, tzinfo=UTC)
    assert settings.data_center == "US-XX-1"


def test_a_wrong_setting_is_told_without_its_value_and_who_it_is_stays_known(read):
    settings, problem = read(H3_POD_IDLE_S="canary", H3_POD_GPUS="-1")
    assert "H3_POD_IDLE_S: input should be a valid number" in problem
    assert "H3_POD_GPUS: input should be greater than or equal to 0" in problem
    assert "canary" not in problem + repr(settings)
    assert (settings.name, settings.idle_s, settings.lease_until.year) == ("h3render-f1-pod-0001", 1800.0, 2026)


def test_a_pod_that_cannot_know_when_to_leave_is_refused(read):
    with pytest.raises(GuardRefused, match="LEASE_UNTIL: input should"):
        read(LEASE_UNTIL="tomorrow")


def test_the_worker_serves_the_named_checkpoint_or_all_models(read):
    assert read()[0].worker_arguments[-2:] == ["--checkpoint", "/workspace/models"]
    assert read(H3_MODEL_PATH="/volume/h3")[0].worker_arguments[-2:] == ["--checkpoint", "/volume/h3"]
    assert read(H3_POD_WORKER_COMMAND="sh -c 'exit 1'")[0].worker_arguments == ["sh", "-c", "exit 1"]


def test_the_commands_that_it_runs_have_these_options(read):
    settings = read()[0]
    for arguments in (settings.worker_arguments, [*settings.trial_arguments(2), "--report", "report.json"]):
        command = get_group(h3render.app)
        names = [name for name in arguments[3:] if name in ("worker", "bench", "transport")]
        for name in names:
            command = command.commands[name]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {name for name in arguments[3:] if name.startswith("--")} <= options


def test_a_pod_ends_itself_by_runpods_tool_where_that_is(read, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read()[0].end_arguments == []
    tool = tmp_path / "runpodctl"
    tool.touch(mode=0o755)
    assert read()[0].end_arguments == [str(tool), "remove", "pod", "p1"]
    assert read(RUNPOD_POD_ID="")[0].end_arguments == []
    assert read(H3_POD_END_COMMAND="poweroff now")[0].end_arguments == ["poweroff", "now"]


def test_a_worker_that_may_drain_for_long_is_not_killed_before(read):
    assert read()[0].patience_s == 120
    assert read(H3_DRAIN_S="600")[0].patience_s == 660


@pytest.mark.parametrize("name", BootSettings.model_fields)
def test_the_page_for_operators_tells_each_setting(name):
    alias = BootSettings.model_fields[name].validation_alias
    assert f"`{alias or f'H3_POD_{name.upper()}'}`" in OPERATIONS


def test_no_secret_is_shown(read):
    settings, _ = read(H3_POD_CHECKPOINTS='[{"url": "https://x/?canary"}]')
    assert "canary" not in repr(settings)
    assert settings.health_file == Path("/run/h3render/healthy")
