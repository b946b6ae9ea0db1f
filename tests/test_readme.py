"""The README tells every command, every field of a request and every setting, and its example runs."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import typer

import h3render
from infra.settings import PodSettings
from jobs import Client, GenerateRequest
from jobs.http.settings import ServeSettings
from tests.waiting import eventually
from worker.settings import WorkerSettings

README = Path(__file__).parent.parent.joinpath("README.md").read_text()


@pytest.mark.parametrize("command", typer.main.get_group(h3render.app).commands)
def test_the_readme_tells_each_command(command):
    assert f"h3render {command}" in README


@pytest.mark.parametrize("option", ["--install-completion", "--json"])
def test_the_readme_tells_options_that_many_commands_share(option):
    assert option in README


@pytest.mark.parametrize("field", sorted(GenerateRequest.model_fields.keys() - {"prompt"}))
def test_the_readme_tells_each_field_of_a_request(field):
    assert f"`{field}`" in README


def test_the_example_in_python_submits_a_job_and_follows_it_to_its_end(redis, redis_url, capsys):
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(exec, example.replace("redis://localhost", redis_url), {})
        [job_id] = eventually(lambda: redis.lrange("rq:queue:default", 0, -1))
        Client(redis).job(job_id.decode()).cancel()
        running.result(timeout=10)
    assert re.findall(r"kind='(\w+)'", capsys.readouterr().out) == ["queued", "canceled"]


@pytest.mark.parametrize("command", typer.main.get_group(h3render.app).commands["pods"].commands)
def test_the_readme_tells_each_command_for_pods(command):
    assert re.search(rf"`h3render pods {command}\b|`pods {command}\b", README)


SETTINGS = WorkerSettings.model_fields | ServeSettings.model_fields


@pytest.mark.parametrize("name", SETTINGS)
def test_the_readme_tells_each_setting(name):
    alias = SETTINGS[name].validation_alias
    assert f"`{alias or f'H3_{name.upper()}'}`" in README


@pytest.mark.parametrize("name", PodSettings.model_fields)
def test_the_readme_tells_each_setting_for_pods(name):
    alias = PodSettings.model_fields[name].validation_alias
    assert f"`{alias or f'H3_PODS_{name.upper()}'}`" in README
