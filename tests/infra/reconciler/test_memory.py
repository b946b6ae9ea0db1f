"""What is remembered of refusals and failures, and for how long."""

from datetime import timedelta

import pytest

from infra.reconciler.memory import Failure, Memory
from tests.infra.pods import NOW


def minutes(count):
    return timedelta(minutes=count)


def make_failure(after_min=0.0, number=1):
    return Failure(at=NOW + minutes(after_min), name=f"pod{number}", data_center="US-KS-2", why="ERROR")


@pytest.mark.parametrize(("refusals", "pause_min"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 15), (9, 15)])
def test_a_data_center_is_left_out_for_longer_each_time(refusals, pause_min):
    memory = Memory()
    for _ in range(refusals):
        memory = memory.note_refusal("US-KS-2", "no capacity", NOW, chance=0.5)
    assert not memory.may_try("US-KS-2", NOW + minutes(pause_min) - timedelta(seconds=1))
    assert memory.may_try("US-KS-2", NOW + minutes(pause_min))
    assert memory.may_try("EU-RO-1", NOW)
    assert memory.note_created("US-KS-2") == Memory()


@pytest.mark.parametrize(("chance", "pause_min"), [(0.0, 0.75), (1.0, 1.25)])
def test_fleets_do_not_come_back_together(chance, pause_min):
    memory = Memory().note_refusal("US-KS-2", "no capacity", NOW, chance=chance)
    assert memory.avoided["US-KS-2"].until == NOW + minutes(pause_min)


@pytest.mark.parametrize(("at_min", "pauses"), [((0, 7, 14.9), True), ((0, 7, 15), False), ((0, 1), False)])
def test_three_failures_within_a_quarter_of_an_hour_begin_a_pause(at_min, pauses):
    memory = Memory()
    for number, minute in enumerate(at_min):
        memory = memory.note_failure(make_failure(minute, number))
    assert memory.is_probing == pauses
    assert memory.paused_until == (NOW + minutes(at_min[-1] + 15) if pauses else None)


def test_a_failure_of_the_one_that_is_tried_begins_another_pause():
    memory = Memory(is_probing=True, paused_until=NOW).note_failure(make_failure(20))
    assert memory.paused_until == NOW + minutes(35)


def test_the_time_that_starts_take_is_measured_by_three_at_least():
    memory = Memory().note_boot("a", 300.0).note_boot("b", 400.0)
    assert memory.boot_s(else_s=600.0) == 600
    assert memory.note_boot("c", 350.0).boot_s(else_s=600.0) == 400


def test_one_start_in_ten_may_take_longer():
    memory = Memory()
    for number in range(20):
        memory = memory.note_boot(f"pod{number}", 100.0 + number)
    assert memory.boot_s(else_s=600.0) == 118
    for number in range(20):
        memory = memory.note_boot(f"later{number}", 50.0)
    assert memory.boot_s(else_s=600.0) == 50


def test_it_is_read_back_whole():
    memory = Memory().note_refusal("US-KS-2", "full", NOW, chance=0.1).note_failure(make_failure()).note_boot("a", 9.0)
    assert Memory.model_validate_json(memory.model_dump_json()) == memory
