"""One person who looks at the page: what they may see of the farm, and the page as they get it."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request, Response
from markupsafe import Markup

from jobs.errors import RedisUnavailable
from jobs.http.callers import Call, Caller
from jobs.http.farm import Farm, FarmOf
from jobs.http.page.answers import AWAY, Note, frame, show, tag_of
from jobs.http.page.batch_reading import BatchReader
from jobs.http.page.batch_routes import Batches
from jobs.http.page.form import MOST_SECONDS, QUEUES, RenderForm
from jobs.http.page.reading import GALLERY_STEP, read_farm
from jobs.http.page.rendering import render
from jobs.http.page.shared import SharedLooks
from jobs.http.refusals import Refusal, unavailable
from jobs.operation import run_async

RELOAD_S = 5  # while the farm is away


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks, and at what."""

    farm: Farm
    caller: Caller
    batches: BatchReader
    looks: SharedLooks

    async def look(self, shown: int) -> Markup:
        """The part of the page that changes. Raises RedisUnavailable. shown: how many finished renders"""
        whose = "all" if self.caller.sees_all else f"own {self.caller.name}"
        return await self.looks.get(f"{shown} {whose}", lambda: self._look(shown))

    async def _look(self, shown: int) -> Markup:
        tiles = await asyncio.to_thread(self.batches.list) if self.caller.sees_all else ()
        seen = await run_async(read_farm(self.caller, shown, tiles), self.farm.redis)
        return render("live.html", farm=seen, shows_owner=self.caller.sees_all and self.farm.tokens is not None)

    async def show(
        self,
        form: RenderForm,
        *,
        shown: int = GALLERY_STEP,
        note: Note | None = None,
        refusal: Refusal | None = None,
        status: int = 200,
    ) -> Response:
        """The whole page, also while Redis does not answer: then without what is known of the farm.

        refusal  of what was asked for, if it was more than to look: its status and headers go with the page
        """
        trouble = ""
        try:
            live = await self.look(shown)
        except RedisUnavailable:
            live, trouble, refusal = Markup(), AWAY, unavailable()
        around = frame(caller_name=self.caller.name, note=note, trouble=trouble, reload_s=RELOAD_S if trouble else 0)
        html = render(
            "page.html",
            live_html=live,
            live_tag=tag_of(live),
            live_url=f"/live?shown={shown}",
            form=form,
            queues=QUEUES,
            most_seconds=MOST_SECONDS,
            **around,
        )
        return show(html, status) if refusal is None else show(html, refusal.status, refusal.headers)


async def _find_visitor(request: Request, farm: FarmOf, caller: Call, batches: Batches) -> Visitor:
    state = request.app.state
    if not hasattr(state, "shared_looks"):
        state.shared_looks = SharedLooks()
    return Visitor(farm, caller, batches, cast(SharedLooks, state.shared_looks))


Visit = Annotated[Visitor, Depends(_find_visitor)]
