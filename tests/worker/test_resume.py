"""What an attempt does not do again after another has been lost, on a real store and a real queue."""

from collections import Counter

import pytest
from redis import Redis

from jobs.pieces import KeptCheckpoint, KeptPieces, StoredPiece
from jobs.store import open_store
from tests.waiting import eventually
from tests.worker.attempts import (
    RESULT,
    begin_second,
    checkpoint,
    content,
    finished,
    header,
    listed,
    names,
    preview,
    publish,
    render,
    result_of,
    segment,
)
from worker.errors import UploadFailed


def test_what_is_published_already_is_not_published_again(store, job, tmp_path):
    second = begin_second(store, job, checkpoint(job, 2), header(job), segment(job, 0))
    assert second.fetch_resume(tmp_path).segments == 1
    publish(second, segment(job, 1))
    told = second.commit(finished(job))
    assert Counter(job.kinds()) == Counter(
        ["checkpoint_saved", "stream_opened", "segment_ready", "attempt_lost", "segment_ready"]
    )
    assert [event.index for event in job.told() if event.kind == "segment_ready"] == [0, 1]
    assert told.attempt == 2
    assert sorted(name for name in names(store, job) if name.endswith("m4s")) == [
        "attempts/1/segment-00000.m4s",
        "attempts/2/segment-00001.m4s",
    ]


def test_playlist_and_result_name_what_an_earlier_attempt_has_made(store, job, tmp_path):
    second = begin_second(store, job, checkpoint(job, 2), preview(job), header(job), segment(job, 0))
    second.fetch_resume(tmp_path)
    publish(second, segment(job, 1))
    told = second.commit(finished(job))
    lines = store.get(told.playlist_key).decode().splitlines()
    assert '#EXT-X-MAP:URI="../1/init.mp4"' in lines
    assert [line for line in lines if not line.startswith("#")] == ["../1/segment-00000.m4s", "segment-00001.m4s"]
    assert lines[-1] == "#EXT-X-ENDLIST"
    pieces = {piece.key.removeprefix(f"{job.id}/attempts/") for piece in result_of(store, job).pieces}
    assert pieces == {
        *("1/init.mp4", "1/segment-00000.m4s"),
        *("2/segment-00001.m4s", "2/playlist.m3u8", "2/video.mp4", "2/report.json"),
    }


def test_an_attempt_that_has_only_the_end_left_names_everything(store, job, tmp_path):
    second = begin_second(store, job, header(job), segment(job, 0), segment(job, 1))
    resume = second.fetch_resume(tmp_path)
    assert (resume.step, resume.checkpoint, resume.segments) == (0, None, 2)
    assert [path.read_bytes() for path in resume.stream] == [b"header", b"segment 0", b"segment 1"]
    told = second.commit(finished(job))
    lines = store.get(told.playlist_key).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["../1/segment-00000.m4s", "../1/segment-00001.m4s"]
    assert "ENDLIST" in lines[-1]


def test_a_header_begins_the_stream_anew(store, job, tmp_path):
    second = begin_second(store, job, header(job), segment(job, 0))
    second.fetch_resume(tmp_path)
    render(second, job)
    lines = content(store, job, "attempts/2/playlist.m3u8").decode().splitlines()
    assert '#EXT-X-MAP:URI="init.mp4"' in lines
    assert listed(store, job, "attempts/2/playlist.m3u8") == ["segment-00000.m4s", "segment-00001.m4s"]
    assert {piece.key.removeprefix(f"{job.id}/attempts/")[0] for piece in result_of(store, job).pieces} == {"2"}
    assert job.kinds().count("stream_opened") == 2


def test_a_third_attempt_goes_on_from_the_first_two(store, job, tmp_path):
    begin_second(store, job, checkpoint(job, 2), header(job), segment(job, 0))
    job.lose()  # nothing came of the second
    third = job.begin(store)
    assert third.fetch_resume(tmp_path).segments == 1
    publish(third, segment(job, 1))
    third.commit(finished(job))
    assert listed(store, job, "attempts/3/playlist.m3u8") == ["../1/segment-00000.m4s", "segment-00001.m4s"]


