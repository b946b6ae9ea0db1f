"""A render as callers are told of it: OpenAI's `video` object, with what a farm knows besides."""

from typing import Literal

from pydantic import BaseModel

from jobs.http.wishes import MODEL
from jobs.job_status import JobState, Phase
from jobs.listing import ListedJob
from jobs.request import FPS, ResolvedRequest

Status = Literal["queued", "in_progress", "completed", "failed"]
STATUS: dict[JobState, Status] = {
    JobState.QUEUED: "queued",
    JobState.WAITING: "queued",
    JobState.RUNNING: "in_progress",
    JobState.FINISHED: "completed",
    JobState.FAILED: "failed",
    JobState.DEAD: "failed",
    JobState.CANCELED: "failed",
}
ENCODED, DENOISED, DECODED = 1, 95, 99  # percent done after each phase


class VideoError(BaseModel):
    code: str  # failed, dead or canceled
    message: str


class VideoURLs(BaseModel):
    """Where more of it is, from the service's root on."""

    content: str
    events: str
    playlist: str
    thumbnail: str


class Video(BaseModel):
    """One render."""

    id: str
    object: Literal["video"] = "video"
    model: str = MODEL
    status: Status
    progress: int  # percent
    created_at: int  # seconds since 1970
    completed_at: int | None
    expires_at: None = None  # `h3render gc` decides
    prompt: str | None
    seconds: str  # of the video, as rendered
    size: str  # likewise
    error: VideoError | None
    remixed_from_video_id: None = None
    # What follows is ours.
    state: JobState
    queue: str
    position: int | None  # in its queue; 1 is next
    waiting_for: str  # why no worker that is alive will take it
    worker: str
    attempt: int
    phase: Phase | None
    step: int | None
    steps: int | None
    eta_s: float | None  # to the end of the phase
    request: ResolvedRequest | None  # all that was snapped and drawn
    urls: VideoURLs


def tell_video(job: ListedJob) -> Video:
    """As a caller may see it."""
    request = job.request
    return Video(
        id=job.id,
        status=STATUS[job.state],
        progress=_judge_progress(job),
        created_at=int(job.submitted_at.timestamp()) if job.submitted_at else 0,
        completed_at=int(job.ended_at.timestamp()) if job.ended_at and job.is_ended else None,
        prompt=job.prompt or None,
        seconds=f"{request.frames / FPS:.4g}" if request else "",
        size=f"{request.width}x{request.height}" if request else "",
        error=_explain(job),
        state=job.state,
        queue=job.queue,
        position=job.position,
        waiting_for=job.waiting_for,
        worker=job.worker,
        attempt=job.attempt,
        phase=job.phase,
        step=job.step,
        steps=job.steps,
        eta_s=job.eta_s,
        request=request,
        urls=_find_urls(job.id),
    )


def _judge_progress(job: ListedJob) -> int:
    """Percent; the decode takes a few of a render."""
    if job.state is JobState.FINISHED:
        return 100
    done = job.step / job.steps if job.step is not None and job.steps else 0.0
    match job.phase:
        case Phase.DENOISE:
            return ENCODED + int(done * (DENOISED - ENCODED))
        case Phase.DECODE:
            return DENOISED + int(done * (DECODED - DENOISED))
    return 0


def _explain(job: ListedJob) -> VideoError | None:
    if STATUS[job.state] != "failed":
        return None
    message = "it was canceled" if job.state is JobState.CANCELED else job.reason
    return VideoError(code=str(job.state), message=message)


def _find_urls(job_id: str) -> VideoURLs:
    root = f"/v1/videos/{job_id}"
    return VideoURLs(
        content=f"{root}/content",
        events=f"{root}/events",
        playlist=f"{root}/hls/playlist.m3u8",
        thumbnail=f"{root}/content?variant=thumbnail",
    )
