"""What an attempt makes, on its way to a real store and a real queue; no ranks, the items are the test's."""

import threading
from collections import Counter

import pytest

from jobs.events import Finished
from jobs.lease import Charge
from tests.waiting import eventually
from tests.worker.attempts import (
    CLAIM,
    DEADLINE_S,
    MOMENT_S,
    PLAYLIST,
    REQUEST,
    RESULT,
    checkpoint,
    content,
    finished,
    header,
    listed,
    names,
    preview,
    publish,
    publish_all,
    render,
    result_of,
    segment,
)
from worker import items
from worker.errors import NumberUsed, Superseded


def test_every_item_becomes_an_event_and_every_file_an_object_of_the_attempt(store, job):
    render(job.begin(store), job)
    assert Counter(job.kinds()) == Counter(
        ["text_encoded", "step_done", "preview_ready", "checkpoint_saved", "stream_opened", *2 * ["segment_ready"]]
    )
    for event in job.told():
        for field, key in event.model_dump().items():
            if field.endswith("key"):
                assert store.stat(key), field
                assert key.startswith(f"{job.id}/attempts/1/")
    assert job.files_left() == []  # the worker deletes what it was given
    assert job.heard == []


def test_what_needs_no_store_is_told_in_order_and_so_is_what_does(store, job):
    render(job.begin(store), job)
    with_objects = [kind for kind in job.kinds() if kind not in ("text_encoded", "step_done")]
    without = [kind for kind in job.kinds() if kind in ("text_encoded", "step_done")]
    assert without == ["text_encoded", "step_done"]
    assert with_objects == ["preview_ready", "checkpoint_saved", "stream_opened", "segment_ready", "segment_ready"]


def test_nothing_is_told_before_it_is_in_the_store(store, job):
    """Looked at when each object has just been written: its event comes later, a segment's after the playlist too."""
    told_of = []

    def look(method, name):
        if method == "put":
            keys = [event.key for event in job.told() if hasattr(event, "key")]
            assert f"{job.id}/{name}" not in keys
            segments = [key.rpartition("/")[2] for key in keys if key.endswith("m4s")]
            assert segments == [] or set(segments) <= set(listed(store, job, PLAYLIST))
            told_of.append(name)

    store.after = look
    render(job.begin(store), job)
    assert {"attempts/1/segment-00000.m4s", "attempts/1/preview-0001.png", PLAYLIST} <= set(told_of)


def test_the_playlist_never_names_what_is_not_in_the_store(store, job):
    seen = []

    def look(method, name):
        if (method, name) == ("put", PLAYLIST):
            named = listed(store, job, PLAYLIST)
            assert {"init.mp4", *named} <= {name.rpartition("/")[2] for name in names(store, job)}
            seen.append((len(named), "ENDLIST" in content(store, job, PLAYLIST).decode()))

    store.after = look
    render(job.begin(store), job)
    assert seen == sorted(set(seen))
    assert seen[-1] == (2, True)


def test_a_segment_can_be_played_while_the_next_one_is_still_on_its_way(store, job):
    """Else nothing could be played before the end where uploads take longer than clips."""
    arrives = threading.Event()
    store.before = lambda _, name: arrives.wait(DEADLINE_S) if name.endswith("segment-00001.m4s") else None
    outputs = job.begin(store)
    publish(outputs, header(job), segment(job, 0), segment(job, 1))
    try:
        eventually(lambda: "segment_ready" in job.kinds())
        assert listed(store, job, PLAYLIST) == ["segment-00000.m4s"]
    finally:
        arrives.set()
    eventually(lambda: job.kinds().count("segment_ready") == 2)


def test_a_segment_can_be_played_whatever_follows_it(store, job):
    followed = threading.Event()

    def hurry(method, name):  # what follows is done by the time that the segment is there
        if name.endswith("m4s"):
            eventually(lambda: "attempts/1/preview-0001.png" in names(store, job))
            followed.wait(MOMENT_S)

    store.before = hurry
    publish(job.begin(store), header(job), segment(job, 0), preview(job))
    eventually(lambda: "segment_ready" in job.kinds(), timeout_s=3)


def test_the_result_names_what_a_viewer_needs(store, job):
    told = render(job.begin(store), job)
    result = result_of(store, job)
    assert {piece.key.removeprefix(f"{job.id}/attempts/1/") for piece in result.pieces} == {
        *("init.mp4", "segment-00000.m4s", "segment-00001.m4s", "playlist.m3u8"),
        *("preview-0001.png", "video.mp4", "report.json"),
    }
    for piece in result.pieces:
        stored = store.stat(piece.key)
        assert (stored.size_bytes, stored.sha256) == (piece.size_bytes, piece.sha256)
    assert result.request.model_dump(include=set(REQUEST)) == REQUEST
    assert (result.job_id, result.attempt) == (job.id, 1)
    assert told == Finished(
        attempt=1,
        store_url="file:///s",
        result_key=f"{job.id}/result.json",
        video_key=result.video_key,
        report_key=result.report_key,
        playlist_key=result.playlist_key,
    )
    assert store.get(result.video_key) == b"video"


def test_the_result_is_written_last_and_after_everything_it_names_was_found_there(store, job):
    render(job.begin(store), job)
    assert store.calls[-1] == ("put_once", RESULT)
    named = {piece.key.partition("/")[2] for piece in result_of(store, job).pieces}
    writes = [at for at, (method, name) in enumerate(store.calls) if method.startswith("put") and name != RESULT]
    confirmed = {name for method, name in store.calls[max(writes) :] if method == "stat"}
    assert confirmed == named


