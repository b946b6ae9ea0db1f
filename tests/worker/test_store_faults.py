"""What becomes of an attempt while the store, the disk or the queue fails, is slow, or loses what it has."""

import threading
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobs.errors import StoreRefused, StoreUnavailable
from jobs.lease import Charge
from jobs.store import open_store
from tests.waiting import eventually
from tests.worker.attempts import (
    CLAIM,
    DEADLINE_S,
    FEW_BYTES,
    MOMENT_S,
    PLAYLIST,
    RESULT,
    Job,
    ScriptedStore,
    begin_second,
    checkpoint,
    finished,
    header,
    in_thread,
    names,
    preview,
    publish,
    render,
    result_of,
    segment,
)
from worker import items
from worker.errors import SpoolFull, UploadFailed
from worker.outputs import UPLOAD_THREADS

MANY_BYTES = 1 << 60


def fail_times(store, times, error, *, only=lambda method, name: True):
    """Fail the first calls of each method with each name. Gives how often each was tried."""
    tried = Counter()

    def fail(method, name):
        if only(method, name):
            tried[method, name] += 1
            if tried[method, name] <= times:
                raise error

    store.before = fail
    return tried


def test_a_store_that_fails_now_and_then_costs_nothing(store, job):
    tried = fail_times(store, 1, StoreUnavailable("try again"))
    render(job.begin(store), job)
    assert RESULT in names(store, job)
    assert job.heard == []
    for call in (("put_once", CLAIM), ("put", "attempts/1/video.mp4"), ("stat", PLAYLIST), ("put_once", RESULT)):
        assert tried[call] == 2
    assert job.files_left() == []


def test_a_store_may_fail_many_times_if_it_is_back_in_time(store, job):
    tried = fail_times(store, 4, StoreUnavailable("try again"), only=lambda *call: call == ("put_once", RESULT))
    render(job.begin(store), job)
    assert tried == {("put_once", RESULT): 5}


def test_a_store_that_fails_now_and_then_does_not_hide_a_result_or_a_checkpoint(store, job, tmp_path):
    second = begin_second(store, job, checkpoint(job, 2))
    fail_times(store, 1, StoreUnavailable("try again"))
    assert second.fetch_resume(tmp_path).step == 2
    told = render(second, job)
    job.lose()
    fail_times(store, 1, StoreUnavailable("try again"))
    assert job.begin(store).find_result() == told


def test_a_result_whose_confirmation_was_lost_is_the_result(store, job):
    failures = iter([StoreUnavailable("the answer was lost")])

    def lose_answer(method, name):
        if (method, name) == ("put_once", RESULT) and (failure := next(failures, None)):
            raise failure

    store.after = lose_answer
    assert render(job.begin(store), job).attempt == 1


def test_a_store_that_refuses_is_asked_once(store, job):
    tried = fail_times(store, 99, StoreRefused("no rights"), only=lambda method, name: method == "put")
    outputs = job.begin(store)
    publish(outputs, preview(job))
    [heard] = eventually(lambda: job.heard)
    assert isinstance(heard, UploadFailed)
    assert heard.cause == "store"
    assert tried == {("put", "attempts/1/preview-0001.png"): 1}
    with pytest.raises(UploadFailed, match="no rights"):
        render(outputs, job)
    assert RESULT not in names(store, job)


def test_what_a_store_took_before_it_refused_something_is_kept(store, job):
    goes_on = threading.Event()

    def refuse_the_second(method, name):
        if name == PLAYLIST:  # the first is there, and not in it yet
            assert goes_on.wait(DEADLINE_S)
        if name.endswith("segment-00001.m4s"):
            raise StoreRefused("no rights")

    store.before = refuse_the_second
    outputs = job.begin(store)
    publish(outputs, header(job), segment(job, 0), segment(job, 1))
    with pytest.raises(UploadFailed, match="no rights"):
        outputs.commit(finished(job))
    goes_on.set()
    outputs.settle(DEADLINE_S)
    assert job.kinds() == ["stream_opened", "segment_ready"]
    job.lose()
    job.begin(store)
    [kept] = job.lease.kept.segments
    assert store.get(kept.piece.key) == b"segment 0"


