"""Amounts and times as a person reads them."""

from datetime import UTC, datetime


def say_duration(seconds: float) -> str:
    """In two units at most: 45 s, 12 min 5 s, 3 h 20 min, 2 d 4 h."""
    whole = round(seconds)
    for size, name, smaller, smaller_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{whole} s"


def say_count(count: int, name: str) -> str:
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def say_time(when: datetime) -> str:
    """To the second: 2026-11-30 22:05:00 UTC."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
