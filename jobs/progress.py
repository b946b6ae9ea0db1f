"""Shows a job's events to a person: bars on a terminal, lines elsewhere. Writes to stderr only."""

from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from jobs import events
from jobs.events import Event


def show(stream: Iterable[Event], console: Console | None = None) -> Event | None:
    """Draw events until they end and return the last one."""
    console = console or Console(stderr=True)
    return _draw_bars(stream, console) if console.is_terminal else _print_lines(stream, console)


def _print_lines(stream: Iterable[Event], console: Console) -> Event | None:
    last: Event | None = None
    for last in stream:
        console.print(describe(last), highlight=False, markup=False, soft_wrap=True)
    return last


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


def _draw_bars(stream: Iterable[Event], console: Console) -> Event | None:
    columns = (
        TextColumn("{task.description:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    last: Event | None = None
    with Progress(*columns, console=console) as progress:
        bars = _Bars(progress)
        for last in stream:
            bars.update(last)
    return last


class _Bars:
    """One bar for each phase."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._text = self._add("text")
        self._denoise = self._add("denoise")
        self._decode = self._add("decode")

    def _add(self, phase: str) -> TaskID:
        return self._progress.add_task(phase, total=None, start=False, note="")

    def update(self, event: Event) -> None:
        match event:
            case events.Queued(queue=queue, request=request):
                self._progress.update(self._text, total=1, note=f"waiting in queue {queue}")
                self._progress.update(self._denoise, total=request.steps)
            case events.Started():
                self._start(self._text, note="")
                for bar in (self._denoise, self._decode):
                    self._progress.reset(bar, start=False)
            case events.TextEncoded(tokens=tokens):
                self._finish(self._text, note=f"{tokens} tokens")
                self._start(self._denoise, note="")
            case events.StepDone(step=step, sigma=sigma, seconds=seconds):
                note = f"sigma {sigma:.3f}, {seconds:.2f} s/step"
                self._progress.update(self._denoise, completed=step, note=note)
            case events.StreamOpened(segments=segments):
                self._finish(self._denoise)
                self._progress.update(self._decode, total=segments)
                self._start(self._decode, note="")
            case events.SegmentReady(index=index):
                self._progress.update(self._decode, completed=index + 1, note="playable")
            case events.Finished():
                self._finish(self._decode, note="")
            case events.AttemptLost() | events.Failed() | events.Canceled() | events.Dead() | events.Retried():
                self._progress.console.print(describe(event), markup=False)

    def _start(self, bar: TaskID, note: str) -> None:
        self._progress.start_task(bar)
        self._progress.update(bar, note=note)

    def _finish(self, bar: TaskID, note: str | None = None) -> None:
        task = self._progress.tasks[bar]
        self._progress.update(bar, completed=task.total, note=task.fields["note"] if note is None else note)
        self._progress.stop_task(bar)
