import hashlib
import os
import subprocess
import sys
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from jobs.errors import ObjectExists, StoreRefused, StoreUnavailable
from jobs.s3_store import PART_BYTES
from jobs.store import LONGEST_LINK_S, Store, StoredObject, open_store
from tests.servers import free_ports
from tests.waiting import eventually

TEXT = "text/plain"
WRONG_MD5 = b64encode(bytes(16)).decode()

every_use = pytest.mark.parametrize(
    "use",
    [
        lambda store: store.check(),
        lambda store: store.stat("a"),
        lambda store: store.find("a"),
        lambda store: store.get("a"),
        lambda store: list(store.list()),
        lambda store: list(store.scan_unfinished()),
        lambda store: store.put_once("a", b"x", content_type=TEXT),
    ],
    ids=["check", "stat", "find", "get", "list", "scan_unfinished", "put_once"],
)


@pytest.fixture(params=["file_store_url", "s3_store_url"])
def store(request: pytest.FixtureRequest) -> Store:
    return open_store(request.getfixturevalue(request.param))


@pytest.fixture
def faulty_store(faulty_s3, s3_store_url) -> Store:
    """A store whose requests pass the proxy that fails them."""
    return open_store(s3_store_url)


@pytest.fixture
def true_store(s3_server, s3_store_url) -> Store:
    """The same past the proxy: what is really there."""
    return open_store(f"{s3_store_url}?endpoint={s3_server.endpoint}")


@pytest.fixture
def s3_client(s3_environment):
    """Plain boto3, to see what the service really holds."""
    import boto3

    with closing(boto3.session.Session().client("s3")) as client:
        yield client


def test_an_object_reads_back_as_it_was_written(store):
    stored = store.put("job/attempts/1/prompt.txt", b"a red kite", content_type=TEXT)
    assert stored == StoredObject("job/attempts/1/prompt.txt", 10, hashlib.sha256(b"a red kite").hexdigest())
    assert store.get("job/attempts/1/prompt.txt") == b"a red kite"
    assert store.stat("job/attempts/1/prompt.txt") == stored


def test_a_file_and_its_bytes_make_the_same_object(store, tmp_path):
    path = tmp_path / "video.mp4"
    path.write_bytes(os.urandom(100_000))
    from_file = store.put("video.mp4", path, content_type="video/mp4")
    from_bytes = store.put("video.mp4", path.read_bytes(), content_type="video/mp4")
    assert from_file == from_bytes
    assert store.get("video.mp4") == path.read_bytes()


def test_an_empty_object_is_an_object(store):
    store.put("empty", b"", content_type=TEXT)
    assert store.get("empty") == b""
    assert store.stat("empty").size_bytes == 0


def test_a_second_put_replaces_the_first(store):
    store.put("playlist.m3u8", b"one segment", content_type=TEXT)
    store.put("playlist.m3u8", b"two", content_type=TEXT)
    assert store.get("playlist.m3u8") == b"two"


def test_fetch_writes_a_whole_file_into_a_new_folder(store, tmp_path):
    store.put("video.mp4", b"moof" * 1000, content_type="video/mp4")
    store.fetch("video.mp4", tmp_path / "new" / "video.mp4")
    assert (tmp_path / "new" / "video.mp4").read_bytes() == b"moof" * 1000


def test_a_fetch_that_fails_leaves_the_old_file_and_nothing_else(store, tmp_path):
    path = tmp_path / "fetched" / "video.mp4"
    path.parent.mkdir()
    path.write_bytes(b"old")
    with pytest.raises(StoreUnavailable, match="there is no such"):
        store.fetch("missing.mp4", path)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_missing_object_has_no_stat_and_cannot_be_read(store):
    store.put("job/result.json", b"{}", content_type=TEXT)
    assert store.stat("job") is None
    assert store.stat("job/video.mp4") is None
    with pytest.raises(StoreUnavailable, match=r"job/video\.mp4.*there is no such"):
        store.get("job/video.mp4")


def test_list_gives_the_keys_that_begin_with_the_prefix_sorted(store):
    for key in ("job/b/2", "job/a", "job/b-1", "job/b/10", "other"):
        store.put(key, b"x", content_type=TEXT)
    assert list(store.list("job/b")) == ["job/b-1", "job/b/10", "job/b/2"]
    assert list(store.list("job/b/")) == ["job/b/10", "job/b/2"]
    assert list(store.list()) == ["job/a", "job/b-1", "job/b/10", "job/b/2", "other"]
    assert list(store.list("nothing/here")) == []


