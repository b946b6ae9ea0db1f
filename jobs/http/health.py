"""Whether the service can do its work, for supervisors and load balancers."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from jobs.canceled import heeding_cancel
from jobs.connection import redis_errors
from jobs.http.farm import FarmOf
from jobs.http.refusals import ErrorReply

router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: Literal["ok"] = "ok"


@router.get("/healthz", responses={503: {"model": ErrorReply}}, openapi_extra={"security": []})
async def healthz(farm: FarmOf) -> Health:
    """Whether Redis answers. Needs no token."""
    with redis_errors(), heeding_cancel():
        await farm.redis.ping()
    return Health()
