"""`/`: the page for people. Forms are ordinary ones, answered by the page as it is after them."""

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request, Response

from jobs.errors import CancelRefused, JobNotFound, RedisUnavailable, TooManyJobs
from jobs.http.bodies import Body, read_body
from jobs.http.page import batch_routes, file_routes, sign_in
from jobs.http.page.answers import Note, PageRoute, go_to, show_live
from jobs.http.page.form import RenderForm, find_errors, parse_form, refill
from jobs.http.page.reading import GALLERY_STEP, MOST_FINISHED
from jobs.http.page.visit import Visit, Visitor
from jobs.http.refusals import Refusal, judge
from jobs.http.renders import cancel_render, delete_render, find_render, retry_render, submit_render
from jobs.http.wishes import parse_wish

JobId = Annotated[str, Path(max_length=100)]
Shown = Annotated[int, Query(ge=GALLERY_STEP, le=MOST_FINISHED)]
NOTES: Mapping[str, Note] = {
    "queued": Note("Queued. It is among those that wait, until a worker takes it."),
    "canceled": Note("Canceled."),
    "stopping": Note("It stops between two steps."),
    "ended": Note("It had ended before.", is_bad=True),
    "deleted": Note("Deleted."),
    "retried": Note("Queued again, with all its attempts."),
    "gone": Note("No such render is left to ask for again.", is_bad=True),
}
REFUSED = Note("Nothing was queued: see what the form says.", is_bad=True)

router = APIRouter(route_class=PageRoute, include_in_schema=False)
for part in (batch_routes, file_routes, sign_in):
    router.include_router(part.router)


@router.get("/")
async def show_page(
    visitor: Visit,
    again: Annotated[str, Query(max_length=100)] = "",
    done: Annotated[str, Query(max_length=100)] = "",
    shown: Shown = GALLERY_STEP,
) -> Response:
    """All of it; with a form that is filled in if a render is to be made again."""
    form, note = RenderForm(), NOTES.get(done)
    try:
        if again:
            form = await _refill(visitor, again)
    except JobNotFound:
        note = NOTES["gone"]
    except RedisUnavailable:
        pass  # which the rest of the page tells
    return await visitor.show(form, shown=shown, note=note)


async def _refill(visitor: Visitor, job_id: str) -> RenderForm:
    """Raises JobNotFound."""
    job = await find_render(visitor.farm, visitor.caller, job_id)
    if job.request is None:
        raise JobNotFound(f"what job {job_id} asked for can no longer be read")
    return refill(job.request, job.queue)


@router.get("/live")
async def show_changes(request: Request, visitor: Visit, shown: Shown = GALLERY_STEP) -> Response:
    """The part of the page that changes, for its script."""
    return show_live(await visitor.look(shown), request)


@router.post("/renders")
async def submit(request: Request, visitor: Visit) -> Response:
    """What the form asks for; the form again, with what is wrong, if it cannot be had."""
    body = await read_body(request)
    form, uploads = parse_form(body.fields), _find_uploads(body)
    if errors := find_errors(form, uploads):
        return await visitor.show(form.with_errors(errors), note=REFUSED, status=422)
    try:
        await submit_render(visitor.farm, visitor.caller, parse_wish(form.to_fields(), uploads))
    except (TooManyJobs, Refusal) as exc:
        return await visitor.show(form.with_errors({"": str(exc)}), note=REFUSED, refusal=_refusal_of(exc))
    return _done(visitor, "queued")


def _refusal_of(error: TooManyJobs | Refusal) -> Refusal:
    return error if isinstance(error, Refusal) else judge(error)


def _find_uploads(body: Body) -> dict[str, bytes]:
    """Pictures, under the names of the request's fields."""
    return {name.removesuffix("_file"): content for name, content in body.uploads.items()}


@router.post("/renders/{job_id}/cancel")
async def cancel(job_id: JobId, visitor: Visit) -> Response:
    try:
        job = await cancel_render(visitor.farm, visitor.caller, job_id)
    except CancelRefused:
        return _done(visitor, "ended")
    return _done(visitor, "canceled" if job.is_ended else "stopping")


@router.post("/renders/{job_id}/retry")
async def retry(job_id: JobId, visitor: Visit) -> Response:
    """Of one that has used up its attempts."""
    try:
        await retry_render(visitor.farm, visitor.caller, job_id)
    except CancelRefused:
        return _done(visitor, "ended")
    except (TooManyJobs, Refusal) as exc:
        note = Note(f"It was not queued again: {exc}.", is_bad=True)
        return await visitor.show(RenderForm(), note=note, refusal=_refusal_of(exc))
    return _done(visitor, "retried")


@router.post("/renders/{job_id}/delete")
async def delete(job_id: JobId, visitor: Visit) -> Response:
    await delete_render(visitor.farm, visitor.caller, job_id)
    return _done(visitor, "deleted")


def _done(visitor: Visitor, what: str) -> Response:
    visitor.looks.forget()
    return go_to(f"/?{urlencode({'done': what})}")
