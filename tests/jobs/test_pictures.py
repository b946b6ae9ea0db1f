"""Pictures of requests, from a file into real stores, by Python and by `h3render submit`."""

import errno
import hashlib
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

import h3render
import jobs.pictures
from jobs.client import Client
from jobs.errors import PictureInvalid
from jobs.pictures import fetch_picture, find_picture, put_picture
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
    written = find_picture(store, key).modified_at.timestamp()
    for age_s, is_new in ((0.9 * DAY_S, False), (1.1 * DAY_S, True)):
        os.utime(store.url(key), (written - age_s,) * 2)
        put_picture(store, kite)
        assert (find_picture(store, key).modified_at.timestamp() > written - age_s + 1) == is_new


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
