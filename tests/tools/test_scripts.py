"""Scripts that no other test runs, for they need GPUs: what they import is there."""

import importlib.util
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "tools").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_can_be_imported(script, monkeypatch):
    monkeypatch.syspath_prepend(str(script.parent))  # as `python tools/SCRIPT` does
    spec = importlib.util.spec_from_file_location(f"imported_{script.stem}", script)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
