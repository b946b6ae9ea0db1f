"""What there is to watch of a render: its video, its latest preview, and its stream while it grows."""

import hashlib
import re

from jobs.errors import JobNotFound, ResultMissing
from jobs.events import FIRST, PreviewReady, parse_entries, read_events, read_latest
from jobs.http.content import STAYS, Content
from jobs.http.farm import Farm
from jobs.job_calls import find_store_url, read_kept
from jobs.job_status import LATEST_EVENTS
from jobs.listing import ListedJob
from jobs.operation import Operation, run_async
from jobs.playlist import PlaylistSegment, render_playlist
from jobs.result import read_result

MP4, PNG = "video/mp4", "image/png"
_PIECE = re.compile(r"[0-9]{1,9}/[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)  # attempt and name


async def find_video(farm: Farm, job: ListedJob) -> Content:
    """The whole video. Raises ResultMissing, JobFailed and JobNotFinished."""
    await run_async(find_store_url(job.id), farm.redis)  # tells why there is no result
    try:
        result = await farm.store.ask(lambda store: read_result(store, job.id))
    except ResultMissing as exc:  # whose text is for who runs the farm
        raise JobNotFound(f"the result of video {job.id} is no longer in the store: render it again") from exc
    piece = next((piece for piece in result.pieces if piece.key == result.video_key), None)
    if piece is None:
        raise ResultMissing(f"the result of video {job.id} does not name its own video: render it again")
    return Content(piece.key, piece.size_bytes, piece.sha256, MP4, name=f"{job.id}.mp4")


async def find_thumbnail(farm: Farm, job: ListedJob) -> Content:
    """The latest preview, also while it renders. Raises JobNotFound as long as there is none."""
    key = await run_async(_find_preview(job.id), farm.redis)
    found = await farm.store.ask(lambda store: store.find(key)) if key else None
    if found is None:
        raise JobNotFound(f"video {job.id} has no preview yet: they come every few steps (`preview_every`)")
    return Content(found.key, found.size_bytes, hashlib.sha256(found.key.encode()).hexdigest(), PNG)


def _find_preview(job_id: str) -> Operation[str | None]:
    """Its key. The log of one job may not lead to the objects of another."""
    latest = parse_entries((yield read_latest(job_id, LATEST_EVENTS)))
    if not any(isinstance(event, PreviewReady) for event in latest):
        latest = parse_entries((yield read_events(job_id, FIRST)))[::-1]
    keys = (event.key for event in latest if isinstance(event, PreviewReady))
    return next((key for key in keys if _is_piece(job_id, key)), None)


def _is_piece(job_id: str, key: str) -> bool:
    attempts = _attempts(job_id)
    return key.startswith(attempts) and bool(_PIECE.fullmatch(key.removeprefix(attempts)))


async def tell_playlist(farm: Farm, job: ListedJob) -> str:
    """The stream so far, with the pieces below the playlist's own URL. Raises JobNotFound as long as there is none."""
    kept = await run_async(read_kept(job.id), farm.redis)
    if kept.header is None or not kept.segments:
        raise JobNotFound(f"video {job.id} has no segment yet: follow its events, the first segment_ready tells of one")
    segments = [PlaylistSegment(_uri(job.id, one.piece.key), one.duration_s) for one in kept.segments]
    return render_playlist(_uri(job.id, kept.header.key), segments, ended=job.is_ended)


def _uri(job_id: str, key: str) -> str:
    return key.removeprefix(_attempts(job_id))


def _attempts(job_id: str) -> str:
    return f"{job_id}/attempts/"


async def find_piece(farm: Farm, job_id: str, attempt: int, name: str) -> Content:
    """A piece of the stream, by the names of its playlist. Raises JobNotFound."""
    kept = await run_async(read_kept(job_id), farm.redis)
    for piece in kept.stream():
        if piece.key == f"{_attempts(job_id)}{attempt}/{name}":
            return Content(piece.key, piece.size_bytes, piece.sha256, MP4, STAYS)
    raise JobNotFound(f"video {job_id} has no piece {name[:100]!a} of attempt {attempt}: its playlist names them")
