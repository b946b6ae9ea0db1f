import io

import pytest
from rich.console import Console

from jobs import events
from jobs.progress import open_display
from jobs.request import ResolvedRequest

REQUEST = ResolvedRequest(prompt="a red kite", width=64, height=64, frames=39, steps=2, seed=1)
ATTEMPT = [
    events.TextEncoded(tokens=10, seconds=0.1),
    events.StepDone(step=1, steps=2, sigma=1.0, seconds=0.25),
    events.StepDone(step=2, steps=2, sigma=0.923, seconds=0.24),
]
DECODE = [
    events.StreamOpened(segments=2, playlist_key="p"),
    events.SegmentReady(index=0, key="k", duration_s=0.7, playlist_key="p"),
    events.SegmentReady(index=1, key="k", duration_s=0.9, playlist_key="p"),
]
FINISHED = events.Finished(
    attempt=2, store_url="file:///s", result_key="r", video_key="v", report_key="p", playlist_key="l"
)
TOLD = [
    events.Queued(queue="default", request=REQUEST),
    events.Started(attempt=1, worker="w"),
    *ATTEMPT,
    events.AttemptLost(attempt=1, reason="rank 1 died", charge="fatal"),
    events.Started(attempt=2, worker="w"),
    *ATTEMPT,
    *DECODE,
    FINISHED,
]


@pytest.fixture
def screen():
    return io.StringIO()


def test_a_terminal_shows_a_bar_for_each_phase_with_its_numbers(screen):
    console = Console(file=screen, force_terminal=True, width=110, color_system=None)
    with open_display(console) as display:
        assert display.tell_all(TOLD) == FINISHED
    for phase, count, note in (
        ("text", "1/1", "10 tokens"),
        ("denoise", "2/2", "sigma 0.923, 0.24 s/step"),
        ("decode", "2/2", ""),
    ):
        final = [line for line in screen.getvalue().splitlines() if phase in line and "/" in line][-1]
        assert count in final
        assert note in final
    assert "attempt 1 lost, the job waits for another: rank 1 died" in screen.getvalue()


def test_elsewhere_each_event_is_a_line(screen):
    with open_display(Console(file=screen, width=110)) as display:
        assert display.tell_all(TOLD) == FINISHED
    lines = screen.getvalue().splitlines()
    assert len(lines) == len(TOLD)
    assert lines[0] == "queued in default: 64x64, 39 frames, 2 steps, seed 1"
    assert "denoise: 2/2, sigma 0.923, 0.24 s/step" in lines


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (events.Failed(attempt=1, reason="refused"), "failed: refused"),
        (
            events.Dead(attempt=1, losses=[events.Loss(attempt=1, worker="w", kind="fatal", reason="rank 1 died")]),
            "dead after 1 lost attempts, the last one: rank 1 died",
        ),
        (events.Dead(attempt=1, losses=[]), "dead"),
        (events.Retried(), "queued again"),
    ],
)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_ends_and_new_beginnings_are_told(screen, event, line, is_terminal):
    console = Console(file=screen, force_terminal=is_terminal, width=110, color_system=None)
    with open_display(console) as display:
        assert display.tell_all([*TOLD[:2], event]) == event
    assert line in screen.getvalue()