def test_a_scan_tells_sizes_and_times(store):
    began = datetime.now(UTC) - timedelta(seconds=1)  # S3 tells whole seconds
    store.put("job/a", b"12345", content_type=TEXT)
    store.put("job/empty", b"", content_type=TEXT)
    found = {listed.key: listed for listed in store.scan("job/")}
    assert {key: listed.size_bytes for key, listed in found.items()} == {"job/a": 5, "job/empty": 0}
    for listed in found.values():
        assert began <= listed.modified_at <= datetime.now(UTC)
        assert listed.modified_at.tzinfo is UTC


def test_a_found_object_is_told_as_a_scan_tells_it(store):
    store.put("job/video", b"01234567", content_type=TEXT)
    [scanned] = store.scan("job/")
    assert store.find("job/video") == scanned
    assert store.find("job") is store.find("job/audio") is store.find("job/video/x") is None


@pytest.mark.parametrize(("first", "size", "part"), [(0, 8, b"01234567"), (2, 3, b"234"), (6, 9, b"67"), (3, 0, b"")])
def test_a_part_of_an_object_can_be_read(store, first, size, part):
    store.put("video", b"01234567", content_type=TEXT)
    assert b"".join(store.read_part("video", first, size)) == part


def test_a_part_of_a_missing_object_is_refused(store):
    with pytest.raises(StoreRefused, match="there is no such"):
        list(store.read_part("video", 0, 8))


def test_a_scan_gives_what_lies_together_together(store):
    for key in ("a/z/1", "a-1/x", "a.b", "a/b", "ab/x", "a/z-1", "a/z/2", "a-1/a/b", "a!/x"):
        store.put(key, b"x", content_type=TEXT)
    folders = [folder for folder, _ in groupby(listed.key.partition("/")[0] for listed in store.scan())]
    assert sorted(folders) == ["a", "a!", "a-1", "a.b", "ab"]


def test_a_scan_may_be_under_way_while_what_it_has_given_is_deleted(store):
    written = {f"{job}/attempts/1/{name}" for job in "abc" for name in "xyz"}
    for key in written:
        store.put(key, b"x", content_type=TEXT)
    found = set()
    for listed in store.scan():
        found.add(listed.key)
        store.delete(listed.key)
    assert found == written
    assert list(store.scan()) == []


def test_a_deleted_object_is_gone_and_may_be_deleted_again(store):
    store.put("preview.webp", b"x", content_type="image/webp")
    store.delete("preview.webp")
    store.delete("preview.webp")
    assert store.stat("preview.webp") is None
    assert list(store.list()) == []


def test_what_is_written_once_cannot_be_written_otherwise(store):
    store.put_once("result.json", b"first", content_type=TEXT)
    with pytest.raises(ObjectExists, match=r"result\.json.*written once"):
        store.put_once("result.json", b"second", content_type=TEXT)
    assert store.get("result.json") == b"first"


def test_writing_the_same_once_more_succeeds(store):
    first = store.put_once("result.json", b"same", content_type=TEXT)
    assert store.put_once("result.json", b"same", content_type=TEXT) == first


def test_what_is_written_once_may_come_from_a_file(store, tmp_path):
    (tmp_path / "result.json").write_bytes(b"{}")
    store.put_once("result.json", tmp_path / "result.json", content_type="application/json")
    assert store.get("result.json") == b"{}"


def test_of_eight_concurrent_writers_exactly_one_wins(store):
    def write(number: int) -> int | None:
        try:
            store.put_once("job/result.json", f"attempt {number}".encode(), content_type=TEXT)
        except ObjectExists:
            return None
        return number

    with ThreadPoolExecutor(8) as threads:
        winners = [number for number in threads.map(write, range(8)) if number is not None]
    assert [store.get("job/result.json")] == [f"attempt {number}".encode() for number in winners]
    assert list(store.list()) == ["job/result.json"]


def test_threads_share_a_store(store):
    def round_trip(number: int) -> bytes:
        store.put(f"segments/{number:02}", bytes([number]) * 50_000, content_type="video/mp4")
        return store.get(f"segments/{number:02}")

    with ThreadPoolExecutor(8) as threads:
        bodies = list(threads.map(round_trip, range(24)))
    assert bodies == [bytes([number]) * 50_000 for number in range(24)]
    assert list(store.list("segments/")) == [f"segments/{number:02}" for number in range(24)]


