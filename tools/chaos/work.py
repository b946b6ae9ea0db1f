"""The jobs of a run: many of a few requests, so that each result can be compared with an undisturbed one."""

SIZES = (22, 39)  # frames: one and two clips
MOST_DISTINCT, SHARE = 10, 5  # each request is that of so many jobs, at least
Request = dict[str, object]


def make_requests(jobs: int, steps: int) -> dict[str, Request]:
    """By name."""
    distinct = min(MOST_DISTINCT, max(1, jobs // SHARE))
    return {f"clip-{number}": _make_request(number, steps) for number in range(distinct)}


def _make_request(number: int, steps: int) -> Request:
    return {
        "prompt": f"paper boat number {number} on a puddle",
        "width": 32,
        "height": 32,
        "frames": SIZES[number % len(SIZES)],
        "seed": number,
        "steps": steps,
        "preview_every": 0,
        "checkpoint_every": 2,
    }
