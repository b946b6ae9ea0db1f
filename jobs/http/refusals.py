"""What a caller is told instead of an answer, in the form that OpenAI's clients read."""

from collections.abc import Mapping

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from jobs.errors import (
    BatchInvalid,
    CancelRefused,
    EventIdInvalid,
    JobFailed,
    JobNotFinished,
    JobNotFound,
    JobsError,
    KeyConflict,
    PictureInvalid,
    RequestInvalid,
    TooManyJobs,
)

RETRY_AFTER_S = 2  # when Redis or the store does not answer
ROOM_AFTER_S = 30  # when an owner has too many open jobs

log = structlog.get_logger()


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(BaseModel):
    """The body of every answer from 400 on."""

    error: ErrorDetail


class Refusal(Exception):
    """An answer from 400 on."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers

    def answer(self) -> JSONResponse:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        detail = ErrorDetail(message=self.message, type=kind, code=self.code)
        return JSONResponse(ErrorReply(error=detail).model_dump(), self.status, headers=self.headers)


STATUSES = {
    RequestInvalid: (400, "invalid_request"),
    PictureInvalid: (400, "invalid_picture"),
    BatchInvalid: (400, "invalid_batch"),
    EventIdInvalid: (400, "invalid_event_id"),
    JobNotFound: (404, "not_found"),
    KeyConflict: (409, "idempotency_key_reused"),
    CancelRefused: (409, "has_ended"),
    JobNotFinished: (409, "not_finished"),
    JobFailed: (409, "has_failed"),
    TooManyJobs: (429, "too_many_open"),
}


def judge(error: JobsError) -> Refusal:
    """How an error is told. What is not the caller's to mend is logged, and told without addresses of ours."""
    for kind, (status, code) in STATUSES.items():
        if isinstance(error, kind):
            headers = {"Retry-After": str(ROOM_AFTER_S)} if status == 429 else None
            return Refusal(status, code, str(error), headers)
    log.warning("service unavailable", reason=str(error))
    return unavailable()


def unavailable() -> Refusal:
    return Refusal(
        503,
        "unavailable",
        "the queue or the store does not answer: try again in a moment",
        {"Retry-After": str(RETRY_AFTER_S)},
    )


def add_handlers(app: FastAPI) -> None:
    """Tell errors of every kind in one form."""

    @app.exception_handler(Refusal)
    async def _refuse(_: Request, error: Refusal) -> JSONResponse:
        return error.answer()

    @app.exception_handler(JobsError)
    async def _judge(_: Request, error: JobsError) -> JSONResponse:
        return judge(error).answer()

    @app.exception_handler(HTTPException)
    async def _retell(_: Request, error: HTTPException) -> JSONResponse:
        return Refusal(error.status_code, "http", str(error.detail), error.headers).answer()

    @app.exception_handler(RequestValidationError)
    async def _explain(_: Request, error: RequestValidationError) -> JSONResponse:
        lines = (f"{'.'.join(map(str, entry['loc'][1:]))}: {entry['msg']}" for entry in error.errors())
        return Refusal(400, "invalid_request", "\n".join(lines)).answer()