def test_a_first_attempt_has_nothing_to_go_on_from(store, job, tmp_path):
    assert job.begin(store).fetch_resume(tmp_path) is None


def test_the_latest_checkpoint_is_downloaded(store, job, tmp_path):
    second = begin_second(store, job, checkpoint(job, 1), checkpoint(job, 2), header(job))
    resume = second.fetch_resume(tmp_path)
    assert (resume.step, resume.segments) == (2, 0)
    assert resume.checkpoint.is_relative_to(tmp_path)
    assert resume.checkpoint.read_bytes() == b"step 2"


def begin_second_without(gone, store, job):
    yielded = checkpoint(job, 2), header(job), segment(job, 0)
    publish(job.begin(store), *yielded)
    eventually(lambda: len(job.told()) == 3)
    store.delete(f"{job.id}/attempts/1/{gone}")
    job.lose()
    return job.begin(store, upload_s=2.0)


def test_an_attempt_whose_checkpoint_is_gone_begins_anew(store, job, tmp_path):
    second = begin_second_without("checkpoint-0002.safetensors", store, job)
    assert second.fetch_resume(tmp_path) is None
    render(second, job)
    assert {piece.key.removeprefix(f"{job.id}/attempts/")[0] for piece in result_of(store, job).pieces} == {"2"}


def test_a_checkpoint_that_is_gone_is_not_waited_for(store, job, tmp_path):
    asked = []
    store.before = lambda method, name: asked.append(name) if method == "fetch" else None
    second = begin_second_without("checkpoint-0002.safetensors", store, job)
    assert second.fetch_resume(tmp_path) is None
    assert len(asked) <= 1


@pytest.mark.parametrize("gone", ["init.mp4", "segment-00000.m4s"])
def test_an_attempt_whose_segments_are_gone_begins_anew(store, job, tmp_path, gone):
    """Else it renders to the end, to find then that its result can never be complete, and fails the job."""
    assert begin_second_without(gone, store, job).fetch_resume(tmp_path) is None


@pytest.mark.parametrize("key", ["../../../etc/passwd", "/etc/passwd", "", "other/attempts/1/checkpoint.safetensors"])
def test_what_somebody_else_has_written_down_as_kept_is_not_fetched(store, job, tmp_path, redis_url, key):
    store.put("other/attempts/1/checkpoint.safetensors", b"not yours", content_type="x")
    job.begin(store)
    job.lose()
    piece = StoredPiece(key=key, size_bytes=9, sha256="x")
    kept = KeptPieces(checkpoint=KeptCheckpoint(step=1, piece=piece))
    with Redis.from_url(redis_url) as redis:
        redis.hset(f"rq:job:{job.id}", "h3_kept", kept.model_dump_json())
    assert job.begin(store, upload_s=0.1).fetch_resume(tmp_path) is None
    assert not any(method == "fetch" for method, _ in store.calls)


def test_an_attempt_goes_on_over_s3(s3_store_url, job, tmp_path):
    store = open_store(s3_store_url)
    second = begin_second(store, job, checkpoint(job, 2), header(job), segment(job, 0))
    resume = second.fetch_resume(tmp_path)
    assert (resume.step, resume.segments, resume.checkpoint.read_bytes()) == (2, 1, b"step 2")
    publish(second, segment(job, 1))
    told = second.commit(finished(job))
    for piece in (result := result_of(store, job)).pieces:
        stored = store.stat(piece.key)
        assert (stored.size_bytes, stored.sha256) == (piece.size_bytes, piece.sha256)
    assert result.attempt == told.attempt == 2
    assert "../1/segment-00000.m4s" in store.get(told.playlist_key).decode()
    job.lose()
    assert job.begin(store).find_result() == told


def test_a_result_that_is_none_of_ours_fails_the_job_and_says_where_it_lies(store, job):
    store.put(f"{job.id}/{RESULT}", b'{"version": 2}', content_type="application/json")
    job.begin(store)
    job.lose()
    with pytest.raises(UploadFailed, match=RESULT):
        job.begin(store).find_result()
