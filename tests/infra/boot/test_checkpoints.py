"""Checkpoints over a real HTTP connection: by parts, again after a loss, never published unless they are right."""

import json
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra.boot import checkpoints, fetch
from infra.boot.checkpoints import provide_checkpoints
from infra.boot.errors import CheckpointRefused, NoRoom, Stopped, Unfit
from infra.boot.lock import holding
from infra.boot.manifest import read_manifest
from infra.boot.stored_file import ASIDE
from tests.waiting import eventually

PART = 1000
CONTENT = random.Random(1).randbytes(10 * PART - 1)
NAME = "transformer/model.safetensors"


@pytest.fixture
def entry(server):
    return server.put(NAME, CONTENT)


@pytest.fixture
def provide(models):
    """As a pod does; the names of what lies in the folder afterwards."""

    def provide(*entries, owner="pod-1", is_stopped=lambda: False, fetches=4):
        files = read_manifest(json.dumps(entries))
        try:
            provide_checkpoints(files, models, owner=owner, fetches=fetches, part_bytes=PART, is_stopped=is_stopped)
        finally:
            (models / ASIDE).mkdir(exist_ok=True)
        return sorted(path.name for path in (models / ASIDE).iterdir())

    return provide


def test_a_file_is_fetched_by_parts_and_gets_its_name_when_it_is_whole(provide, server, entry, models):
    assert provide(entry) == ["transformer%2Fmodel.safetensors.verified"]
    assert (models / NAME).read_bytes() == CONTENT
    assert sorted(server.asked) == list(range(0, len(CONTENT), PART))


def test_a_file_that_was_verified_is_neither_fetched_nor_read_again(provide, server, entry, models):
    provide(entry)
    asked = len(server.asked)
    found = (models / NAME).stat()
    with (models / NAME).open("r+b") as file:  # which a digest would find
        file.write(b"xx")
    os.utime(models / NAME, ns=(found.st_atime_ns, found.st_mtime_ns))
    provide(entry)
    assert len(server.asked) == asked


def test_a_file_that_somebody_has_put_there_is_read_through_and_kept(provide, server, entry, models):
    (models / NAME).parent.mkdir()
    (models / NAME).write_bytes(CONTENT)
    assert provide(entry) == ["transformer%2Fmodel.safetensors.verified"]
    assert server.asked == []


@pytest.mark.parametrize("wrong", [CONTENT[:-1], CONTENT[:-1] + b"\0", b""], ids=["short", "another", "empty"])
def test_a_file_that_is_not_right_is_replaced(provide, entry, models, wrong):
    (models / NAME).parent.mkdir()
    (models / NAME).write_bytes(wrong)
    provide(entry)
    assert (models / NAME).read_bytes() == CONTENT


def test_an_answer_that_breaks_off_is_gone_on_with_where_it_ended(provide, server, entry, models):
    server.cuts = {2 * PART: 300, 3 * PART: 1}
    provide(entry)
    assert (models / NAME).read_bytes() == CONTENT
    assert {2 * PART + 300, 3 * PART + 1} <= set(server.asked)


def test_a_server_that_fails_is_asked_again(provide, server, entry, models, monkeypatch):
    monkeypatch.setattr(fetch, "LONGEST_PAUSE_S", 0.0)
    server.statuses = {0: 503, PART: 429, 2 * PART: 500}
    provide(entry)
    assert (models / NAME).read_bytes() == CONTENT


def test_a_server_that_goes_on_failing_is_given_up_without_its_signature(provide, server, entry, monkeypatch):
    monkeypatch.setattr(fetch, "LONGEST_PAUSE_S", 0.0)
    server.shutdown()
    server.server_close()
    with pytest.raises(
        CheckpointRefused, match=r"model.safetensors: nothing comes from http://127.0.0.1/.*Connect"
    ) as told:
        provide(entry, fetches=1)
    assert "canary" not in str(told.value)


def test_what_was_fetched_before_an_end_is_not_fetched_again(provide, server, entry, models):
    server.statuses = {5 * PART: 403}
    with pytest.raises(CheckpointRefused, match="answers 403: is the URL right, and a signed one still good"):
        provide(entry, fetches=1)
    assert server.asked == [0, PART, 2 * PART, 3 * PART, 4 * PART, 5 * PART]
    server.asked.clear()
    provide(entry)
    assert min(server.asked) == 5 * PART
    assert (models / NAME).read_bytes() == CONTENT


def test_a_wrong_digest_is_told_and_nothing_of_the_file_is_kept(provide, server, entry, models):
    server.files[NAME] = CONTENT[:-1] + b"\0"
    with pytest.raises(CheckpointRefused, match=f"another SHA-256 than the manifest's {entry['sha256']}"):
        provide(entry)
    assert not (models / NAME).exists()
    assert list((models / ASIDE).iterdir()) == []


def test_parts_that_a_crash_has_lost_are_found_out_and_all_is_fetched_anew(provide, server, entry, models):
    server.statuses = {5 * PART: 403}
    with pytest.raises(CheckpointRefused):
        provide(entry, fetches=1)
    [part] = (models / ASIDE).glob("*.part")
    part.write_bytes(bytes(5 * PART))
    provide(entry)
    assert (models / NAME).read_bytes() == CONTENT