def test_a_store_that_fails_for_too_long_ends_the_upload(store, job):
    tried = fail_times(store, 99, StoreUnavailable("down"), only=lambda method, name: method == "put")
    outputs = job.begin(store, upload_s=0.4)
    publish(outputs, preview(job))
    assert isinstance(eventually(lambda: job.heard)[0], UploadFailed)
    assert 2 <= tried["put", "attempts/1/preview-0001.png"] <= 4
    with pytest.raises(UploadFailed, match="down"):
        outputs.commit(finished(job))
    assert job.kinds() == []


@pytest.mark.parametrize(
    "call", [("put", "attempts/1/report.json"), ("stat", "attempts/1/video.mp4"), ("put_once", RESULT)], ids=str
)
def test_a_store_that_fails_at_the_end_is_an_upload_that_failed(store, job, call):
    fail_times(store, 99, StoreUnavailable("down"), only=lambda *this: this == call)
    with pytest.raises(UploadFailed, match="down"):
        render(job.begin(store, upload_s=0.2), job)
    assert RESULT not in names(store, job)


def test_a_store_that_really_refuses_a_piece_fails_the_upload(job, tmp_path, file_store_url):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / job.id).write_text("a file where the job's folder should be")
    outputs = job.begin(open_store(file_store_url), upload_s=0.2)
    with pytest.raises(UploadFailed, match="store"):
        render(outputs, job)


DAMAGES = {
    "lost": lambda path: path.unlink(),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "changed": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["video.mp4", "playlist.m3u8", "segment-00000.m4s"])
def test_an_object_that_does_not_stay_as_it_was_written_means_no_result(store, job, name, damage):
    def harm(method, written):
        if (method, written) == ("put", f"attempts/1/{name}"):
            DAMAGES[damage](Path(store.url(f"{job.id}/{written}")))

    store.after = harm
    with pytest.raises(UploadFailed, match=name):
        render(job.begin(store), job)
    assert RESULT not in names(store, job)


def test_a_preview_that_is_gone_means_no_result_either(store, job):
    """The result says that it is there."""
    outputs = job.begin(store)
    publish(outputs, preview(job))
    eventually(lambda: job.kinds() == ["preview_ready"])
    store.delete(f"{job.id}/attempts/1/preview-0001.png")
    publish(outputs, header(job))
    with pytest.raises(UploadFailed, match="preview-0001"):
        outputs.commit(finished(job))


# --- stores that are slow


class SlowStore(ScriptedStore):
    """Takes its claim, and then nothing until it is let."""

    def __init__(self, root):
        super().__init__(root, before=self._wait)
        self.asked = []
        self._open = threading.Event()

    def _wait(self, method, name):
        if method == "put":
            self.asked.append(name)
            assert self._open.wait(DEADLINE_S)

    def open(self):
        self._open.set()


@pytest.fixture
def slow_store(file_store_url):
    store = SlowStore(Path(urlsplit(file_store_url).path))
    yield store
    store.open()


def test_no_step_waits_for_the_store(slow_store, job):
    outputs = job.begin(slow_store, spool_bytes=2 * FEW_BYTES)
    publish(outputs, preview(job, 1))
    eventually(lambda: slow_store.asked)

    def go_on():
        for step in range(2, 100):
            publish(outputs, items.StepDone(step, 100, 1.0, 0.5), preview(job, step))

    in_thread(go_on).result(DEADLINE_S)
    eventually(lambda: job.kinds().count("step_done") == 98)  # nor do the news
    assert "preview_ready" not in job.kinds()


