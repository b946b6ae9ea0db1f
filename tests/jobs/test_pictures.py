"""Pictures of requests, from a file into real stores, by Python and by `h3render submit`."""

import errno
import hashlib
import os
import tracemalloc
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

import h3render
import jobs.pictures
from jobs.client import Client
from jobs.errors import PictureInvalid
from jobs.pictures import fetch_picture, locate_picture, put_picture
from jobs.store import open_store

PNG = b"\x89PNG\r\n\x1a\n and what else makes a picture"
HEADS = {
    "jpg": b"\xff\xd8\xff\xe0\0\x10JFIF",
    "png": PNG,
    "webp": b"RIFF\n\0\0\0WEBPVP8 ",
    "gif": b"GIF89a",
    "bmp": b"BM\x36\0\0\0",
    "tif": b"II*\0\x08\0\0\0",
}
NO_PICTURES = {
    "a film": (b"\0\0\0\x20ftypisom", r"kite begins with b'\x00\x00\x00 ftypisom'"),
    "a riff of another kind": (b"RIFF\n\0\0\0WAVEfmt ", "kite begins with b'RIFF"),
    "text before it": (b" " + PNG, "kite begins with b' \\x89PNG"),
    "nothing": (b"", "kite is empty"),
}
DAY_S = 24 * 3600


@pytest.fixture(params=["file_store_url", "s3_store_url"])
def store(request):
    return open_store(request.getfixturevalue(request.param))


@pytest.fixture
def kite(tmp_path):
    path = tmp_path / "kite.jpeg"  # its name tells nothing
    path.write_bytes(PNG)
    return path


def key_of(body, suffix="png"):
    return f"inputs/{hashlib.sha256(body).hexdigest()}.{suffix}"


# --- into a store and out of it


def test_a_picture_is_put_under_the_hash_of_its_bytes(store, kite, tmp_path):
    key = put_picture(store, kite)
    assert key == key_of(PNG)
    assert store.get(key) == PNG
    fetch_picture(store, key, tmp_path / "first-frame")
    assert (tmp_path / "first-frame").read_bytes() == PNG


def test_the_service_is_told_what_it_is(s3_store_url, kite):
    store = open_store(s3_store_url)
    key = put_picture(store, kite)
    head = store._client.head_object(Bucket=store._bucket, Key=store._name(key))
    assert head["ContentType"] == "image/png"


def test_the_same_picture_is_not_uploaded_twice(store, kite, tmp_path, monkeypatch):
    (tmp_path / "copy.png").write_bytes(PNG)
    key = put_picture(store, kite)
    monkeypatch.delattr(type(store), "put")
    assert put_picture(store, tmp_path / "copy.png") == key


def test_one_that_is_a_day_old_is_uploaded_again_so_that_it_stays(file_store_url, kite):
    store = open_store(file_store_url)
    key = put_picture(store, kite)
    written = store.find(key).modified_at.timestamp()
    for age_s, is_new in ((0.9 * DAY_S, False), (1.1 * DAY_S, True)):
        os.utime(store.url(key), (written - age_s,) * 2)
        put_picture(store, kite)
        assert (store.find(key).modified_at.timestamp() > written - age_s + 1) == is_new


def test_one_that_was_cut_short_is_uploaded_again(store, kite):
    key = key_of(PNG)
    store.put(key, PNG[:-1], content_type="image/png")
    put_picture(store, kite)
    assert store.get(key) == PNG


@pytest.mark.parametrize("suffix", HEADS)
def test_its_kind_is_seen_by_its_first_bytes(file_store_url, tmp_path, suffix):
    (tmp_path / "kite").write_bytes(HEADS[suffix])
    assert put_picture(open_store(file_store_url), tmp_path / "kite") == key_of(HEADS[suffix], suffix)


@pytest.mark.parametrize("body", NO_PICTURES)
def test_what_is_no_picture_is_refused_with_what_was_found(file_store_url, tmp_path, body):
    content, message = NO_PICTURES[body]
    (tmp_path / "kite").write_bytes(content)
    refused(file_store_url, tmp_path / "kite", f"{tmp_path}/{message}", "none of JPEG, PNG, WEBP, GIF, BMP, TIFF")


def test_a_path_without_a_file_is_refused(file_store_url, tmp_path):
    refused(file_store_url, tmp_path / "none.png", f"{tmp_path}/none.png does not exist: give the path of a picture")
    refused(file_store_url, tmp_path, f"{tmp_path} is not a file: give the path of a picture")
    os.mkfifo(tmp_path / "pipe")  # would be waited for
    refused(file_store_url, tmp_path / "pipe", "pipe is not a file")


