"""docs/operations.md tells every exit code, every state and every metric of a worker, and no others."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import worker.cli
from jobs.workers import WorkerState
from tests.worker.views import WELL
from worker.gauges import Gauges
from worker.metrics import REGISTRY

DOCUMENT = Path(__file__).parent.parent.joinpath("docs/operations.md").read_text()


def section(heading):
    """From a heading to the next."""
    return DOCUMENT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first_cells(heading):
    """Of the table of a section, without its head."""
    rows = re.findall(r"^\| (.+?) \|", section(heading), flags=re.MULTILINE)
    return rows[1:]


def shown_metrics():
    """As a scrape has them."""
    registry = CollectorRegistry()
    registry.register(Gauges(lambda: WELL))
    registry.register(REGISTRY)
    return re.findall(r"^# TYPE (\S+)", generate_latest(registry).decode(), flags=re.MULTILINE)


def test_each_exit_code_is_told():
    codes = {value for name, value in vars(worker.cli).items() if name.startswith("EXIT_")}
    assert {int(cell) for cell in first_cells("Exit codes of a worker")} == {0, *codes}


def test_each_state_is_told():
    assert [cell.strip("`") for cell in first_cells("States of a worker")] == list(WorkerState)


@pytest.mark.parametrize("name", shown_metrics())
def test_each_metric_is_told(name):
    assert f"`{name}`" in section("Metrics")


def test_no_metric_is_told_that_is_not_there():
    told = re.findall(r"`((?:h3|process)_[a-z0-9_]+)`", DOCUMENT)
    assert set(told) - set(shown_metrics()) == set()
