"""What the page shows of jobs, as plain values for templates. Pure functions: they know no Redis, no store, no HTTP."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.events import Event, PreviewReady, StreamOpened
from jobs.in_words import say_duration
from jobs.job_status import JobState, Phase
from jobs.listing import ListedJob
from jobs.pieces import KeptPieces
from jobs.queues import QueueName
from jobs.request import FPS, ResolvedRequest

SHORT_LETTERS = 280  # of a prompt, on a card
LONG_LETTERS = 4000  # where it is unfolded; all of it is in the form of "Same again"
REASON_LETTERS = 1200
_PHASES = {Phase.TEXT: "Text", Phase.DENOISE: "Denoise", Phase.DECODE: "Decode"}
_NO_PROMPT = "(its prompt can no longer be read)"
_STATES = {JobState.FAILED: "Failed", JobState.DEAD: "Gave up"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One line of what a render was made with."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Step:
    """One of the phases, as a running job's card shows it."""

    name: str
    mark: str  # done, now or next


@dataclass(frozen=True, slots=True)
class Running:
    """A job that a worker has."""

    id: str
    owner: str  # empty where jobs have none
    prompt: str
    queue: str
    worker: str
    attempt: int
    phases: tuple[Step, ...]
    doing: str  # in words, where it is
    step: int
    steps: int  # 0: not known yet
    started_at: datetime | None
    ends_at: datetime | None  # of this phase, by what it took so far
    ends_how: str  # what it is then: playable, or complete
    preview_step: int  # 0: there is none yet
    segments: int  # that can be played; 0 as long as there is no stream
    segments_in_all: int
    is_stopping: bool
    trouble: str
    is_wide: bool  # nearly as the cards are
    parameters: tuple[Parameter, ...]

    @property
    def says(self) -> str:
        """What is read out when it changes: states, never steps."""
        about = cut(self.prompt, 60)
        if self.is_stopping:
            return f"{about}: is stopping"
        return f"{about}: can be played while the rest is made" if self.segments else f"{about}: is being rendered"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job in a queue."""

    id: str
    owner: str  # empty where jobs have none
    prompt: str
    queue: str
    place: int | None  # in its queue; 1 is next
    why: str  # nobody will take it as things are; empty if it only waits its turn
    submitted_at: datetime | None
    attempts: int  # that were lost so far

    @property
    def says(self) -> str:
        return f"{cut(self.prompt, 60)}: {self.why}" if self.why else ""


@dataclass(frozen=True, slots=True)
class Lost:
    """A job that ended without a result."""

    id: str
    owner: str  # empty where jobs have none
    prompt: str
    state: str
    reason: str
    can_retry: bool
    ended_at: datetime | None

    @property
    def says(self) -> str:
        return f"{cut(self.prompt, 60)}: {self.state.lower()}"


@dataclass(frozen=True, slots=True)
class Finished:
    """A render in the gallery."""

    id: str
    owner: str  # empty where jobs have none
    prompt: str
    whole_prompt: str
    length: str
    size: str
    has_poster: bool
    is_wide: bool
    ended_at: datetime | None
    parameters: tuple[Parameter, ...]

    @property
    def says(self) -> str:
        return f"{cut(self.prompt, 60)}: is finished"


@dataclass(frozen=True, slots=True)
class News:
    """What a running job's events and record tell beyond its status."""

    claimed_at: datetime | None = None
    is_stopping: bool = False  # somebody has canceled it
    preview_step: int = 0
    segments: int = 0
    segments_in_all: int = 0


def find_news(
    told: Iterable[Event], kept: KeptPieces, *, claimed_at: datetime | None = None, is_stopping: bool = False
) -> News:
    """told  the latest events, the last one first"""
    preview, in_all = 0, 0
    for event in told:
        match event:
            case PreviewReady(step=step):
                preview = preview or step
            case StreamOpened(segments=segments):
                in_all = in_all or segments
    return News(claimed_at, is_stopping, preview, len(kept.segments) if kept.header else 0, in_all)


# --- from what is listed


def show_running(job: ListedJob, news: News, now: datetime) -> Running:
    request = job.request
    step, steps = job.step or 0, job.steps or 0
    return Running(
        id=job.id,
        owner=job.owner,
        prompt=cut(job.prompt or _NO_PROMPT),
        queue=job.queue,
        worker=job.worker,
        attempt=job.attempt,
        phases=tuple(_mark_phases(job.phase)),
        doing=_say_doing(job),
        step=step,
        steps=steps,
        started_at=news.claimed_at,
        ends_at=None if job.eta_s is None else _round(now + timedelta(seconds=job.eta_s)),
        ends_how="complete" if job.phase is Phase.DECODE else "playable",
        preview_step=news.preview_step or _guess_preview(job, request),
        segments=news.segments,
        segments_in_all=max(news.segments_in_all, news.segments),
        is_stopping=news.is_stopping,
        trouble=cut(job.reason, REASON_LETTERS),
        is_wide=is_wide(request),
        parameters=list_parameters(request, job.queue),
    )