def test_previews_and_checkpoints_are_dropped_when_the_spool_is_full(slow_store, job):
    outputs = job.begin(slow_store, spool_bytes=(UPLOAD_THREADS + 2) * FEW_BYTES)
    begun = range(1, UPLOAD_THREADS + 1)
    publish(outputs, *(preview(job, step) for step in begun))
    eventually(lambda: len(slow_store.asked) == UPLOAD_THREADS)
    publish(outputs, *(preview(job, step) for step in (11, 12, 13)))
    publish(outputs, items.Checkpoint(1, job.file("checkpoint-0001.safetensors")), preview(job, 14))
    stay = [f"preview-{step:04d}.png" for step in (*begun, 14)]
    assert sorted(job.files_left()) == ["checkpoint-0001.safetensors", *stay]
    slow_store.open()
    eventually(lambda: [event.step for event in job.told()] == [*begun, 1, 14])
    told = outputs.commit(finished(job))
    pieces = [piece.key.rpartition("/")[2] for piece in result_of(slow_store, job).pieces]
    assert [name for name in pieces if "preview" in name] == stay
    assert slow_store.get(told.video_key) == b"video"
    assert job.files_left() == []


@pytest.mark.parametrize("kind", ["last checkpoint", "header", "segment"])
def test_what_the_result_needs_waits_for_room_instead(slow_store, job, kind):
    make = {
        "last checkpoint": lambda: checkpoint(job, 2),
        "header": lambda: header(job),
        "segment": lambda: segment(job, 0),
    }
    outputs = job.begin(slow_store, spool_bytes=FEW_BYTES)
    publish(outputs, preview(job))
    eventually(lambda: slow_store.asked)
    waiting = in_thread(publish, outputs, make[kind]())
    with pytest.raises(TimeoutError):
        waiting.result(MOMENT_S)
    slow_store.open()
    waiting.result(DEADLINE_S)


def test_a_full_disk_ends_the_attempt_but_not_the_job(store, job):
    outputs = job.begin(store, least_free_bytes=MANY_BYTES)
    publish(outputs, items.StepDone(1, 2, 1.0, 0.5))  # carries no file
    with pytest.raises(SpoolFull, match="H3_SPOOL_DIR") as caught:
        publish(outputs, preview(job))
    assert (caught.value.job_may_retry, caught.value.charge) == (True, Charge.INTERRUPTED)


def test_a_finished_video_is_published_though_the_disk_is_full(store, job):
    job.begin(store, least_free_bytes=MANY_BYTES).commit(finished(job))
    assert RESULT in names(store, job)


# --- a queue that is gone for a while


def test_news_wait_for_a_queue_that_is_gone_for_a_while(redis_server, store, tmp_path):
    once = Retry(NoBackoff(), 0)  # the library's own retries would hide ours
    with Redis(unix_socket_path=str(redis_server.socket), retry=once) as redis:
        job = Job(redis, tmp_path)
        outputs = job.begin(store)
        publish(outputs, items.TextEncoded(3, 0.1))
        eventually(lambda: job.kinds() == ["text_encoded"])
        redis_server.stop()
        publish(outputs, *(items.StepDone(step, 9, 1.0, 0.5) for step in range(1, 10)))
        publish(outputs, header(job), segment(job, 0), segment(job, 1))
        eventually(lambda: "attempts/1/segment-00001.m4s" in names(store, job))  # the store needs no queue
        redis_server.start()
        assert outputs.commit(finished(job)).attempt == 1
        assert [event.step for event in job.told() if event.kind == "step_done"] == [*range(1, 10)]
        assert job.kinds()[-2:] == ["segment_ready", "segment_ready"]
        job.close()


def test_an_upload_that_hangs_ends_the_attempt(store, job, monkeypatch):
    """Nothing interrupts a call of the operating system: whoever waits for it is told instead."""
    monkeypatch.setattr("worker.outputs.HANG_S", 0.0)
    gate = threading.Event()
    store.before = lambda method, name: method != "put" or gate.wait(DEADLINE_S)
    outputs = job.begin(store, upload_s=MOMENT_S)
    committing = in_thread(lambda: outputs.commit(finished(job)))
    eventually(lambda: outputs.look() or job.heard)
    with pytest.raises(UploadFailed, match="does not come to an end"):
        committing.result(DEADLINE_S)
    gate.set()
    assert RESULT not in names(store, job)
