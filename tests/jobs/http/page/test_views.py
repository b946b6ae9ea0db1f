"""What cards say of jobs, from what is listed of them."""

from datetime import UTC, datetime

from jobs.events import PreviewReady, StepDone, StreamOpened
from jobs.http.page.views import cut, find_news, show_finished, show_running, show_waiting, sort_waiting
from jobs.job_status import JobState, Phase
from jobs.listing import ListedJob
from jobs.pieces import KeptPieces, KeptSegment, StoredPiece
from jobs.request import GenerateRequest

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PIECE = StoredPiece(key="k", size_bytes=1, sha256="0")
ONE_CLIP = KeptPieces(header=PIECE, segments=(KeptSegment(piece=PIECE, duration_s=1.0),))


def listed(state=JobState.RUNNING, job_id="j", *, request=None, **told):
    resolved = GenerateRequest(prompt="a red kite", **(request or {})).resolve()
    return ListedJob(id=job_id, state=state, request=resolved, **({"prompt": "a red kite", "queue": "default"} | told))


def running(told=(), kept=ONE_CLIP, **more):
    return show_running(listed(**more), find_news(told, kept), NOW)


def test_jobs_wait_in_the_order_in_which_workers_take_them():
    places = [("batch", 1), ("other", 1), ("default", 2), ("default", None), ("high", 1), ("default", 1)]
    waiting = [listed(JobState.QUEUED, queue=queue, position=place) for queue, place in places]
    ordered = [(job.queue, job.place) for job in sort_waiting(list(map(show_waiting, waiting)))]
    assert ordered == [("high", 1), ("default", 1), ("default", 2), ("default", None), ("batch", 1), ("other", 1)]


def test_a_job_can_be_played_as_soon_as_a_segment_is_kept_and_only_then():
    opened = StreamOpened(segments=7, playlist_key="p")
    assert running([opened], KeptPieces(header=PIECE)).segments == 0
    playable = running([opened])
    assert (playable.segments, playable.segments_in_all) == (1, 7)
    assert "can be played" in playable.says
    assert running([], KeptPieces()).segments_in_all == 0


def test_what_is_read_out_does_not_change_with_every_step():
    steps = [running(phase=Phase.DENOISE, step=step, steps=50, kept=KeptPieces()).says for step in (1, 2, 50)]
    assert len({*steps}) == 1


def test_a_preview_is_shown_when_it_was_told_of_also_if_that_was_long_ago():
    step = StepDone(step=7, steps=50, sigma=0.5, seconds=0.1)
    assert running([step], phase=Phase.DENOISE, step=7, steps=50).preview_step == 0
    newest_first = [step, PreviewReady(step=5, key="b"), PreviewReady(step=4, key="a")]
    assert running(newest_first, phase=Phase.DENOISE, step=7, steps=50).preview_step == 5
    rare = {"preview_every": 100, "steps": 400}
    assert running([step], phase=Phase.DENOISE, step=190, steps=400, request=rare).preview_step == 100


def test_a_job_whose_request_can_no_longer_be_read_is_shown_all_the_same():
    lost = ListedJob(id="j", state=JobState.FINISHED, queue="default")
    shown = show_finished(lost)
    assert "no longer be read" in shown.prompt
    assert [parameter.name for parameter in shown.parameters] == ["Queue"]
    assert not shown.has_poster
    assert show_running(ListedJob(id="j", state=JobState.RUNNING), find_news([], KeptPieces()), NOW).steps == 0


def test_long_text_is_cut_and_says_so():
    assert cut(" a red kite ") == "a red kite"
    assert cut("a" * 300, 10) == "a" * 9 + "…"
