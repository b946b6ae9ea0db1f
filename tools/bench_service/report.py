"""A run as a page for people, and as JSON to keep; and which goals it has met."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from h3.machine import describe_machine
from tools.bench_service.check import GRACE_S, LONGEST_ANSWER_S, doubt_answers, doubt_following, doubt_times
from tools.bench_service.measured import Answer, Asked, Following, Heard, Plan, Run

POLL_P95_MS, EVENT_P95_MS = 250.0, 250.0
LEAST_SHARE = 0.8  # of the polls that were meant
MOST_FINDINGS = 100


def is_passed(plan: Plan, run: Run) -> bool:
    return all(goals(plan, run).values())


def goals(plan: Plan, run: Run) -> dict[str, bool]:
    """With those that say that there was something to find."""
    heard, status = find_doubts_of_streams(run), Counter(answer.status for answer in run.answers)
    polls, delays = _p95(poll_times_ms(run)), _p95(delays_ms(run, is_calm=True))
    return {
        "every stream is the log of its job: no event lost, doubled, out of order or made up": not heard,
        "every answer is right, or a clear 503 while Redis is away": not [*doubt_answers(run.answers, run.outage)],
        f"no answer takes longer than {LONGEST_ANSWER_S:.0f} s": not [*doubt_times(run.answers)],
        "nothing broke off in the service's log, nor in this tool": not run.accidents,
        f"polls while Redis is there: p95 < {POLL_P95_MS:.0f} ms": polls < POLL_P95_MS,
        f"events, but of the {GRACE_S:.0f} s after the restart: p95 of their delay < {EVENT_P95_MS:.0f} ms": delays
        < EVENT_P95_MS,
        "every streamer has followed a job to its end": all(map(_has_ended_one, run.followings)),
        "streams went on by Last-Event-ID": sum(following.cuts for following in _all(run)) > 0,
        "streams went on after the restart": count_through(run) > 0,
        "polls were refused while Redis was away": status[503] > 0,
        f"at least {LEAST_SHARE:.0%} of the polls were asked": count_polls(run)
        >= LEAST_SHARE * plan.pollers * (plan.seconds - plan.down_s - GRACE_S),
    }


def _has_ended_one(followings: Sequence[Following]) -> bool:
    return any(following.is_over for following in followings)


def _all(run: Run) -> Iterator[Following]:
    return (following for followings in run.followings for following in followings)


def find_doubts_of_streams(run: Run) -> list[str]:
    return [
        f"stream of {following.job_id}: {doubt}"
        for following in _all(run)
        for doubt in doubt_following(following, run.logs[following.job_id])
    ]


def count_through(run: Run) -> int:
    """Jobs that one client followed from before the restart to after it."""
    outage = run.outage
    return sum(
        bool(following.heard)
        and following.heard[0].at < outage.stopped_at
        and following.heard[-1].told.at > outage.middle_at
        for following in _all(run)
    )


def count_polls(run: Run) -> int:
    return sum(answer.asked in (Asked.POLL, Asked.LIST) for answer in run.answers)


def poll_times_ms(run: Run) -> list[float]:
    return [1e3 * answer.took_s for answer in run.answers if answer.asked is Asked.POLL and _is_calm(answer, run)]


def _is_calm(answer: Answer, run: Run) -> bool:
    return answer.status == 200 and not (answer.came_at > run.outage.stopped_at and answer.sent_at < run.outage.back_at)


def delays_ms(run: Run, *, is_calm: bool) -> list[float]:
    """From an event's time in Redis to its arrival, where a client waited for it.

    is_calm  whether Redis was there all the time, and had not just come back
    """
    return [
        1e3 * heard.delay_s
        for following in _all(run)
        for heard in following.heard
        if heard.is_live and _is_near_restart(heard, run) is not is_calm
    ]


def _is_near_restart(heard: Heard, run: Run) -> bool:
    return heard.at > run.outage.stopped_at and heard.told.at < run.outage.back_at + GRACE_S


def first_success_s(run: Run) -> float | None:
    """From the moment that Redis is known to be back; 0 if the service was there by then."""
    back_at = run.outage.back_at
    after = [
        answer.came_at - back_at
        for answer in run.answers
        if answer.status == 200 and answer.asked is not Asked.STREAM and answer.came_at > run.outage.middle_at
    ]
    return round(max(0.0, min(after)), 3) if after else None


def make_report(plan: Plan, run: Run) -> dict[str, object]:
    took_s = run.ended_at - run.began_at
    met, usage = goals(plan, run), run.usage
    events = sum(len(following.heard) for following in _all(run))
    return {
        **describe_machine(on_gpus=False),
        "redis": run.redis,
        "plan": asdict(plan),
        "passed": all(met.values()),
        "goals": met,
        "took_s": round(took_s, 1),
        "requests": {
            "a_second": round(len(run.answers) / took_s, 1),
            "by_status": {
                asked: _count(answer.status for answer in run.answers if answer.asked is asked) for asked in Asked
            },
        },
        "polls_ms": summarize(poll_times_ms(run)),
        "lists_ms": summarize(
            [1e3 * answer.took_s for answer in run.answers if answer.asked is Asked.LIST and _is_calm(answer, run)]
        ),
        "longest_answer_s": round(max(answer.took_s for answer in run.answers), 3),
        "streams": {
            "jobs_ended": run.jobs,
            "jobs_followed": len(run.logs),
            "followings": sum(map(len, run.followings)),
            "events": events,
            "events_a_second": round(events / took_s, 1),
            "delay_ms": summarize(delays_ms(run, is_calm=True)),
            "delay_near_restart_ms": summarize(delays_ms(run, is_calm=False)),
            "resumed_after_own_cut": sum(following.cuts for following in _all(run)),
            "resumed_after_end_by_service": sum(following.broken for following in _all(run)),
            "through_the_restart": count_through(run),
        },
        "restart": {
            "down_s": round(run.outage.back_at - run.outage.stopped_at, 2),
            "refused": sum(answer.status == 503 for answer in run.answers),
            "first_200_after_s": first_success_s(run),
        },
        "service": {
            "cpu_s": round(usage.cpu_s, 2),
            "cpu_wait_s": round(usage.cpu_wait_s, 2),
            "cpu_percent_of_a_core": round(100 * usage.cpu_s / took_s, 1),
            "rss_peak_mb": round(usage.rss_peak_bytes / 1e6, 1),
            "redis_connections_peak": usage.redis_connections_peak,
        },
        "clients_cpu_s": round(run.own_cpu_s, 2),
        "findings": collect_findings(run),
    }


def collect_findings(run: Run) -> list[str]:
    """The same one once, with how often."""
    doubts = [*find_doubts_of_streams(run), *doubt_answers(run.answers, run.outage), *doubt_times(run.answers)]
    counted = Counter([*run.accidents, *doubts]).most_common(MOST_FINDINGS)
    return [doubt if count == 1 else f"{doubt}, {count} times" for doubt, count in counted]


def _count(statuses: Iterator[int]) -> dict[str, int]:
    return {str(status): count for status, count in sorted(Counter(statuses).items())}


def summarize(figures: Sequence[float]) -> dict[str, float | int]:
    if len(figures) < 2:
        return {"n": len(figures)}
    cuts = statistics.quantiles(figures, n=100, method="inclusive")
    told = {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "max": max(figures)}
    return {name: round(figure, 1) for name, figure in told.items()} | {"n": len(figures)}


def _p95(figures: Sequence[float]) -> float:
    """Infinite where there is nothing: that meets no goal."""
    return summarize(figures).get("p95", math.inf)


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def print_report(report: Mapping[str, Any]) -> None:
    Console().print_json(json.dumps(report))
