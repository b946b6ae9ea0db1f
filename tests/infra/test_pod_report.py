"""What pods say of themselves in a real Redis."""

from infra.pod_report import (
    REPORTS_KEY,
    BootState,
    PodReport,
    forget_reports,
    note_contact,
    read_contact,
    read_reports,
    write_report,
)
from jobs.workers import server_time


def report(name, **changes):
    return PodReport(**{"name": name, "pod_id": "p1", "state": BootState.CHECKING, "at": 1.0, **changes})


def test_the_last_report_of_each_pod_is_read_by_its_name(redis):
    first, second = report("a"), report("b", gpus=8, data_center="US-XX-1")
    for each in (first, second, unfit := report("a", state=BootState.UNFIT, reason="no GPU", wants_end=True)):
        write_report(redis, each)
    assert read_reports(redis) == {"a": unfit, "b": second}


def test_a_report_that_cannot_be_read_hides_no_other(redis):
    write_report(redis, good := report("good"))
    redis.hset(REPORTS_KEY, mapping={"torn": '{"version": 1, "na', "later": '{"version": 2}', b"\xff": "{}"})
    assert read_reports(redis) == {"good": good}


def test_what_a_newer_pod_says_beside_is_passed_over(redis):
    redis.hset(REPORTS_KEY, "a", report("a").model_dump_json().replace("{", '{"more": 1, ', 1))
    assert read_reports(redis) == {"a": report("a")}


def test_reports_of_pods_that_are_gone_are_forgotten(redis):
    for name in "abc":
        write_report(redis, report(name))
    forget_reports(redis)
    forget_reports(redis, "a", "c", "unknown")
    assert list(read_reports(redis)) == ["b"]


def test_each_fleet_knows_when_its_reconciler_last_looked_by_the_servers_clock(redis):
    before = server_time(redis)
    note_contact(redis, "f1")
    told = read_contact(redis, "f1")
    assert told is not None
    assert before <= told <= server_time(redis)
    assert read_contact(redis, "f2") is None
