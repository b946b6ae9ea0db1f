"""Decides when a pod leaves by itself. Pure: what is known goes in, a reason or nothing comes out.

It is a help and not the guard: a pod may fail to end itself, so whoever rented it sweeps, too.
"""

from dataclasses import dataclass

from jobs.in_words import say_duration


@dataclass(frozen=True, slots=True)
class Moment:
    """What a pod knows as it looks around."""

    now: float  # seconds since 1970, by the queue's server; by this machine's clock while that does not answer
    knows_queue: bool  # whether it answers
    is_busy: bool  # whether the worker renders, as far as was last heard; one that does not run does not
    idle_s: float  # since it was last busy, or since it could first be
    silent_s: float  # since a reconciler last looked, or since this pod began


@dataclass(frozen=True, slots=True)
class Limits:
    """How long it may stay."""

    lease_until: float | None  # seconds since 1970: absolute, so that a restart does not extend it
    idle_s: float
    contact_s: float


def judge(moment: Moment, limits: Limits) -> str:
    """Why to leave; nothing if it is to stay.

    A busy worker is drained for one reason only, the end of the lease, and not while the queue is away: it could not
    give its job back then. An idle one that does not hear from the queue leaves for that reason alone, too.
    """
    if limits.lease_until is not None and moment.now >= limits.lease_until:
        is_kept = moment.is_busy and not moment.knows_queue
        return "" if is_kept else f"its lease ended {say_duration(moment.now - limits.lease_until)} ago"
    if moment.is_busy or not moment.knows_queue:
        return ""
    if moment.idle_s >= limits.idle_s:
        return f"no job for {say_duration(moment.idle_s)}"
    if moment.idle_s > 0 and moment.silent_s >= limits.contact_s:
        return f"idle, and no reconciler has looked for {say_duration(moment.silent_s)}"
    return ""
