"""`/batches/NAME`: one batch, for whoever may see all of the farm."""

import asyncio
from typing import Annotated, cast
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from markupsafe import Markup
from redis import Redis

from jobs.batch.record import Batch
from jobs.batch.states import RowStatus, cancel_rows, read_statuses, retry_rows
from jobs.connection import connect
from jobs.errors import JobNotFound
from jobs.http.callers import Call, Caller
from jobs.http.farm import FarmOf
from jobs.http.page.answers import PageRoute, frame, go_to, show, show_live, tag_of
from jobs.http.page.batch_reading import ROWS_STEP, BatchReader
from jobs.http.page.rendering import render

MOST_ROWS = 40 * ROWS_STEP
ANSWER_TIMEOUT_S = 5.0  # a thread that waits is no use to others


async def _reader_of(request: Request, farm: FarmOf) -> BatchReader:
    """One for the whole service: what was read lately is kept there."""
    state = request.app.state
    if not hasattr(state, "batch_reader"):
        state.batch_reader = BatchReader(lambda: connect(farm.settings, answer_timeout_s=ANSWER_TIMEOUT_S, retries=0))
    return cast(BatchReader, state.batch_reader)


async def _require_all(caller: Call) -> Caller:
    """A batch is the whole farm's. Raises JobNotFound."""
    if not caller.sees_all:
        raise JobNotFound("batches are shown to operators alone")
    return caller


Batches = Annotated[BatchReader, Depends(_reader_of)]
Operator = Annotated[Caller, Depends(_require_all)]
Name = Annotated[str, Path(max_length=100)]
Shown = Annotated[int, Query(ge=ROWS_STEP, le=MOST_ROWS)]
State = Annotated[str, Query(max_length=20, pattern="^[a-z_]*$")]

router = APIRouter(prefix="/batches/{name}", route_class=PageRoute, include_in_schema=False)


@router.get("")
async def show_batch(
    name: Name, caller: Operator, batches: Batches, state: State = "", shown: Shown = ROWS_STEP
) -> Response:
    live = await _render_live(name, batches, state, shown)
    url = f"/batches/{name}/live?{urlencode({'state': state, 'shown': shown})}"
    html = render(
        "batch.html", name=name, live_html=live, live_tag=tag_of(live), live_url=url, **frame(caller_name=caller.name)
    )
    return show(html)


@router.get("/live")
async def show_changes(
    request: Request, name: Name, _: Operator, batches: Batches, state: State = "", shown: Shown = ROWS_STEP
) -> Response:
    """The part of it that changes, for its script."""
    return show_live(await _render_live(name, batches, state, shown), request)


@router.post("/cancel")
async def cancel(name: Name, _: Operator, batches: Batches) -> Response:
    """All rows that have not ended."""
    await asyncio.to_thread(batches.change, lambda redis: cancel_rows(redis, _read(redis, name)))
    return go_to(f"/batches/{name}")


@router.post("/retry")
async def retry(name: Name, _: Operator, batches: Batches) -> Response:
    """All rows that failed or have used up their attempts."""
    await asyncio.to_thread(batches.change, lambda redis: retry_rows(redis, _read(redis, name)))
    return go_to(f"/batches/{name}")


def _read(redis: Redis, name: str) -> list[RowStatus]:
    """Raises BatchInvalid and JobNotFound."""
    return read_statuses(redis, Batch(redis, name).rows())


async def _render_live(name: str, batches: BatchReader, state: str, shown: int) -> Markup:
    page = await asyncio.to_thread(batches.read, name, state, shown)
    return render("batch_live.html", batch=page, more_url=f"?{urlencode({'state': state, 'shown': page.more})}")