@pytest.mark.parametrize("key", ["", "/etc/passwd", "a//b", "a/", "..", "a/../../b", "./a", "a\nb", "a/.h3render-1"])
def test_a_key_that_leaves_the_store_or_hides_in_it_is_refused(store, key):
    with pytest.raises(ValueError, match="can't be a part"):
        store.put(key, b"x", content_type=TEXT)
    with pytest.raises(ValueError, match="can't be a part"):
        store.get(key)
    with pytest.raises(ValueError, match="can't be a part"):
        store.url(key)


def test_a_prefix_that_leaves_the_store_is_refused(store):
    with pytest.raises(ValueError, match="can't be a part"):
        store.list("../")


def test_a_body_that_is_not_there_is_named(store, tmp_path):
    with pytest.raises(StoreUnavailable, match=r"gone\.mp4"):
        store.put("video.mp4", tmp_path / "gone.mp4", content_type="video/mp4")


def test_check_passes_on_a_good_store_and_leaves_nothing(store):
    store.check()
    assert list(store.list()) == []


def test_a_file_store_is_a_plain_folder(file_store_url, tmp_path):
    store = open_store(file_store_url)
    store.put("job/video.mp4", b"x", content_type="video/mp4")
    assert store.url("job/video.mp4") == str(tmp_path / "store" / "job" / "video.mp4")
    assert Path(store.url("job/video.mp4")).read_bytes() == b"x"


def test_an_unfinished_file_is_not_listed(file_store_url, tmp_path):
    store = open_store(file_store_url)
    store.put("job/video.mp4", b"x", content_type="video/mp4")
    (tmp_path / "store" / "job" / ".h3render-half-written").write_bytes(b"x")
    assert list(store.list()) == ["job/video.mp4"]


def test_an_unfinished_file_is_known_as_such_until_it_is_dropped(file_store_url, tmp_path):
    store = open_store(file_store_url)
    store.put("job/video.mp4", b"x", content_type="video/mp4")
    (tmp_path / "store" / "new").mkdir()
    (tmp_path / "store" / "new" / ".h3render-half-written").write_bytes(b"12345")
    [write] = store.scan_unfinished()
    assert (write.key, write.size_bytes) == ("new/.h3render-half-written", 5)
    store.drop_unfinished(write)
    store.drop_unfinished(write)
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["job"]


def test_what_is_no_plain_file_is_not_listed(file_store_url, tmp_path):
    store = open_store(file_store_url)
    store.put("job/video.mp4", b"x", content_type="video/mp4")
    (tmp_path / "store" / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "store" / "elsewhere").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "store" / "fifo")
    assert list(store.list()) == ["job/video.mp4"]


def test_a_folder_that_a_delete_leaves_empty_goes_and_others_stay(file_store_url, tmp_path):
    store = open_store(file_store_url)
    for key in ("job/attempts/1/a", "job/attempts/1/b", "job/attempts/2/a", "other/a"):
        store.put(key, b"x", content_type=TEXT)
    for key in ("job/attempts/1/a", "job/attempts/2/a", "other/a"):
        store.delete(key)
    assert sorted(path.name for path in (tmp_path / "store").rglob("*")) == ["1", "attempts", "b", "job"]
    store.delete("job/attempts/1/b")
    assert list((tmp_path / "store").iterdir()) == []