def show_waiting(job: ListedJob) -> Waiting:
    return Waiting(
        id=job.id,
        owner=job.owner,
        prompt=cut(job.prompt or _NO_PROMPT),
        queue=job.queue,
        place=job.position,
        why=_say_why(job.waiting_for),
        submitted_at=job.submitted_at,
        attempts=job.attempt,
    )


def show_lost(job: ListedJob) -> Lost:
    return Lost(
        id=job.id,
        owner=job.owner,
        prompt=cut(job.prompt or _NO_PROMPT),
        state=_STATES.get(job.state, str(job.state)),
        reason=cut(job.reason or "no reason was told", REASON_LETTERS),
        can_retry=job.state is JobState.DEAD,
        ended_at=job.ended_at,
    )


def show_finished(job: ListedJob) -> Finished:
    request = job.request
    return Finished(
        id=job.id,
        owner=job.owner,
        prompt=cut(job.prompt or _NO_PROMPT),
        whole_prompt=cut(job.prompt, LONG_LETTERS),
        length=_say_length(request) if request else "",
        size=f"{request.width}x{request.height}" if request else "",
        has_poster=has_poster(request),
        is_wide=is_wide(request),
        ended_at=job.ended_at,
        parameters=list_parameters(request, job.queue),
    )


def has_poster(request: ResolvedRequest | None) -> bool:
    """Whether its last preview is in the store, if none was left out."""
    return request is not None and 0 < request.preview_every <= request.steps


def is_wide(request: ResolvedRequest | None) -> bool:
    """Whether it is nearly 16:9, as the cards are."""
    return request is not None and 1.65 <= request.width / request.height <= 1.9


def list_parameters(request: ResolvedRequest | None, queue: str) -> tuple[Parameter, ...]:
    """What a render was made with, without its prompt; what is as always is left out."""
    return tuple(Parameter(name, value) for name, value in _find_parameters(request, queue).items() if value)


def _find_parameters(request: ResolvedRequest | None, queue: str) -> Mapping[str, str]:
    if request is None:
        return {"Queue": queue}
    return {
        "Size": f"{request.width} x {request.height} pixels",
        "Length": f"{_say_length(request)}, {request.frames} frames",
        "Steps": str(request.steps),
        "Seed": str(request.seed),
        "Queue": queue,
        "First frame": request.first_frame or "",
        "Last frame": request.last_frame or "",
        "Mode": _unless_auto(request.mode),
        "Precision": _unless_auto(request.precision),
        "Attention": _unless_auto(request.attention),
        "Deadline": say_duration(request.deadline_s) if request.deadline_s else "",
    }


def _unless_auto(choice: str) -> str:
    return "" if choice == "auto" else str(choice)


def _say_length(request: ResolvedRequest) -> str:
    return f"{request.frames / FPS:.1f} s"


def _mark_phases(phase: Phase | None) -> Iterable[Step]:
    order = list(Phase)
    at = -1 if phase is None else order.index(phase)
    for index, each in enumerate(order):
        yield Step(_PHASES[each], "done" if index < at else "now" if index == at else "next")


def _say_doing(job: ListedJob) -> str:
    match job.phase:
        case Phase.TEXT:
            return "Reading the prompt"
        case Phase.DENOISE:
            return f"Step {job.step or 0} of {job.steps}" if job.steps else "Before the first step"
        case Phase.DECODE:
            return f"Clip {job.step or 0} of {job.steps}" if job.steps else "Before the first clip"
        case None:
            return "Starting"


def _guess_preview(job: ListedJob, request: ResolvedRequest | None) -> int:
    """Of a preview that was told of so long ago that nobody has read the event."""
    if request is None or not request.preview_every or job.phase is not Phase.DENOISE:
        return 0
    step = (job.step or 0) // request.preview_every * request.preview_every
    return step if (job.step or 0) - step > _SURELY_THERE else 0


_SURELY_THERE = 20  # steps after a preview; its upload is over


def _say_why(waiting_for: str) -> str:
    return waiting_for.removeprefix("waiting: ")


def _round(at: datetime) -> datetime:
    """To two seconds: what is left is told by a clock that goes on by itself, and need not be told again."""
    return datetime.fromtimestamp(round(at.timestamp() / 2) * 2, UTC)


def cut(text: str, letters: int = SHORT_LETTERS) -> str:
    """At most so many, with a mark where some are left out."""
    whole = text.strip()
    return whole if len(whole) <= letters else f"{whole[: letters - 1].rstrip()}…"


def sort_waiting(jobs: Sequence[Waiting]) -> list[Waiting]:
    """As workers take them: by queue, and in it by place."""
    order = {str(name): index for index, name in enumerate(QueueName)}
    return sorted(jobs, key=lambda job: (order.get(job.queue, len(order)), job.queue, job.place or 10**9))
