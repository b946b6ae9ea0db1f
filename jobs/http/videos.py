"""`/v1/videos`: renders for programs, as OpenAI's clients ask for them."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from pydantic import BaseModel

from jobs.http import event_stream
from jobs.http.bodies import read_wish
from jobs.http.callers import Call
from jobs.http.content import answer_with
from jobs.http.farm import FarmOf
from jobs.http.refusals import ErrorReply
from jobs.http.renders import cancel_render, delete_render, find_render, list_renders, submit_render
from jobs.http.video import Video, tell_video
from jobs.http.watching import find_piece, find_thumbnail, find_video, tell_playlist
from jobs.http.wishes import MODEL
from jobs.listing import ListedJob

POLL_AFTER_MS = "1000"  # OpenAI's clients go by it, where they poll
EVENT_ID = r"^([0-9]{1,19}(-[0-9]{1,19})?)?$"  # or nothing, as the first time
HLS = "application/vnd.apple.mpegurl"

VideoId = Annotated[str, Path(description="as POST /v1/videos told it", max_length=100)]


async def _find(video_id: VideoId, farm: FarmOf, caller: Call) -> ListedJob:
    return await find_render(farm, caller, video_id)


Found = Annotated[ListedJob, Depends(_find)]


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the description of the service: what may come instead of an answer."""
    return {status: {"model": ErrorReply} for status in (400, 401, 403, 429, 503, *statuses)}


class VideoList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(BaseModel):
    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True


class Model(BaseModel):
    id: str = MODEL
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "h3render"


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


router = APIRouter(prefix="/v1", tags=["videos"])


@router.post("/videos", responses=_refusals(404, 409, 413, 415))
async def create(
    request: Request,
    response: Response,
    farm: FarmOf,
    caller: Call,
    idempotency_key: Annotated[str | None, Header(max_length=500)] = None,
) -> Video:
    """Queue a render. With an Idempotency-Key it may be repeated, and gives the same one."""
    job = await submit_render(farm, caller, await read_wish(request), idempotency_key)
    response.headers["openai-poll-after-ms"] = POLL_AFTER_MS
    return tell_video(job)


@router.get("/videos", responses=_refusals(404))
async def list_videos(
    farm: FarmOf,
    caller: Call,
    after: Annotated[str | None, Query(max_length=100, description="a video, the last one of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Annotated[Literal["asc", "desc"], Query(description="by the time of the submit")] = "desc",
) -> VideoList:
    """The caller's renders, page by page."""
    page = await list_renders(farm, caller, after=after, limit=limit, oldest_first=order == "asc")
    videos = [tell_video(job) for job in page.jobs]
    ids = [video.id for video in videos]
    return VideoList(
        data=videos, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=page.has_more
    )


@router.get("/videos/{video_id}", responses=_refusals(404))
async def retrieve(job: Found, response: Response) -> Video:
    """Where a render stands."""
    response.headers["openai-poll-after-ms"] = POLL_AFTER_MS
    return tell_video(job)


@router.delete("/videos/{video_id}", responses=_refusals(404))
async def delete(video_id: VideoId, farm: FarmOf, caller: Call) -> VideoDeleted:
    """End a render that has not ended, and delete it with all that it has made."""
    await delete_render(farm, caller, video_id)
    return VideoDeleted(id=video_id)


@router.post("/videos/{video_id}/cancel", responses=_refusals(404, 409))
async def cancel(video_id: VideoId, farm: FarmOf, caller: Call) -> Video:
    """End a render: at once if it waits, else between two steps. It stays in the list, with what it has made."""
    return tell_video(await cancel_render(farm, caller, video_id))


@router.head("/videos/{video_id}/content", include_in_schema=False)
@router.get(
    "/videos/{video_id}/content",
    response_class=Response,
    responses=_refusals(404, 409, 416)
    | {200: {"content": {"video/mp4": {}, "image/png": {}}}, 206: {"description": "the part that Range asks for"}},
)
async def content(
    job: Found, request: Request, farm: FarmOf, variant: Literal["video", "thumbnail"] = "video"
) -> Response:
    """The video as MP4, or its latest preview as PNG, which is there while it still renders. Ranges are served."""
    found = await (find_video if variant == "video" else find_thumbnail)(farm, job)
    return await answer_with(farm.store, found, request)


@router.get(
    "/videos/{video_id}/events",
    response_class=Response,
    responses=_refusals(404)
    | {200: {"content": {event_stream.MEDIA_TYPE: {}}}, 204: {"description": "nothing will follow"}},
)
async def events(
    job: Found,
    farm: FarmOf,
    caller: Call,
    last_event_id: Annotated[str, Header(pattern=EVENT_ID)] = "",
    since: Annotated[str, Query(pattern=EVENT_ID, description="what Last-Event-ID says, for who cannot")] = "",
) -> Response:
    """What happens, as server-sent events: from the first, or after the one with that id, to the last."""
    after = last_event_id or since or None
    handle = await farm.client.job(job.id)
    if await event_stream.is_at_end(handle, after):
        return Response(status_code=204)
    farm.rates.take_stream(caller.name)
    return event_stream.EventStream(handle, after, lambda: farm.rates.leave_stream(caller.name))


@router.get(
    "/videos/{video_id}/hls/playlist.m3u8",
    response_class=Response,
    responses=_refusals(404) | {200: {"content": {HLS: {}}}},
)
async def playlist(job: Found, farm: FarmOf) -> Response:
    """The stream for players, from its first segment on, while the rest is still decoded."""
    text = await tell_playlist(farm, job)
    return Response(text, media_type=HLS, headers={"Cache-Control": "private, no-cache"})


@router.head("/videos/{video_id}/hls/{attempt}/{name}", include_in_schema=False)
@router.get(
    "/videos/{video_id}/hls/{attempt}/{name}",
    response_class=Response,
    responses=_refusals(404, 416) | {200: {"content": {"video/mp4": {}}}, 206: {"description": "likewise a part"}},
)
async def piece(
    job: Found,
    request: Request,
    farm: FarmOf,
    attempt: Annotated[int, Path(ge=1, le=10**9)],
    name: Annotated[str, Path(max_length=100)],
) -> Response:
    """A segment of the stream, or their header."""
    return await answer_with(farm.store, await find_piece(farm, job.id, attempt, name), request)


@router.get("/models", responses=_refusals())
async def models(_: Call) -> ModelList:
    """What can be named as `model`."""
    return ModelList(data=[Model()])