def test_a_write_outlasts_a_delete_that_removes_its_folder(file_store_url):
    store = open_store(file_store_url)

    def write_and_delete(number: int) -> None:
        for turn in range(20):
            store.put(f"job/attempts/{number}/{turn}", b"x", content_type=TEXT)
            store.delete(f"job/attempts/{number}/{turn}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write_and_delete, [1, 1, 2, 2]))
    assert list(store.list()) == []


def test_a_file_store_in_the_way_of_a_file_says_so(tmp_path):
    (tmp_path / "file").write_text("x")
    store = open_store((tmp_path / "file" / "store").as_uri())
    with pytest.raises(StoreUnavailable, match=r"file/store.*see that every part"):
        store.check()


def test_a_file_url_may_have_escaped_characters(tmp_path):
    store = open_store((tmp_path / "my renders").as_uri())
    store.put("a", b"x", content_type=TEXT)
    assert (tmp_path / "my renders" / "a").read_bytes() == b"x"


def test_an_s3_object_carries_its_type_cache_rule_and_checksum(s3_store_url, s3_client):
    store = open_store(s3_store_url)
    stored = store.put("playlist.m3u8", b"#EXTM3U", content_type="application/x-mpegURL", cache_control="no-cache")
    head = s3_client.head_object(**_place(store.url("playlist.m3u8")))
    assert head["ContentType"] == "application/x-mpegURL"
    assert head["CacheControl"] == "no-cache"
    assert head["Metadata"] == {"content-sha256": stored.sha256}


def test_an_s3_url_leads_to_the_object(s3_store_url, s3_client):
    store = open_store(s3_store_url + "/")
    store.put("a/b", b"x", content_type=TEXT)
    assert store.url("a/b") == f"{s3_store_url}/a/b"
    assert s3_client.get_object(**_place(store.url("a/b")))["Body"].read() == b"x"


def read_link(link: str, **headers: str) -> tuple[int, bytes]:
    """Status and body of what somebody without keys gets."""
    try:
        with urlopen(Request(link, headers=headers)) as answer:
            return answer.status, answer.read()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, b""


def test_a_link_lets_anybody_read_the_object_and_a_part_of_it(s3_store_url):
    store = open_store(s3_store_url)
    store.put("job/my video.mp4", b"moof" * 1000, content_type="video/mp4")
    link = store.link("job/my video.mp4", 60)
    assert read_link(link) == (200, b"moof" * 1000)
    assert read_link(link, Range="bytes=2-5") == (206, b"ofmo")
    with urlopen(link) as answer:
        assert answer.headers["Content-Type"] == "video/mp4"


def test_a_link_opens_no_other_object_and_does_not_write(s3_store_url):
    store = open_store(s3_store_url)
    for key in ("job/video.mp4", "job/other.mp4"):
        store.put(key, b"x", content_type="video/mp4")
    link = store.link("job/video.mp4", 60)
    assert read_link(link)[0] == 200
    assert read_link(link.replace("video.mp4", "other.mp4"))[0] == 403
    assert read_link(link.partition("?")[0])[0] == 403
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(link, data=b"y", method="PUT"))
    refused.value.close()
    assert refused.value.code == 403


def test_a_link_ends_with_its_time(s3_store_url):
    store = open_store(s3_store_url)
    store.put("job/video.mp4", b"x", content_type="video/mp4")
    link = store.link("job/video.mp4", 1)
    eventually(lambda: read_link(link)[0] == 403)
    assert read_link(store.link("job/video.mp4", LONGEST_LINK_S)) == (200, b"x")


def test_a_link_to_a_file_is_its_url(file_store_url, tmp_path):
    store = open_store(file_store_url)
    store.put("job/my video.mp4", b"x", content_type="video/mp4")
    link = store.link("job/my video.mp4", 60)
    assert link == f"{file_store_url}/job/my%20video.mp4"
    with urlopen(link) as file:
        assert file.read() == b"x"


@pytest.mark.parametrize(("expires_s", "nearest"), [(0, 1), (-5, 1), (LONGEST_LINK_S + 1, 604800)])
def test_a_link_for_too_short_or_too_long_is_refused_with_the_nearest(store, expires_s, nearest):
    with pytest.raises(StoreRefused) as refused:
        store.link("job/video.mp4", expires_s)
    assert f"{store.url('job/video.mp4')} cannot be good for {expires_s} s" in str(refused.value)
    assert f"nearest: {nearest}." in str(refused.value)


def test_a_link_to_a_key_that_leaves_the_store_is_refused(store):
    with pytest.raises(ValueError, match="can't be a part"):
        store.link("../secret", 60)