def test_all_news_are_told_when_the_result_is_there(store, job):
    told = []
    store.before = lambda method, name: told.extend(job.kinds()) if name == RESULT and method == "put_once" else None
    render(job.begin(store), job)
    assert len(told) == 7


def test_what_was_published_is_kept_for_the_next_attempt(store, job):
    publish_all(job.begin(store), job)
    eventually(lambda: "segment_ready" in job.kinds()[-1:] and job.kinds().count("segment_ready") == 2)
    job.lose()
    job.begin(store)
    kept = job.lease.kept
    assert kept.checkpoint.step == 2
    assert store.get(kept.checkpoint.piece.key) == b"step 2"
    assert kept.header.key == f"{job.id}/attempts/1/init.mp4"
    assert [store.get(segment.piece.key) for segment in kept.segments] == [b"segment 0", b"segment 1"]


def test_a_closed_attempt_publishes_nothing_more_and_leaves_no_thread(store, job):
    before = threading.enumerate()
    outputs = job.begin(store)
    eventually(lambda: CLAIM in names(store, job))
    outputs.close()
    publish_all(outputs, job)
    eventually(lambda: not set(threading.enumerate()) - set(before))
    assert job.kinds() == []
    assert names(store, job) == [CLAIM]


def test_a_runner_that_streams_nothing_has_a_result_without_a_playlist(store, job):
    outputs = job.begin(store)
    publish(outputs, items.StepDone(1, 2, 1.0, 0.5), preview(job))
    told = outputs.commit(finished(job))
    assert told.playlist_key is result_of(store, job).playlist_key is None
    assert store.get(told.video_key) == b"video"


def test_what_is_on_its_way_when_an_attempt_ends_is_given_time_to_arrive(store, job):
    """The last checkpoint above all: the next attempt goes on from it."""
    goes_on = threading.Event()
    store.before = lambda method, _: goes_on.wait(DEADLINE_S) if method == "put" else None
    outputs = job.begin(store)
    publish(outputs, checkpoint(job, 2))
    outputs.settle(MOMENT_S)  # in vain
    assert job.kinds() == []
    goes_on.set()
    outputs.settle(DEADLINE_S)
    assert job.kinds() == ["checkpoint_saved"]


# --- one result


def test_a_job_without_a_result_has_none(store, job):
    assert job.begin(store).find_result() is None
    job.lose()
    assert job.begin(store).find_result() is None


def test_a_result_whose_attempt_could_not_say_so_is_found_by_the_next(store, job):
    told = render(job.begin(store), job)
    job.lose()
    assert job.begin(store).find_result() == told


def test_the_result_of_another_attempt_stays_and_is_what_both_tell(store, job):
    first = render(job.begin(store), job)
    committed = content(store, job, RESULT)
    job.lose()
    assert render(job.begin(store), job) == first
    assert content(store, job, RESULT) == committed


def test_of_two_attempts_that_finish_at_once_one_has_the_result(store, job):
    """The first is taken for lost after it has looked at its lease and before it writes."""
    late = []

    def overtake(method, name):
        if (method, name) == ("put_once", RESULT) and not late:
            late.append(True)
            job.lose()
            late.append(render(job.begin(store), job))

    store.before = overtake
    first = render(job.begin(store), job)
    assert first == late[1]
    assert first.attempt == result_of(store, job).attempt == 2


def test_an_attempt_that_has_lost_its_lease_hears_of_it_with_its_news(store, job):
    outputs = job.begin(store)
    job.lose()
    publish(outputs, items.StepDone(1, 2, 1.0, 0.5))
    assert isinstance(eventually(lambda: job.heard)[0], Superseded)
    with pytest.raises(Superseded):
        render(outputs, job)
    assert RESULT not in names(store, job)
    assert "step_done" not in job.kinds()


@pytest.mark.parametrize("call", [("put", "attempts/1/video.mp4"), ("stat", PLAYLIST)], ids=["upload", "confirmation"])
def test_a_late_finisher_has_no_result(store, job, call):
    """All its news are told: nothing but the last look says that the job is another's by now."""
    outputs = job.begin(store)
    publish_all(outputs, job)
    eventually(lambda: job.kinds().count("segment_ready") == 2)
    store.before = lambda method, name: job.lose() if (method, name) == call else None
    with pytest.raises(Superseded):
        outputs.commit(finished(job))
    assert RESULT not in names(store, job)


def test_an_attempt_number_that_was_used_before_writes_nothing(store, job):
    """The queue has lost its last second, and counts from before."""
    store.put_once(f"{job.id}/{CLAIM}", b"of another", content_type="x")
    outputs = job.begin(store)
    assert isinstance(eventually(lambda: job.heard)[0], NumberUsed)
    with pytest.raises(NumberUsed) as caught:
        render(outputs, job)
    assert (caught.value.job_may_retry, caught.value.charge) == (True, Charge.DRAINED)
    assert names(store, job) == [CLAIM]
    assert content(store, job, CLAIM) == b"of another"


def test_nothing_is_written_before_the_number_is_ours(store, job):
    render(job.begin(store), job)
    assert store.calls[0] == ("put_once", CLAIM)
