import pytest

from jobs import events
from jobs.request import ResolvedRequest
from jobs.result import Result, result_key
from jobs.store import open_store
from worker import items
from worker.errors import UploadFailed
from worker.outputs import Outputs

REQUEST = ResolvedRequest(prompt="a red kite", width=64, height=64, frames=39, steps=2, seed=1)


@pytest.fixture
def store(file_store_url):
    return open_store(file_store_url)


@pytest.fixture
def local(tmp_path):
    """Makes a local file of a name, as a runner would."""

    def make(name, content=b"x"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return make


def attempt(store, number=1):
    return Outputs(store, "file:///s", "job", number, REQUEST)


def publish_all(outputs, local):
    return [
        outputs.publish(item)
        for item in (
            items.TextEncoded(3, 0.1),
            items.StepDone(1, 2, 1.0, 0.5),
            items.Preview(1, local("preview-0001.png")),
            items.Checkpoint(2, local("checkpoint-0002.safetensors")),
            items.StreamHeader(local("init.mp4"), 2),
            items.Segment(0, local("segment-00000.m4s"), 17 / 24),
            items.Segment(1, local("segment-00001.m4s"), 22 / 24),
            items.Finished(local("video.mp4"), local("report.json")),
        )
    ]


def test_every_item_becomes_an_event_and_every_file_an_object_of_the_attempt(store, local, tmp_path):
    told = publish_all(attempt(store), local)
    assert [event.kind for event in told] == [
        *("text_encoded", "step_done", "preview_ready", "checkpoint_saved"),
        *("stream_opened", "segment_ready", "segment_ready", "finished"),
    ]
    for event in told:
        for name, key in event.model_dump().items():
            if name.endswith("key"):
                assert store.stat(key), name
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []  # the worker deletes what it was given


def test_the_playlist_never_names_a_segment_that_is_not_there(store, local):
    outputs = attempt(store)
    outputs.publish(items.StreamHeader(local("init.mp4"), 2))
    assert store.stat("job/attempts/1/playlist.m3u8") is None
    outputs.publish(items.Segment(0, local("segment-00000.m4s"), 17 / 24))
    text = store.get("job/attempts/1/playlist.m3u8").decode()
    assert "segment-00000.m4s" in text
    assert "ENDLIST" not in text


def test_the_result_names_what_a_viewer_needs_and_comes_last(store, local):
    publish_all(attempt(store), local)
    result = Result.model_validate_json(store.get(result_key("job")))
    names = {piece.key.removeprefix("job/attempts/1/") for piece in result.pieces}
    assert names == {
        *("init.mp4", "segment-00000.m4s", "segment-00001.m4s", "playlist.m3u8"),
        *("preview-0001.png", "video.mp4", "report.json"),
    }
    assert result.request == REQUEST


def test_a_second_attempt_cannot_replace_the_result_of_the_first(store, local):
    publish_all(attempt(store, 1), local)
    committed = store.get(result_key("job"))
    late = publish_all(attempt(store, 2), local)[-1]
    assert store.get(result_key("job")) == committed
    assert (late.attempt, late.video_key) == (1, "job/attempts/1/video.mp4")  # the job's end is the first one's


def test_a_store_that_refuses_a_piece_fails_the_upload(store, local, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "job").write_text("a file where the attempt's folder should be")
    with pytest.raises(UploadFailed, match="store/job"):
        attempt(store).publish(items.Preview(1, local("preview-0001.png")))


def test_the_finished_event_tells_where_everything_is(store, local):
    finished = publish_all(attempt(store), local)[-1]
    assert isinstance(finished, events.Finished)
    assert finished.video_key == "job/attempts/1/video.mp4"
    assert finished.result_key == "job/result.json"
