"""Videos, previews and segments over HTTP: whole, in parts, not twice."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs.events import PreviewReady
from jobs.file_store import FileStore
from jobs.http import store_threads
from tests.jobs.http.rendering import HEADER, PNG, VIDEO, Render, segment_of
from tests.waiting import eventually

SIZE = len(VIDEO)


@pytest.fixture
def begun(ada, redis, service):
    """A render of ada that runs."""
    job_id = ada.post("/v1/videos", json={"prompt": "a red kite", "frames": 22}).json()["id"]
    return Render(redis, service.store, job_id)


@pytest.fixture
def url(begun):
    return f"/v1/videos/{begun.lease.job_id}"


@pytest.fixture
def content(begun, url):
    begun.finish()
    return f"{url}/content"


def test_a_video_is_given_whole_with_its_name_and_type(ada, content, begun):
    answer = ada.get(content)
    assert (answer.status_code, answer.content) == (200, VIDEO)
    assert answer.headers["content-type"] == "video/mp4"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-disposition"] == f'inline; filename="{begun.lease.job_id}.mp4"'


@pytest.mark.parametrize(
    ("part", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=10-19", 10, 19),
        ("bytes=4000-", 4000, SIZE - 1),
        ("bytes=-6", SIZE - 6, SIZE - 1),
        ("bytes=-99999", 0, SIZE - 1),
        ("bytes=4090-99999", 4090, SIZE - 1),
    ],
)
def test_a_part_of_a_video_is_given(ada, content, part, first, last):
    answer = ada.get(content, headers={"Range": part})
    assert (answer.status_code, answer.content) == (206, VIDEO[first : last + 1])
    assert answer.headers["content-range"] == f"bytes {first}-{last}/{SIZE}"
    assert answer.headers["content-length"] == str(last - first + 1)


@pytest.mark.parametrize("part", [f"bytes={SIZE}-", "bytes=-0", "bytes=99999-999999"])
def test_a_part_that_is_not_there_is_refused_with_the_size(ada, content, part):
    answer = ada.get(content, headers={"Range": part})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{SIZE}")


@pytest.mark.parametrize("part", ["bytes=9-3", "bytes=0-1,3-4", "pages=1-2", "bytes=-", "bytes=x-y", "bytes=1-2-3"])
def test_what_is_no_range_of_ours_gives_the_whole(ada, content, part):
    answer = ada.get(content, headers={"Range": part})
    assert (answer.status_code, answer.content) == (200, VIDEO)


def test_a_part_is_given_only_of_the_video_that_the_caller_has(ada, content):
    etag = ada.get(content).headers["etag"]
    for known, status in ((etag, 206), ('"another"', 200)):
        assert ada.get(content, headers={"Range": "bytes=0-9", "If-Range": known}).status_code == status


def test_a_video_that_the_caller_has_is_not_sent_again(ada, content):
    etag = ada.get(content).headers["etag"]
    answer = ada.get(content, headers={"If-None-Match": f'"x", W/{etag}'})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)


@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=0-9"}, {"Range": "bytes=99999-"}])
def test_head_tells_the_size_and_sends_nothing(ada, content, headers):
    answer = ada.head(content, headers=headers)
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", str(SIZE))


def test_a_video_that_is_not_finished_is_refused_as_such(ada, begun, url):
    answer = ada.get(f"{url}/content")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_finished")


def test_a_video_that_failed_has_no_content(ada, url):
    ada.post(f"{url}/cancel")
    assert ada.get(f"{url}/content").status_code == 409


@pytest.mark.parametrize("gone", ["attempts/1/video.mp4", "result.json"])
def test_a_video_whose_object_is_gone_is_not_found_and_our_places_are_not_told(ada, content, begun, service, gone):
    key = f"{begun.lease.job_id}/{gone}"
    where = service.store.url(key).removesuffix(key)
    service.store.delete(key)
    answer = ada.get(content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert where not in answer.text


def test_a_store_that_hangs_holds_up_nobody_else_and_is_told_as_such(ada, content, begun, service, monkeypatch):
    held = threading.Event()
    monkeypatch.setattr(store_threads, "LONGEST_CALL_S", 0.5)
    monkeypatch.setattr(FileStore, "read_part", lambda *_: iter([held.wait(20) and b""]))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ada.get, content)
        with service.client() as other:
            began = time.monotonic()
            assert other.get("/healthz").status_code == 200
            assert time.monotonic() - began < 0.4
        answer = waiting.result()
        held.set()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


def test_what_a_caller_has_opened_is_closed_when_they_hang_up(ada, begun, url):
    begun.finish(VIDEO * 5000)
    mine = Path(f"/proc/{os.getpid()}/fd")

    def open_videos():
        links = [link.readlink() for link in mine.iterdir() if link.is_symlink()]
        return [link for link in links if link.name == "video.mp4"]

    for _ in range(3):
        with ada.stream("GET", f"{url}/content") as answer:
            chunks = answer.iter_bytes(1000)
            assert next(chunks)
    eventually(lambda: not open_videos())


def test_the_latest_preview_is_there_while_the_render_runs(ada, begun, url):
    thumbnail = f"{url}/content?variant=thumbnail"
    assert ada.get(thumbnail).status_code == 404
    begun.preview(1)
    first = ada.get(thumbnail)
    assert (first.content, first.headers["content-type"]) == (PNG, "image/png")
    for step in range(2, 200):  # more than the latest events that are looked at first
        begun.step(step)
    assert ada.get(thumbnail, headers={"If-None-Match": first.headers["etag"]}).status_code == 304
    begun.preview(200, PNG + b" sharper")
    assert ada.get(thumbnail, headers={"If-None-Match": first.headers["etag"]}).content == PNG + b" sharper"


def test_a_preview_of_another_job_is_not_given_whatever_the_log_says(ada, begun, url, service):
    service.store.put("other/attempts/1/preview-0001.png", PNG, content_type="image/png")
    begun.lease.tell(PreviewReady(step=1, key="other/attempts/1/preview-0001.png"))
    begun.lease.tell(PreviewReady(step=1, key=f"{begun.lease.job_id}/attempts/../../other/attempts/1/preview-0001.png"))
    assert ada.get(f"{url}/content?variant=thumbnail").status_code == 404


def test_a_playlist_grows_with_its_segments_and_ends_with_the_render(ada, begun, url):
    playlist = f"{url}/hls/playlist.m3u8"
    assert ada.get(playlist).status_code == 404
    begun.open_stream(2)
    assert ada.get(playlist).status_code == 404  # a player takes an empty one for an error
    begun.segment()
    first = ada.get(playlist)
    assert first.headers["content-type"] == "application/vnd.apple.mpegurl"
    assert first.text.splitlines()[-2:] == ["#EXTINF:1.000000,", "1/segment-00000.m4s"]
    assert '#EXT-X-MAP:URI="1/init.mp4"' in first.text
    assert "#EXT-X-START:TIME-OFFSET=0" in first.text
    begun.segment()
    assert ada.get(playlist).text.startswith(first.text)
    begun.finish()
    assert ada.get(playlist).text.splitlines()[-1] == "#EXT-X-ENDLIST"


def test_the_pieces_of_a_playlist_are_below_it(ada, begun, url):
    begun.open_stream(2)
    begun.segment()
    header, segment = (ada.get(f"{url}/hls/1/{name}") for name in ("init.mp4", "segment-00000.m4s"))
    assert (header.content, segment.content) == (HEADER, segment_of(0))
    assert "immutable" in segment.headers["cache-control"]
    assert ada.get(f"{url}/hls/1/segment-00001.m4s").status_code == 404


def test_an_attempt_that_goes_on_keeps_what_was_listed(ada, begun, url, redis, service):
    begun.open_stream(2)
    begun.segment()
    listed = ada.get(f"{url}/hls/playlist.m3u8").text
    begun.lease.hand_back("drained", "told to stop")
    assert ada.get(f"{url}/hls/playlist.m3u8").text == listed
    again = Render(redis, service.store, begun.lease.job_id)
    again._kept = again.lease.kept
    again.segment()
    assert ada.get(f"{url}/hls/playlist.m3u8").text == listed + "#EXTINF:1.000000,\n2/segment-00001.m4s\n"