def test_a_file_that_must_not_be_read_is_refused(file_store_url, kite, monkeypatch):
    def deny(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", deny)  # root may read everything
    refused(file_store_url, kite, f"{kite} cannot be read (Permission denied)")


def refused(store_url, path, *messages):
    with pytest.raises(PictureInvalid) as refusal:
        put_picture(open_store(store_url), path)
    for message in messages:
        assert message in str(refusal.value)
    assert list(open_store(store_url).list()) == []


def test_one_that_is_too_large_is_refused_here_and_there(store, kite, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs.pictures, "MOST_BYTES", len(PNG))
    key = put_picture(store, kite)
    monkeypatch.setattr(jobs.pictures, "MOST_BYTES", len(PNG) - 1)
    for act in (lambda: put_picture(store, kite), lambda: fetch_picture(store, key, tmp_path / "first-frame")):
        with pytest.raises(PictureInvalid, match=rf"has {len(PNG)} bytes, more than .* MiB: scale the picture down"):
            act()
    assert not (tmp_path / "first-frame").exists()


def test_one_that_is_not_in_the_store_is_named_with_the_remedy(store, kite, tmp_path):
    put_picture(store, kite)
    for key in ("inputs/kite.png", key_of(PNG)[:-1]):
        with pytest.raises(PictureInvalid) as refusal:
            fetch_picture(store, key, tmp_path / "first-frame")
        assert f"{store.url(key)} does not exist: put the picture there" in str(refusal.value)


# --- where a person says that it is


def put(store, key, body=PNG):
    store.put(key, body, content_type="image/png")
    return key


def test_a_file_is_located_from_the_folder_on_and_uploaded_when_it_is_put(store, kite, monkeypatch):
    monkeypatch.setenv("HOME", str(kite.parent))
    for text in ("kite.jpeg", f"../{kite.parent.name}/kite.jpeg", str(kite), "~/kite.jpeg", kite.as_uri()):
        located = locate_picture(text, kite.parent, store)
        assert located.key == key_of(PNG)
    assert list(store.list()) == []
    located.put(store)
    assert store.get(located.key) == PNG


def test_a_file_that_has_changed_since_is_not_put(store, kite):
    located = locate_picture("kite.jpeg", kite.parent, store)
    kite.write_bytes(PNG + b"!")
    with pytest.raises(PictureInvalid, match=rf"{kite} has changed since it was looked at"):
        located.put(store)
    kite.unlink()
    with pytest.raises(PictureInvalid, match=rf"{kite} does not exist"):
        located.put(store)
    assert list(store.list()) == []


def test_a_located_picture_does_not_keep_its_bytes(file_store_url, tmp_path):
    (tmp_path / "large.png").write_bytes(PNG + bytes(8 << 20))
    store = open_store(file_store_url)
    tracemalloc.start()
    try:
        located = [locate_picture("large.png", tmp_path, store) for _ in range(3)]
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert len({each.key for each in located}) == 1


def test_a_picture_of_requests_is_located_by_its_key_or_its_url(store, tmp_path, monkeypatch):
    key = put(store, "inputs/kite.png")
    monkeypatch.delattr(type(store), "put")  # it stays as it is
    for text in (key, store.url(key)):
        located = locate_picture(text, tmp_path, store)
        assert located.key == key
        located.put(store)


def test_one_that_is_a_day_old_is_written_again_in_its_place(file_store_url, tmp_path):
    store = open_store(file_store_url)
    key = put(store, "inputs/kite.png")
    written = store.find(key).modified_at.timestamp()
    for age_s, is_new in ((0.9 * DAY_S, False), (1.1 * DAY_S, True)):
        os.utime(store.url(key), (written - age_s,) * 2)
        locate_picture(key, tmp_path, store).put(store)
        assert (store.find(key).modified_at.timestamp() > written - age_s + 1) == is_new
    assert store.get(key) == PNG


@pytest.mark.parametrize("source", ["job/attempts/1/preview-5.png", "inputs/old/kite.png"])
def test_another_picture_of_the_store_is_copied_to_those_of_requests(store, tmp_path, source):
    put(store, source)
    for text in (source, store.url(source)):
        located = locate_picture(text, tmp_path, store)
        assert located.key == key_of(PNG)
    assert list(store.list()) == [source]
    located.put(store)
    assert store.get(located.key) == store.get(source) == PNG


def test_an_object_that_has_changed_since_is_not_copied(store, tmp_path):
    source = put(store, "job/attempts/1/preview-5.png")
    located = locate_picture(source, tmp_path, store)
    put(store, source, PNG + b"!")
    with pytest.raises(PictureInvalid, match=r"preview-5\.png has changed since it was looked at"):
        located.put(store)
    store.delete(source)
    with pytest.raises(PictureInvalid, match=r"preview-5\.png does not exist"):
        located.put(store)


def test_a_file_goes_before_a_key_of_the_same_name(store, kite):
    put(store, "inputs/kite.png", HEADS["png"] + b"in the store")
    (kite.parent / "inputs").mkdir()
    kite.rename(kite.parent / "inputs" / "kite.png")
    assert locate_picture("inputs/kite.png", kite.parent, store).key == key_of(PNG)
    assert locate_picture(store.url("inputs/kite.png"), kite.parent, store).key == "inputs/kite.png"


def test_what_is_neither_a_file_nor_in_the_store_is_refused(store, tmp_path):
    put(store, "inputs/kite.png-2")
    for text in ("inputs/kite.png", "job/attempts/1/preview-5.png"):
        not_located(
            store, tmp_path, text, f"{tmp_path / text} does not exist, nor does {store.url(text)}: give the path"
        )
        not_located(store, tmp_path, store.url(text), f"{store.url(text)} does not exist: give the path")
    for text in ("", "./inputs/kite.png", "inputs//kite.png", "/inputs/kite.png", "x\0/y", "a" * 300 + "/kite.png"):
        not_located(store, tmp_path, text, "give the path of a picture", "let this user read it")
    not_located(store, tmp_path, "~nobody-of-this-name/kite.png", "~nobody-of-this-name/kite.png is no path here")


def test_a_name_without_a_folder_is_not_looked_for_in_the_store(store, tmp_path, monkeypatch):
    monkeypatch.delattr(type(store), "scan")
    not_located(store, tmp_path, "none.png", f"{tmp_path / 'none.png'} does not exist: give the path of a picture")


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/kite.png?signature=secret",
        "s3://another-bucket/inputs/kite.png",
        "gs://bucket/inputs/kite.png",
    ],
)
def test_a_url_of_elsewhere_is_refused_with_what_works(store, tmp_path, text):
    told = not_located(store, tmp_path, text, "download it, and give the file")
    assert store.url("inputs/kite.png") in told
    assert "secret" not in told


