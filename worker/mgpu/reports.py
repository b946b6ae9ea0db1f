"""What a rank says about an exception: text first, so that it arrives even if the exception itself does not."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass

import torch

from worker.mgpu.errors import FailureKind, RunnerError
from worker.mgpu.lockstep import LockstepError
from worker.mgpu.tensors import pack, unpack


@dataclass(frozen=True, slots=True)
class ErrorReport:
    kind: FailureKind
    cause_type: str
    text: str
    traceback: str
    failed_at: float
    original: bytes  # the packed RunnerError; empty if it is none, or does not pickle


def report_error(error: BaseException) -> bytes:
    """Runs in a rank; returns the body of a message."""
    kind = _kind_of(error)
    report = ErrorReport(
        kind=kind,
        cause_type=type(error).__name__,
        text=_text_of(error) + (_memory_summary() if kind is FailureKind.OUT_OF_MEMORY else ""),
        traceback=_traceback_of(error),
        failed_at=time.monotonic(),
        original=_packed_original(error),
    )
    return pack(report, share_cuda=False, inline=True).body


def read_report(body: bytes) -> ErrorReport:
    report = unpack(body, None)
    assert isinstance(report, ErrorReport)
    return report


def rebuild_runner_error(rank: int, report: ErrorReport) -> RunnerError:
    """The very exception if it can be rebuilt here, else a RunnerError with its text."""
    try:
        return _described(_unpacked_original(report) or RunnerError(report.text), rank, report)
    except AttributeError:  # a frozen one
        return _described(RunnerError(report.text), rank, report)


def _described(error: RunnerError, rank: int, report: ErrorReport) -> RunnerError:
    error.rank = rank
    error.cause_type = report.cause_type
    error.remote_traceback = report.traceback
    return error


def _packed_original(error: BaseException) -> bytes:
    if not isinstance(error, RunnerError):
        return b""
    try:
        return pack(error, share_cuda=False, inline=True).body
    except Exception:  # an exception may hold anything; its text is enough
        return b""


def _unpacked_original(report: ErrorReport) -> RunnerError | None:
    if not report.original:
        return None
    try:
        error = unpack(report.original, None)
    except Exception:  # a class with its own constructor, say; the text is enough
        return None
    return error if isinstance(error, RunnerError) else None


def _kind_of(error: BaseException) -> FailureKind:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return FailureKind.OUT_OF_MEMORY
    return FailureKind.DIVERGED if isinstance(error, LockstepError) else FailureKind.RAISED


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as trouble:  # a __str__ of somebody else
        return f"(its text raised {type(trouble).__name__})"


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # as above
        return "".join(traceback.format_tb(error.__traceback__))


def _memory_summary() -> str:
    return f"\n{torch.cuda.memory_summary()}" if torch.cuda.is_initialized() else ""
