"""The README tells every command and every setting."""

from pathlib import Path

import pytest
import typer

import h3render
from worker.settings import WorkerSettings

README = Path(__file__).parent.parent.joinpath("README.md").read_text()


@pytest.mark.parametrize("command", typer.main.get_group(h3render.app).commands)
def test_the_readme_tells_each_command(command):
    assert f"h3render {command}" in README


@pytest.mark.parametrize("name", WorkerSettings.model_fields)
def test_the_readme_tells_each_setting(name):
    alias = WorkerSettings.model_fields[name].validation_alias
    assert f"`{alias or f'H3_{name.upper()}'}`" in README
