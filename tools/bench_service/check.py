"""What must hold of every answer and of every stream: pure functions that say what does not."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tools.bench_service.measured import Answer, Asked, Following, Outage, Told

GRACE_S = 3.0  # after Redis is back: the service's tries have pauses
LONGEST_ANSWER_S = 5.0
STATUSES = ("queued", "in_progress", "completed", "failed")


def doubt_answers(answers: Iterable[Answer], outage: Outage) -> Iterator[str]:
    return (f"{answer.asked}: {doubt}" for answer in answers for doubt in doubt_answer(answer, outage))


def doubt_answer(answer: Answer, outage: Outage) -> Iterator[str]:
    """Nothing but success; or a clear 503 while Redis is away."""
    if answer.flaw:
        yield answer.flaw
    elif answer.status == 503:
        if answer.came_at < outage.stopped_at or answer.sent_at > outage.back_at + GRACE_S:
            yield "503 while Redis was there"
    elif answer.status != (204 if answer.asked is Asked.END else 200):
        yield f"status {answer.status}"


def doubt_times(answers: Iterable[Answer]) -> Iterator[str]:
    for answer in answers:
        if answer.took_s > LONGEST_ANSWER_S:
            yield f"{answer.asked}: took longer than {LONGEST_ANSWER_S:.0f} s"


def doubt_refusal(headers: Mapping[str, str], body: bytes) -> str:
    """Of a 503: it says when to come again, and why, in OpenAI's form."""
    if not headers.get("retry-after", "").isdecimal():
        return "503 without Retry-After"
    try:
        error = json.loads(body)["error"]
        told = (error["code"], error["type"], bool(error["message"]))
    except (ValueError, TypeError, KeyError):
        return "503 in another form than OpenAI's"
    return "" if told == ("unavailable", "server_error", True) else f"503 that says {told}"


def doubt_video(body: bytes, job_id: str | None = None) -> str:
    """Of what a poll is told; or a submit, which does not know the id."""
    try:
        video = json.loads(body)
        told = (video["object"], video["id"], video["status"])
    except (ValueError, TypeError, KeyError):
        return "no video"
    is_right = told[0] == "video" and told[1] and job_id in (None, told[1]) and told[2] in STATUSES
    return "" if is_right else f"another video: {told}"


def doubt_list(body: bytes) -> str:
    """Of a page of a list."""
    try:
        page = json.loads(body)
        is_right = page["object"] == "list" and all(video["object"] == "video" for video in page["data"])
    except (ValueError, TypeError, KeyError):
        is_right = False
    return "" if is_right else "no list of videos"


def doubt_following(following: Following, log: Sequence[Told]) -> Iterator[str]:
    """Of one client that followed one job."""
    yield from doubt_stream([heard.told for heard in following.heard], log)
    if not following.is_over:
        yield "the last event never came"


def doubt_stream(heard: Sequence[Told], log: Sequence[Told]) -> Iterator[str]:
    """Every event of the log, once, in its order, and as it was told."""
    times = Counter(heard)
    for told in log:
        if told not in times:
            yield f"event {told.id} ({told.kind}) is lost"
    for told, count in times.items():
        if told not in log:
            yield f"event {told.id} ({told.kind}) was never told"
        elif count > 1:
            yield f"event {told.id} ({told.kind}) came {count} times"
    places = {told: place for place, told in enumerate(log)}
    known = [places[told] for told in heard if told in places]
    if known != sorted(known):
        yield "events came out of order"
