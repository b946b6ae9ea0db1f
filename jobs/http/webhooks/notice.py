"""What a receiver is told: an event of the form that the `openai` library reads."""

import hashlib
import json
from collections.abc import Awaitable, Callable

Described = dict[str, object]
Describe = Callable[[str], Awaitable[Described | None]]  # a job by its id, as `GET /v1/videos/ID` has it; None: gone


def webhook_id(entry: str, job_id: str) -> str:
    """The same for each try, so that a receiver can tell that it has had it: of the job, and of which end of it."""
    return "evt_" + hashlib.sha256(f"{entry} {job_id}".encode(errors="surrogateescape")).hexdigest()[:32]


def make_body(event_id: str, job_id: str, outcome: str, ended_s: int, described: Described | None) -> bytes:
    """The event. Of a job that is gone, only its id is known, and how it ended."""
    video = {"id": job_id} if described is None else described
    event = {
        "id": event_id,
        "object": "event",
        "type": "video.completed" if outcome == "finished" else "video.failed",
        "created_at": ended_s,
        "data": video,
    }
    return json.dumps(event).encode()
