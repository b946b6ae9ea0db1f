"""The garbage collector is off while large modules are imported, and on for all that follows."""

import gc
import sys
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import worker.cli
import worker.logs
import worker.surroundings
from h3.runner import H3Runner
from worker.collector import uncollected_imports


@pytest.fixture(autouse=True)
def collector(monkeypatch):
    """Freezes nothing of the tests' own, and is on afterwards even if a test fails."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
    yield
    gc.enable()


class Seen(SimpleNamespace):
    """Stands for a module that takes seconds to import: whether the collector is on while that is done, and later."""

    def __init__(self, name):
        super().__init__(name=name, while_imported=None, later=None)

    def __getattr__(self, name):
        if name != self.name:
            raise AttributeError(name)
        self.while_imported = gc.isenabled()
        return self.call

    def call(self, *_, **__):
        self.later = gc.isenabled()


def test_the_collector_is_off_within_and_on_afterwards():
    with uncollected_imports():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_stays_off_after_imports_within_others():
    with uncollected_imports():
        with uncollected_imports():
            pass
        assert not gc.isenabled()


def test_the_collector_is_on_after_an_import_that_fails():
    with pytest.raises(ImportError), uncollected_imports():
        import there_is_no_such_module  # noqa: F401
    assert gc.isenabled()


def test_a_worker_serves_with_the_collector_on(monkeypatch):
    seen = Seen("serve")
    monkeypatch.setitem(sys.modules, "worker.serve", seen)
    monkeypatch.setattr(worker.logs, "configure_logs", lambda _: None)
    monkeypatch.setattr(worker.surroundings, "require_surroundings", lambda _: None)
    done = CliRunner().invoke(worker.cli.app, ["worker"])
    assert done.exit_code == 0, done.output
    assert (seen.while_imported, seen.later) == (False, True)


def test_a_model_is_loaded_with_the_collector_on(monkeypatch):
    seen = Seen("load_model")
    monkeypatch.setitem(sys.modules, "h3.load", seen)
    runner = H3Runner()
    runner.device, runner.groups = torch.device("cpu"), SimpleNamespace(transformer_group=None)
    runner.setup(checkpoint="model")
    assert (seen.while_imported, seen.later) == (False, True)
