"""What can be asked about one job, and asked of it, whichever client asks."""

from collections.abc import Sequence

from jobs.errors import CancelRefused, EventsGone, JobFailed, JobNotFinished, JobNotFound
from jobs.events import (
    FIRST,
    Canceled,
    Dead,
    Event,
    Failed,
    Finished,
    Queued,
    Unknown,
    parse_entries,
    read_events,
    read_first,
    read_latest,
)
from jobs.job_status import JOB_KEY, JobState, JobStatus, judge_unknown, read_record, read_status, read_text
from jobs.lease import run_script
from jobs.operation import Operation
from jobs.pieces import KeptPieces
from jobs.request import ResolvedRequest


def require_known(job_id: str) -> Operation[None]:
    """Raises JobNotFound."""
    try:
        job_id.encode()
    except UnicodeEncodeError as exc:  # a half character, which Redis cannot be asked for
        raise JobNotFound(f"no job {job_id!a}") from exc
    record = yield from read_record(job_id)
    if not record.redis_state:
        raise JobNotFound(judge_unknown(job_id, record).reason)


def has_ended(job_id: str) -> Operation[bool]:
    """Whether nobody is left to tell more of it."""
    record = yield from read_record(job_id)
    return record.state.is_ended or not record.redis_state


def read_news(job_id: str, since: str | None) -> Operation[list[Event]]:
    """What has been told so far, after an event if one is given. Raises EventIdInvalid."""
    return parse_entries((yield read_events(job_id, FIRST if since is None else since)))


def read_kept(job_id: str) -> Operation[KeptPieces]:
    return KeptPieces.parse((yield lambda redis: redis.hget(JOB_KEY.format(job_id=job_id), "h3_kept")) or b"")


def read_request(job_id: str) -> Operation[ResolvedRequest]:
    """What is rendered. Raises JobNotFound if it can no longer be read."""
    first = parse_entries((yield read_first(job_id)))
    match first:
        case [Queued(request=request)]:  # submit begins each log with it
            return request
        case [Unknown(told=told)]:
            gap = told
        case _:
            gap = "its events are gone"
    raise JobNotFound(f"what job {job_id} renders cannot be read here: {gap}")


def cancel_job(job_id: str, attempt: int | None) -> Operation[bool]:
    """Whether it has ended by that, because it waited. Raises JobNotFound and CancelRefused."""
    answer = yield from run_script("cancel", job_id, "" if attempt is None else attempt)
    outcome, detail = map(read_text, answer)
    match outcome:
        case "unknown":
            yield from require_known(job_id)
        case "ended" if detail == "canceled" and attempt is None:
            return True  # the answer of a first try may have been lost
        case "ended":
            raise CancelRefused(f"job {job_id} has ended: {detail}")
        case "other":
            now = f"attempt {detail} runs" if detail else "none runs"
            raise CancelRefused(f"attempt {attempt} of job {job_id} is not running: {now}")
    return outcome == "canceled"


def find_store_url(job_id: str) -> Operation[str]:
    """Where the result of a finished job is. Raises JobFailed if it ended without one, JobNotFinished, JobNotFound."""
    record = yield from read_record(job_id)
    last = parse_entries((yield read_latest(job_id, 1)))
    if record.state is JobState.FINISHED:
        return last[0].store_url if last and isinstance(last[0], Finished) else ""
    raise explain_missing((yield from read_status(job_id)), last)


def explain_missing(status: JobStatus, last: Sequence[Event]) -> JobFailed | JobNotFinished | JobNotFound:
    """Why a job has no result."""
    match status.state:
        case JobState.UNKNOWN:
            return JobNotFound(status.reason)
        case state if state.is_ended:
            return JobFailed(_explain_end(status.id, last[0] if last else None))
    return JobNotFinished(f"job {status.id} is {status.describe()}: follow it with `h3render watch {status.id}`")


def conclude(job_id: str, last: Event | None) -> Operation[Finished]:
    """What the last event that was told means: the job finished. Raises JobFailed with the reason if it did not.

    Raises EventsGone if it did, and nothing tells of it.
    """
    if isinstance(last, Finished):
        return last
    if last is None or not last.is_last:
        status = yield from read_status(job_id)
        if status.state is JobState.FINISHED:
            raise EventsGone(
                f"job {job_id} has finished, but its last event is gone: `h3render fetch {job_id}` gets it"
            )
    raise JobFailed(_explain_end(job_id, last))


def _explain_end(job_id: str, last: Event | None) -> str:
    match last:
        case Failed(attempt=attempt, reason=reason):
            return f"job {job_id} failed in attempt {attempt}: {reason}"
        case Canceled():
            return f"job {job_id} was canceled"
        case Dead(losses=losses):
            reasons = "; ".join(f"attempt {loss.attempt}: {loss.reason}" for loss in losses)
            return f"job {job_id} has used up its attempts ({reasons}): see `h3render dead`"
        case _:
            return f"the events of job {job_id} stop before its end; `h3render status {job_id}` tells more"
