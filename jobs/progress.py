"""Shows a job's events to a person: bars on a terminal, lines elsewhere. Writes to stderr only."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from jobs import events
from jobs.events import Event
from jobs.in_words import say_duration
from jobs.job_status import JobStatus, Phase, estimate_denoise


class Display(ABC):
    """Where the news of one job appear."""

    @abstractmethod
    def tell(self, event: Event) -> None:
        """Show an event."""

    @abstractmethod
    def note(self, status: JobStatus) -> None:
        """Show where the job stands while nothing is new."""

    def tell_all(self, stream: Iterable[Event]) -> Event | None:
        """Show events until they end; the last one."""
        last: Event | None = None
        for last in stream:
            self.tell(last)
        return last


@contextmanager
def open_display(console: Console | None = None) -> Iterator[Display]:
    """One that fits the console, which is free again when the block ends."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Progress(*_columns(), console=console) as progress:
        yield _Bars(progress)


def describe(event: Event) -> str:
    """One line of news."""
    match event:
        case events.Queued(queue=queue, request=r):
            size = f"{r.width}x{r.height}, {r.frames} frames, {r.steps} steps, seed {r.seed}"
            return f"queued in {queue}: {size}"
        case events.Started(attempt=attempt, worker=worker):
            return f"attempt {attempt} on {worker}"
        case events.TextEncoded(tokens=tokens, seconds=seconds):
            return f"text: {tokens} tokens in {seconds:.2f} s"
        case events.StepDone(step=step, steps=steps, sigma=sigma, seconds=seconds):
            return f"denoise: {step}/{steps}, sigma {sigma:.3f}, {seconds:.2f} s/step"
        case events.PreviewReady(step=step, key=key):
            return f"preview after step {step}: {key}"
        case events.CheckpointSaved(step=step, key=key):
            return f"checkpoint after step {step}: {key}"
        case events.StreamOpened(segments=segments, playlist_key=key):
            return f"decode: {segments} clips, playlist {key}"
        case events.SegmentReady(index=index, duration_s=duration_s):
            return f"decode: clip {index + 1}, {duration_s:.2f} s playable"
        case events.Finished(video_key=key):
            return f"finished: {key}"
        case events.AttemptLost(attempt=attempt, reason=reason):
            return f"attempt {attempt} lost, the job waits for another: {reason}"
        case events.Failed(reason=reason):
            return f"failed: {reason}"
        case events.Canceled():
            return "canceled"
        case events.Dead(losses=losses):
            return f"dead after {len(losses)} lost attempts, the last one: {losses[-1].reason}" if losses else "dead"
        case events.Retried():
            return "queued again"
        case events.Unknown(told=told):
            return f"news that this version of h3render does not know ({told}): upgrade it"


class _Lines(Display):
    """A line for each event, and one whenever the job waits for something else."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._waiting_for = ""

    def tell(self, event: Event) -> None:
        self._print(describe(event))

    def note(self, status: JobStatus) -> None:
        if status.waiting_for and status.waiting_for != self._waiting_for:
            self._print(status.waiting_for)
        self._waiting_for = status.waiting_for

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _columns() -> Iterable[TextColumn | BarColumn | MofNCompleteColumn | TimeElapsedColumn]:
    return (
        TextColumn("{task.description:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        # What a job waits for is read whole, also on a narrow terminal.
        TextColumn("{task.fields[note]}", markup=False, table_column=Column(overflow="fold")),
    )


class _Bars(Display):
    """One bar for each phase."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars = {phase: progress.add_task(phase, total=None, start=False, note="") for phase in Phase}
        self._pace = ""  # of the last step
        self._seconds: list[float] = []  # of each step of this attempt

    def tell(self, event: Event) -> None:
        text, denoise, decode = self._bars[Phase.TEXT], self._bars[Phase.DENOISE], self._bars[Phase.DECODE]
        match event:
            case events.Queued(queue=queue, request=request):
                self._progress.update(text, total=1, note=f"waiting in queue {queue}")
                self._progress.update(denoise, total=request.steps)
            case events.Started():
                self._begin_anew()
                self._start(text, note="")
            case events.TextEncoded(tokens=tokens):
                self._finish(text, note=f"{tokens} tokens")
                self._start(denoise, note="")
            case events.StepDone(step=step, steps=steps, sigma=sigma, seconds=seconds):
                self._pace = f"sigma {sigma:.3f}, {seconds:.2f} s/step"
                self._seconds.append(seconds)
                left = _say_left(estimate_denoise(self._seconds, steps - step))
                self._progress.update(denoise, completed=step, note=f"{self._pace}{left}")
            case events.StreamOpened(segments=segments):
                self._finish(denoise, note=self._pace)
                self._progress.update(decode, total=segments)
                self._start(decode, note="")
            case events.SegmentReady(index=index):
                self._progress.update(decode, completed=index + 1, note="playable")
            case events.Finished():
                self._finish(decode, note="")
            case events.AttemptLost() | events.Retried():
                self._print(event)
                self._begin_anew()
            case events.Failed() | events.Canceled() | events.Dead():
                self._print(event)

    def note(self, status: JobStatus) -> None:
        if status.state.is_queued:
            self._progress.update(self._bars[Phase.TEXT], note=status.describe())
        elif status.eta_s is not None and status.phase is Phase.DENOISE:
            self._progress.update(self._bars[Phase.DENOISE], note=f"{self._pace}{_say_left(status.eta_s)}")
        elif status.eta_s is not None and status.phase is Phase.DECODE:
            self._progress.update(self._bars[Phase.DECODE], note=f"playable{_say_left(status.eta_s)}")

    def _print(self, event: Event) -> None:
        self._progress.console.print(describe(event), markup=False, emoji=False)

    def _begin_anew(self) -> None:
        self._seconds.clear()
        for bar in self._bars.values():
            self._progress.reset(bar, start=False, note="")

    def _start(self, bar: TaskID, note: str) -> None:
        self._progress.start_task(bar)
        self._progress.update(bar, note=note)

    def _finish(self, bar: TaskID, note: str) -> None:
        self._progress.update(bar, completed=self._progress.tasks[bar].total, note=note)
        self._progress.stop_task(bar)


def _say_left(seconds: float) -> str:
    return f", {say_duration(seconds)} left" if seconds >= 1 else ""