def test_parts_of_another_version_of_a_file_are_not_mixed_in(provide, server, entry, models):
    server.statuses = {9 * PART: 404}
    with pytest.raises(CheckpointRefused):
        provide(entry)
    other = server.put(NAME, CONTENT[::-1])
    provide(other)
    assert (models / NAME).read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size_bytes": 5}, "has 9999 bytes where the manifest has 5"),
        ({"url": "{}/absent"}, "answers 403"),
        ({"url": "{}/away"}, "sends us to example.com, which is not an https:// URL"),
    ],
)
def test_what_is_not_there_or_is_another_is_told(provide, server, entry, change, said):
    server.redirects = {"away": "http://example.com/x"}
    changed = {key: value.format(server.url) if isinstance(value, str) else value for key, value in change.items()}
    with pytest.raises(CheckpointRefused, match=said):
        provide(entry | changed)


def test_a_server_that_does_not_know_ranges_is_told(provide, server, entry):
    server.ignores_ranges = True
    with pytest.raises(CheckpointRefused, match="does not give parts of a file"):
        provide(entry)


def test_a_redirect_is_followed_to_where_a_manifest_may_point(provide, server, entry, models):
    server.redirects = {"elsewhere": entry["url"]}
    provide(entry | {"url": f"{server.url}/elsewhere"})
    assert (models / NAME).read_bytes() == CONTENT


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(provide, server, entry, monkeypatch):
    monkeypatch.setattr(checkpoints, "SPARE_BYTES", 1 << 60)
    with pytest.raises(NoRoom, match=r"GiB free; 10737\d+.\d are needed for 1 checkpoints: order a larger disk"):
        provide(entry)
    assert server.asked == []


def test_who_is_told_to_stop_does_and_keeps_whole_parts(provide, server, entry, models):
    with pytest.raises(Stopped):
        provide(entry, is_stopped=lambda: len(server.asked) == 5, fetches=1)
    assert not (models / NAME).exists()
    server.asked.clear()
    provide(entry)
    assert min(server.asked) == 4 * PART
    assert (models / NAME).read_bytes() == CONTENT


# --- several pods on one volume


def test_two_pods_fetch_each_part_once(provide, server, entry, models):
    with ThreadPoolExecutor(2) as pool:
        for running in [pool.submit(provide, entry, owner=owner) for owner in ("pod-1", "pod-2")]:
            running.result(timeout=20)
    assert sorted(server.asked) == list(range(0, len(CONTENT), PART))
    assert (models / NAME).read_bytes() == CONTENT


def test_the_lock_of_a_pod_that_died_is_taken_once_it_has_been_silent_for_long(tmp_path):
    path = tmp_path / "lock"
    path.write_text("dead")
    with holding(path, "alive", lambda: False, lost_s=0.1):
        assert path.read_text() == "alive"
    assert not path.exists()


def test_the_lock_of_a_pod_that_lives_is_waited_for(tmp_path):
    path, stopped = tmp_path / "lock", threading.Event()

    def is_stopped():
        return stopped.is_set()

    def wait():
        with holding(path, "second", is_stopped, lost_s=0.3):
            return path.read_text()

    with ThreadPoolExecutor(1) as pool:
        with holding(path, "first", is_stopped, lost_s=0.3):
            waiting = pool.submit(wait)
            begun = path.stat().st_mtime_ns
            eventually(lambda: path.stat().st_mtime_ns - begun > 0.4e9)  # longer than one that is silent has
            assert path.read_text() == "first"
        assert waiting.result(timeout=10) == "second"


def test_a_pod_that_was_restarted_goes_on_with_its_own_lock_at_once(tmp_path):
    path = tmp_path / "lock"
    path.write_text("pod-1")
    with holding(path, "pod-1", lambda: False):
        pass
    assert not path.exists()


def test_who_waits_for_a_lock_can_be_stopped(tmp_path):
    path = tmp_path / "lock"
    path.write_text("pod-1")
    with pytest.raises(Stopped), holding(path, "pod-2", lambda: True):
        pass
    assert path.read_text() == "pod-1"


# --- the manifest

GOOD = {"name": "a.safetensors", "url": "https://example.com/a", "size_bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"url": "http://example.com/canary"}, "0.url: value error, an https:// URL"),
        ({"url": "s3://bucket/canary"}, "for s3:// a signed one"),
        ({"url": "https://"}, "0.url"),
        ({"name": "../canary"}, "0.name"),
        ({"name": "/canary"}, "0.name"),
        ({"name": ".h3render/canary"}, "0.name"),
        ({"size_bytes": 0}, "0.size_bytes"),
        ({"sha256": "canary"}, "0.sha256"),
        ({"sah256": "canary"}, "0.sah256: extra inputs are not permitted"),
    ],
)
def test_a_wrong_manifest_is_told_by_its_field_and_not_by_its_value(change, said):
    with pytest.raises(Unfit, match="H3_POD_CHECKPOINTS") as told:
        read_manifest(json.dumps([GOOD | change]))
    assert said.lower() in str(told.value).lower()
    assert "canary" not in str(told.value)


def test_a_manifest_may_lie_in_a_file(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps([GOOD]))
    [file] = read_manifest(str(path))
    assert file.place == "https://example.com/a"
    with pytest.raises(Unfit, match=r"nowhere.json: No such file"):
        read_manifest(str(tmp_path / "nowhere.json"))
    with pytest.raises(Unfit, match="one name is there twice"):
        read_manifest(json.dumps([GOOD, GOOD]))