def test_a_file_of_another_machine_is_refused(store, tmp_path):
    not_located(store, tmp_path, "file://elsewhere/kite.png", "names a file of another machine, elsewhere")


def test_what_is_located_and_no_picture_is_refused(store, tmp_path, monkeypatch):
    (tmp_path / "film.mp4").write_bytes(NO_PICTURES["a film"][0])
    not_located(store, tmp_path, "film.mp4", "film.mp4 begins with")
    put(store, "job/attempts/1/video.mp4", NO_PICTURES["a film"][0])
    not_located(store, tmp_path, "job/attempts/1/video.mp4", f"{store.url('job/attempts/1/video.mp4')} begins with")
    monkeypatch.setattr(jobs.pictures, "MOST_BYTES", 3)
    put(store, "inputs/kite.png")
    for text in ("film.mp4", "job/attempts/1/video.mp4", "inputs/kite.png"):
        not_located(store, tmp_path, text, f"{text} has ")


def not_located(store, folder, text, *messages):
    with pytest.raises(PictureInvalid) as refusal:
        locate_picture(text, folder, store)
    assert any(message in str(refusal.value) for message in messages), refusal.value
    return str(refusal.value)


# --- the command


@pytest.fixture
def submit(redis_url, file_store_url):
    """Run `h3render submit`."""

    def submit(*flags, url=redis_url, code=0):
        command = ["submit", "a red kite", "--url", url, "--store", file_store_url, *map(str, flags)]
        done = CliRunner().invoke(h3render.app, command)
        assert done.exit_code == code, done.output
        return done

    return submit


def test_submit_uploads_the_frames_and_queues_a_request_that_names_them(submit, redis, file_store_url, kite, tmp_path):
    (tmp_path / "end.gif").write_bytes(HEADS["gif"])
    done = submit("--first-frame", kite, "--last-frame", tmp_path / "end.gif")
    request = Client(redis).job(done.stdout.strip()).request()
    assert (request.first_frame, request.last_frame) == (key_of(PNG), key_of(HEADS["gif"], "gif"))
    store = open_store(file_store_url)
    assert store.get(request.first_frame) == PNG
    assert sorted(store.list()) == sorted([request.first_frame, request.last_frame])


def test_one_picture_may_be_both_frames(submit, redis, file_store_url, kite):
    done = submit("--first-frame", kite, "--last-frame", kite, "--key", "k")
    request = Client(redis).job(done.stdout.strip()).request()
    assert request.first_frame == request.last_frame == key_of(PNG)
    again = submit("--first-frame", kite, "--last-frame", kite, "--key", "k")
    assert again.stdout == done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--last-frame", "none.png"], "none.png does not exist"),
        (["--last-frame", __file__], f"{__file__} begins with"),
        (["--frames", "40"], "frames 40 is not 17n + 5"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_uploaded_or_queued(
    submit, redis, kite, file_store_url, flags, message
):
    assert message in submit("--first-frame", kite, *flags, code=2).stderr
    assert redis.keys() == []
    assert list(open_store(file_store_url).list()) == []


def test_nothing_is_uploaded_for_a_redis_that_does_not_answer(submit, kite, file_store_url):
    assert "does not answer" in submit("--first-frame", kite, url="redis://127.0.0.1:1/0", code=2).stderr
    assert list(open_store(file_store_url).list()) == []


def test_nothing_is_queued_with_a_picture_that_the_store_does_not_take(submit, redis, kite, file_store_url):
    root = Path(urlsplit(file_store_url).path)
    root.mkdir()
    (root / "inputs").write_text("a file where the folder should be")
    assert str(root / "inputs") in submit("--first-frame", kite, code=2).stderr
    assert redis.keys() == []