def test_a_link_needs_keys(s3_store_url, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreUnavailable, match=r"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        open_store(s3_store_url).link("a", 60)


def test_a_key_is_found_in_the_url_that_leads_to_it(store):
    for key in ("a", "inputs/kite.png", "job/attempts/1/my preview.png", "job/100%20?.png"):
        assert store.find_key(store.url(key)) == key
    for text in ("", "a", "/", store.url("a/b")[:-3], store.url("a") + "/../b", "https://a/b"):
        assert store.find_key(text) is None, text


def test_a_key_is_found_in_a_file_url_too(file_store_url):
    store = open_store(file_store_url)
    assert store.find_key(store.link("job/my video.mp4", 60)) == "job/my video.mp4"
    assert store.find_key(f"{file_store_url}/a".replace("file://", "file://localhost")) == "a"
    assert store.find_key(f"{file_store_url}/a".replace("file://", "file://elsewhere")) is None


def test_a_url_of_another_bucket_or_prefix_leads_to_no_key(s3_store_url, s3_server):
    store = open_store(s3_store_url)
    for url in (f"s3://{s3_server.bucket}/a", f"s3://other{store.url('a')[5:]}", f"{s3_store_url}-2/a", s3_store_url):
        assert store.find_key(url) is None, url


def test_a_scan_asks_for_a_page_when_it_is_needed(faulty_store, true_store, faulty_s3):
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda number: true_store.put(f"job/{number}", b"", content_type=TEXT), range(1001)))
    found = faulty_store.scan("job/")
    next(found)
    assert len(faulty_s3.seen("GET", "list-type=2")) == 1
    assert len(list(found)) == 1000
    assert len(faulty_s3.seen("GET", "list-type=2")) == 2
    assert len(set(faulty_store.list())) == 1001


def test_an_upload_in_parts_is_known_as_unfinished_until_it_is_dropped(s3_store_url):
    store = open_store(s3_store_url)
    began = datetime.now(UTC) - timedelta(seconds=1)
    store._client.create_multipart_upload(**_place(store.url("job/video.mp4")))
    [write] = store.scan_unfinished()
    assert (write.key, write.size_bytes) == ("job/video.mp4", 0)
    assert began <= write.modified_at <= datetime.now(UTC)
    store.drop_unfinished(write)
    store.drop_unfinished(write)
    assert list(store.scan_unfinished()) == []


def test_a_foreign_object_is_read_to_know_its_checksum(s3_store_url, s3_client):
    store = open_store(s3_store_url)
    s3_client.put_object(**_place(store.url("by-hand.txt")), Body=b"by hand")
    assert store.stat("by-hand.txt").sha256 == hashlib.sha256(b"by hand").hexdigest()
    assert store.get("by-hand.txt") == b"by hand"


def test_a_damaged_object_is_not_handed_out(s3_store_url, s3_client, tmp_path):
    store = open_store(s3_store_url)
    stored = store.put("video.mp4", b"what was written", content_type=TEXT)
    place = _place(store.url("video.mp4"))
    s3_client.put_object(**place, Body=b"what is there", Metadata={"content-sha256": stored.sha256})
    with pytest.raises(StoreUnavailable, match="damaged"):
        store.get("video.mp4")
    with pytest.raises(StoreUnavailable, match="damaged"):
        store.fetch("video.mp4", tmp_path / "video.mp4")
    assert list(tmp_path.iterdir()) == []


def test_a_big_file_goes_up_in_equal_parts_and_comes_back_whole(s3_store_url, s3_client, tmp_path):
    path = tmp_path / "big.mp4"
    path.write_bytes(os.urandom(2**20) * 70)
    store = open_store(s3_store_url)
    stored = store.put("big.mp4", path, content_type="video/mp4", cache_control="immutable")
    store.fetch("big.mp4", tmp_path / "back.mp4")
    assert store.stat("big.mp4") == stored
    assert (tmp_path / "back.mp4").read_bytes() == path.read_bytes()
    head = s3_client.head_object(**_place(store.url("big.mp4")), PartNumber=1)
    assert head["ContentLength"] == PART_BYTES
    assert (head["ContentType"], head["CacheControl"]) == ("video/mp4", "immutable")


def test_an_upload_damaged_on_its_way_is_refused(s3_store_url, monkeypatch):
    store = open_store(s3_store_url)
    monkeypatch.setattr("jobs.s3_store._md5", lambda stream: WRONG_MD5)
    with pytest.raises(StoreUnavailable, match=r"Digest|MD5"):
        store.put("video.mp4", b"x", content_type="video/mp4")
    assert store.stat("video.mp4") is None


def test_a_big_upload_that_fails_leaves_no_parts(s3_store_url, s3_client, monkeypatch):
    store = open_store(s3_store_url)
    monkeypatch.setattr("jobs.s3_store._md5", lambda stream: WRONG_MD5)
    with pytest.raises(StoreUnavailable, match="UploadPart"):
        store.put("big.mp4", bytes(65 * 2**20), content_type="video/mp4")
    assert _unfinished(s3_client, s3_store_url) == []
    assert store.stat("big.mp4") is None


