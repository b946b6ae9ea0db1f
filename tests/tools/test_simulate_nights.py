"""Nights with all their faults keep what must be true of them; and what breaks it is noticed, each claim by a fault of
the reconciler or of the world that was made for it."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from infra.reconciler.decisions import End
from infra.reconciler.machine import Stage
from infra.reconciler.planner import plan
from tools.simulate_nights.books import PlayedNotebook
from tools.simulate_nights.check import CLAIMS, judge
from tools.simulate_nights.figures import RECONCILER, SAME_MONEY, measure_night
from tools.simulate_nights.nights import CLASSES, USD_PER_HOUR, Job, Night
from tools.simulate_nights.played_runpod import PlayedRunPod
from tools.simulate_nights.rates import Rates
from tools.simulate_nights.reconciled import World, run_world
from tools.simulate_nights.timeline import HOUR_S

REPOSITORY = Path(__file__).parents[2]
NO_FAULTS = Rates(
    **dict.fromkeys(["stuck", "mute", "exits", "unfit", "wrong", "vanishing_per_hour", "silent_per_hour"], 0.0),
    **dict.fromkeys(["refused", "rate_limited", "not_reached", "lost_before", "lost_after", "end_slow"], 0.0),
    **dict.fromkeys(["list_fails", "list_omits", "get_fails", "catalog_fails", "end_fails"], 0.0),
    **dict.fromkeys(["queue_fails", "lease_fails", "crash", "crash_at_notes"], 0.0),
    gap=(0.0, 0.0),
)


@dataclass(frozen=True)
class ShortNight(Night):
    """Jobs of eight minutes at the beginning, and nothing else."""

    jobs: int = 6
    usd: float = 400.0

    def draw_jobs(self):
        return [Job(number, CLASSES[2], 60.0, 480.0) for number in range(self.jobs)]

    def draw_usd_total(self, jobs):
        return self.usd


def make_world(**fields):
    return World.of(ShortNight(1, 0, **({"rates": NO_FAULTS} | fields)))


def broken_claims(world):
    return {violation.claim for violation in judge(run_world(world)).violations}


# --- nights as they are


def test_a_night_without_faults_has_no_cost_but_for_its_jobs_and_their_pods():
    world = make_world()
    facts = run_world(world)
    assert judge(facts).violations == []
    assert all(len(job.ended_s) == 1 for job in facts.jobs)
    assert len(facts.pods) == 4
    # Four boots, 48 minutes of work, and at most half an hour of idleness each
    assert facts.usd < USD_PER_HOUR * (4 * 900 + 6 * 480 + 4 * 1800) / 3600


def test_a_pod_that_a_list_leaves_out_is_neither_replaced_nor_forgotten():
    facts = run_world(make_world(jobs=8, rates=replace(NO_FAULTS, list_omits=0.3)))
    assert judge(facts).violations == []
    assert len(facts.pods) == 4


def test_what_only_stands_in_the_way_is_told_once_though_its_numbers_run():
    told = []
    run_world(make_world(usd=26.0), lambda _, line: told.append(line))
    assert any(line.startswith("alert") and "of 26.00 USD are spent" in line for line in told)
    assert sum(line.startswith("want") for line in told) < 20


def test_the_same_seed_brings_the_same_night():
    night = ShortNight(7, 3, jobs=10)
    first = measure_night(night)
    assert measure_night(night) == first
    assert first.bills[RECONCILER].finished == 10
    assert measure_night(replace(night, number=4)) != first


def test_another_night_has_other_jobs():
    assert len(Night(1, 1).draw_jobs()) != len(Night(1, 2).draw_jobs())


def test_nights_are_reported_and_drawn(tmp_path):
    report, picture = tmp_path / "nights.json", tmp_path / "nights.png"
    asked = ["--seed", "31", "--nights", "1", "--processes", "1", "--report", str(report), "--plot", str(picture)]
    done = subprocess.run(
        [sys.executable, "tools/simulate_nights", *asked],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same money" in done.stdout
    told = json.loads(report.read_text())
    assert told["passed"]
    assert told["claims"].keys() == CLAIMS.keys()
    assert [fleet["fleet"] for fleet in told["fleets"]][-1] == SAME_MONEY
    assert picture.read_bytes().startswith(b"\x89PNG")


# --- what is wrong is noticed


def end_nothing(monkeypatch, world):
    monkeypatch.setattr(PlayedRunPod, "delete_pod", lambda api, pod_id: None)


def heed_no_budget(monkeypatch, world):
    world.facts.usd_total = 5.0


def allow_more_an_hour(monkeypatch, world):
    world.facts.usd_per_hour = USD_PER_HOUR


def end_a_busy_pod(monkeypatch, world):
    def plan_badly(situation):
        decided, busy = plan(situation), situation.in_stage(Stage.BUSY)
        if not busy or not situation.in_stage(Stage.READY):
            return decided
        end = End(busy[0].row.pod_id, busy[0].name, "for no reason")
        return replace(decided, decisions=[*decided.decisions, end])

    monkeypatch.setattr("infra.reconciler.reconciler.plan", plan_badly)


def queue_jobs_twice(monkeypatch, world):
    world.farm.submit(world.facts.jobs)


def order_nothing(monkeypatch, world):
    monkeypatch.setattr("infra.reconciler.reconciler.plan", lambda situation: replace(plan(situation), decisions=()))


def create_twice(monkeypatch, world):
    create = PlayedRunPod._create

    def create_two(api, body):
        create(api, body)
        return create(api, body)

    monkeypatch.setattr(PlayedRunPod, "_create", create_two)


def forget_what_was_spent(monkeypatch, world):
    write = PlayedNotebook.write
    monkeypatch.setattr(PlayedNotebook, "write", lambda book, notes: write(book, notes.with_spend(book.read().spend)))


FAULTS = {
    "no pod is left running after the night": end_nothing,
    "a campaign costs at most its budget and one billing step": heed_no_budget,
    "pods together never cost more in an hour than allowed": allow_more_an_hour,
    "no busy pod is ended while an idle one exists": end_a_busy_pod,
    "no job is lost, or rendered twice": queue_jobs_twice,
    "what keeps jobs waiting is told": order_nothing,
    "no two pods have one token": create_twice,
    "what is counted is not less than the cost by more than one billing step": forget_what_was_spent,
}


@pytest.fixture
def two_hours(monkeypatch):
    """Of night, and one of rest: enough for three jobs."""
    for module in ("reconciled", "check"):
        monkeypatch.setattr(f"tools.simulate_nights.{module}.NIGHT_S", 2 * HOUR_S)
    monkeypatch.setattr("tools.simulate_nights.reconciled.REST_S", HOUR_S)


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_broken_claim_is_noticed(claim, monkeypatch, two_hours):
    world = make_world(jobs=3)
    FAULTS[claim](monkeypatch, world)
    assert claim in broken_claims(world)
