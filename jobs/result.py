"""The commit marker of a job: `<job_id>/result.json`, written once, after every object that it names."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from jobs.pieces import StoredPiece
from jobs.request import ResolvedRequest


class Result(BaseModel):
    """Everything a viewer needs. A reader that sees it sees a complete job."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    job_id: str
    attempt: int
    request: ResolvedRequest
    video_key: str
    report_key: str
    playlist_key: str | None  # None if the runner streams nothing
    pieces: list[StoredPiece]


def result_key(job_id: str) -> str:
    """Where a job's commit marker lies."""
    return f"{job_id}/result.json"