def test_the_endpoint_may_stand_in_the_url(s3_store_url, s3_server, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    open_store(f"{s3_store_url}?endpoint={s3_server.endpoint}").check()


@every_use
def test_a_missing_bucket_is_named_with_the_remedy(use, s3_environment):
    with pytest.raises(StoreUnavailable, match=r"s3://no-such-bucket/.*create the bucket"):
        use(open_store("s3://no-such-bucket/renders"))


@every_use
def test_wrong_keys_are_told_with_the_variables_to_set(use, s3_store_url, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreUnavailable, match=r"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        use(open_store(s3_store_url))


@every_use
def test_a_dead_endpoint_is_named(use, s3_store_url, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    dead = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(StoreUnavailable, match=rf"at {dead}: .*AWS_ENDPOINT_URL_S3"):
        use(open_store(f"{s3_store_url}?endpoint={dead}"))


def test_missing_keys_are_told_with_the_variables_to_set(s3_store_url, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreUnavailable, match=r"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        open_store(s3_store_url).check()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("/plain/path", "unknown scheme ''"),
        ("gs://bucket/prefix", "unknown scheme 'gs'"),
        ("file://relative/path", "absolute path"),
        ("file:///path?endpoint=x", "absolute path"),
        ("s3://", "bucket is missing"),
        ("s3:///prefix", "bucket is missing"),
        ("s3://bucket/a/../b", "can't be a part"),
        ("s3://bucket/prefix?region=eu", r"only \?endpoint="),
        ("s3://bucket/prefix?endpoint=localhost", "Invalid endpoint"),
        ("s3://[bucket", "Invalid IPv6"),
    ],
)
def test_a_wrong_store_url_is_refused_with_the_forms_that_are_right(url, reason):
    with pytest.raises(StoreUnavailable, match=reason) as refused:
        open_store(url)
    assert repr(url) in str(refused.value)
    assert "s3://bucket/prefix" in str(refused.value)


def test_a_bucket_name_that_cannot_be_is_refused(s3_environment):
    with pytest.raises(StoreUnavailable, match="correct the bucket"):
        open_store("s3://no spaces/prefix").check()


def test_without_boto3_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)  # as if it were not installed
    with pytest.raises(StoreUnavailable, match=r"pip install 'h3render\[s3\]'"):
        open_store("s3://bucket/prefix")


def test_a_file_store_never_imports_boto3(file_store_url):
    program = f"""
import sys
from jobs.store import open_store
open_store({file_store_url!r}).check()
sys.exit("boto3" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True)


def test_a_put_outlasts_errors_and_broken_connections(faulty_store, true_store, faulty_s3):
    faulty_s3.answer(500, times=1)
    faulty_s3.reset(times=1)
    body = os.urandom(3 * 2**20)
    stored = faulty_store.put("segment.m4s", body, content_type="video/mp4")
    assert len(faulty_s3.seen("PUT", "segment.m4s")) == 3
    assert true_store.stat("segment.m4s") == stored
    assert true_store.get("segment.m4s") == body


@pytest.mark.parametrize("status", [500, 503])
def test_errors_that_may_pass_are_told_as_such_once_the_tries_are_used_up(faulty_store, true_store, faulty_s3, status):
    faulty_s3.answer(status, times=3)
    with pytest.raises(StoreUnavailable, match=r"SlowDown|InternalError.*try again") as failed:
        faulty_store.put("segment.m4s", b"x" * 1000, content_type="video/mp4")
    assert type(failed.value) is StoreUnavailable
    assert true_store.stat("segment.m4s") is None
    faulty_store.put("segment.m4s", b"x" * 1000, content_type="video/mp4")
    assert true_store.get("segment.m4s") == b"x" * 1000


def test_a_refusal_is_final_and_asked_for_once(faulty_store, faulty_s3):
    faulty_s3.answer(403, containing="segment-00005")
    faulty_store.put("segment-00004.m4s", b"x", content_type="video/mp4")
    with pytest.raises(StoreRefused, match=r"AccessDenied.*AWS_ACCESS_KEY_ID"):
        faulty_store.put("segment-00005.m4s", b"x", content_type="video/mp4")
    assert len(faulty_s3.seen("PUT", "segment-00005")) == 1


@pytest.mark.parametrize("before", [None, b"what was there"])
def test_a_body_cut_off_on_its_way_is_no_object(faulty_store, true_store, faulty_s3, before):
    if before is not None:
        true_store.put("video.mp4", before, content_type="video/mp4")
    faulty_s3.reset()
    with pytest.raises(StoreUnavailable) as failed:
        faulty_store.put("video.mp4", os.urandom(3 * 2**20), content_type="video/mp4")
    assert type(failed.value) is StoreUnavailable
    if before is None:
        assert list(true_store.list()) == []
    else:
        assert true_store.get("video.mp4") == before


def test_a_big_file_whose_parts_are_cut_off_goes_up_whole_or_not_at_all(
    faulty_store, true_store, faulty_s3, s3_client, s3_store_url
):
    body = os.urandom(2**20) * 66
    faulty_s3.reset(times=2, containing="partNumber=2")
    stored = faulty_store.put("big.mp4", body, content_type="video/mp4")
    assert true_store.stat("big.mp4") == stored
    true_store.delete("big.mp4")
    faulty_s3.reset(containing="partNumber=5")
    with pytest.raises(StoreUnavailable, match=r"UploadPart|Connection"):
        faulty_store.put("big.mp4", body, content_type="video/mp4")
    assert true_store.stat("big.mp4") is None
    assert _unfinished(s3_client, s3_store_url) == []


def test_a_conditional_put_whose_answer_was_lost_has_won(faulty_store, true_store, faulty_s3):
    faulty_s3.lose_answer(times=1, containing="result.json")
    stored = faulty_store.put_once("result.json", b"mine", content_type=TEXT)
    assert len(faulty_s3.seen("PUT", "result.json")) == 2
    assert true_store.stat("result.json") == stored


@every_use
def test_a_connection_that_breaks_is_told_as_what_may_pass(use, faulty_store, faulty_s3):
    faulty_s3.reset(method="")
    with pytest.raises(StoreUnavailable) as failed:
        use(faulty_store)
    assert type(failed.value) is StoreUnavailable


def test_a_slow_store_is_waited_for(faulty_store, true_store, faulty_s3):
    faulty_s3.stall(2.0, times=1)
    faulty_store.put("segment.m4s", b"late", content_type="video/mp4")
    assert true_store.get("segment.m4s") == b"late"


def test_a_download_cut_off_is_told_and_leaves_no_file(faulty_store, true_store, faulty_s3, tmp_path):
    true_store.put("checkpoint", os.urandom(3 * 2**20), content_type=TEXT)
    faulty_s3.reset(method="GET")
    with pytest.raises(StoreUnavailable):
        faulty_store.fetch("checkpoint", tmp_path / "fetched")
    assert list(tmp_path.iterdir()) == []
    faulty_s3.heal()
    faulty_store.fetch("checkpoint", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == true_store.get("checkpoint")


def test_all_works_over_tls_too(tls_s3_store_url, tls_s3_environment, tmp_path):
    store = open_store(tls_s3_store_url)
    assert tls_s3_environment["AWS_ENDPOINT_URL_S3"].startswith("https://")
    store.check()
    (tmp_path / "video.mp4").write_bytes(os.urandom(3 * 2**20))
    stored = store.put("video.mp4", tmp_path / "video.mp4", content_type="video/mp4", cache_control="immutable")
    store.fetch("video.mp4", tmp_path / "back.mp4")
    assert store.stat("video.mp4") == stored
    assert (tmp_path / "back.mp4").read_bytes() == (tmp_path / "video.mp4").read_bytes()
    store.put_once("result.json", b"{}", content_type="application/json")
    with pytest.raises(ObjectExists):
        store.put_once("result.json", b"other", content_type="application/json")


def test_a_certificate_that_nobody_vouches_for_is_refused(tls_s3_store_url, monkeypatch):
    monkeypatch.delenv("AWS_CA_BUNDLE")
    with pytest.raises(StoreUnavailable, match=r"certificate.*AWS_ENDPOINT_URL_S3"):
        open_store(tls_s3_store_url).check()


def _unfinished(s3_client, store_url: str) -> list[str]:
    """Names of uploads that are begun below there and neither completed nor aborted."""
    place = _place(store_url)
    uploads = s3_client.list_multipart_uploads(Bucket=place["Bucket"]).get("Uploads", [])
    return [upload["Key"] for upload in uploads if upload["Key"].startswith(place["Key"])]


def _place(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    return {"Bucket": parts.netloc, "Key": parts.path.lstrip("/")}
