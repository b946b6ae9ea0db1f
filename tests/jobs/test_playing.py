"""Plays renders with a child process that notes what it can read of the playlist, and when."""

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs.client import Client
from jobs.errors import JobFailed, SettingsInvalid, StoreUnavailable
from jobs.events import Finished, SegmentReady, StreamOpened
from jobs.players import Program, find_program
from jobs.playing import play
from jobs.playlist import PlaylistSegment, render_playlist
from jobs.store import open_store
from tests.jobs.commands import CONTENTS, commit, invoke
from tests.jobs.leasing import FAILED, STEP
from tests.waiting import eventually

# Reads a playlist again and again until it has an end, and a video once; a line of its log for each other content.
PLAYER = """
import json, os, pathlib, sys, time
log, path = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[-1])
def note(**told):
    with log.open("a") as file:
        file.write(json.dumps(told) + chr(10))
if path.suffix != ".m3u8":
    note(path=str(path), video=path.read_text(), options=sys.argv[2:-1])
    sys.exit()
seen = ""
while "#EXT-X-ENDLIST" not in seen:
    text = path.read_text()
    if text != seen:
        names = [line for line in text.splitlines() if not line.startswith("#")]
        headers = [line.split(chr(34))[1] for line in text.splitlines() if line.startswith("#EXT-X-MAP")]
        note(
            path=str(path),
            pid=os.getpid(),
            played=[(path.parent / name).read_text() for name in names],
            headers=[(path.parent / name).read_text() for name in headers],
            lines=[line for line in text.splitlines() if line.startswith("#")],
        )
        seen = text
    if "leave" in sys.argv:
        sys.exit(3)
    time.sleep(0.01)
"""


class Log:
    """What the player has noted."""

    def __init__(self, folder):
        self.path = folder / "log"
        self.script = folder / "player.py"
        self.script.write_text(PLAYER)

    @property
    def program(self):
        return Program((sys.executable, str(self.script), str(self.path)))

    @property
    def entries(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def await_played(self, *names):
        """The entry in which just these could be read."""
        return eventually(lambda: [entry for entry in self.entries if entry["played"] == [*names]])[-1]


class Stream:
    """What an attempt publishes; an earlier attempt may have begun with it."""

    def __init__(self, store, lease, before=None):
        self._store, self._lease = store, lease
        self._prefix = f"{lease.job_id}/attempts/{lease.attempt}"
        self._header = before._header if before else self._put("init.mp4", f"header {lease.attempt}")
        self._keys = list(before._keys) if before else []
        if before is None:
            lease.tell(StreamOpened(segments=4, playlist_key=self.playlist_key))

    @property
    def playlist_key(self):
        return f"{self._prefix}/playlist.m3u8"

    def add(self, *, told=True):
        index = len(self._keys)
        key = self._put(f"segment-{index:05d}.m4s", f"{self._lease.attempt}:{index}")
        self._keys.append(key)
        self._list(ended=False)
        if told:
            event = SegmentReady(index=index, key=key, duration_s=0.708, playlist_key=self.playlist_key)
            self._lease.tell(event)

    def finish(self, store_url):
        self._list(ended=True)
        result = Finished(
            attempt=self._lease.attempt,
            store_url=store_url,
            result_key="r",
            video_key="v",
            report_key="p",
            playlist_key=self.playlist_key,
        )
        self._lease.finish(result, {"result_key": "r"})

    def _put(self, name, text):
        return self._store.put(f"{self._prefix}/{name}", text.encode(), content_type="video/mp4").key

    def _list(self, *, ended):
        segments = [PlaylistSegment(os.path.relpath(key, self._prefix), 0.708) for key in self._keys]
        self._put("playlist.m3u8", render_playlist(os.path.relpath(self._header, self._prefix), segments, ended=ended))


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


@pytest.fixture
def store(file_store_url):
    return open_store(file_store_url)


@pytest.fixture
def begin(redis):
    """Play a job in another thread; what gives the player's exit code, once it has ended."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda store, lease, program: pool.submit(play, Client(redis).job(lease.job_id), store, program)


def has_gone(entry):
    return not Path(entry["path"]).parent.exists()


@pytest.mark.parametrize("url", ["file_store_url", "s3_store_url"])
def test_a_render_is_played_while_it_is_decoded(claim, log, begin, request, url):
    store_url = request.getfixturevalue(url)
    store, lease = open_store(store_url), claim()
    lease.tell(STEP)
    playing = begin(store, lease, log.program)
    stream = Stream(store, lease)
    assert log.entries == []
    stream.add()
    assert log.await_played("1:0")["headers"] == ["header 1"]
    stream.add(told=False)
    stream.add()
    entry = log.await_played("1:0", "1:1", "1:2")
    assert "#EXT-X-PLAYLIST-TYPE:EVENT" in entry["lines"]
    assert "#EXT-X-ENDLIST" not in entry["lines"]
    assert not playing.done()
    stream.add(told=False)
    stream.finish(store_url)
    assert playing.result(timeout=10) == 0
    last = log.entries[-1]
    assert last["played"] == ["1:0", "1:1", "1:2", "1:3"]
    assert last["lines"][-1] == "#EXT-X-ENDLIST"
    assert last["lines"].count("#EXT-X-DISCONTINUITY") == 0
    assert has_gone(last)


def test_who_comes_late_sees_it_from_the_beginning(claim, log, begin, store, file_store_url):
    stream = Stream(store, claim())
    for _ in range(3):
        stream.add()
    playing = begin(store, stream._lease, log.program)
    assert "#EXT-X-START:TIME-OFFSET=0" in log.await_played("1:0", "1:1", "1:2")["lines"]
    stream.finish(file_store_url)
    assert playing.result(timeout=10) == 0


def test_an_attempt_that_begins_anew_goes_on_where_the_player_is(claim, log, begin, reap, store, file_store_url):
    lease = claim()
    playing = begin(store, lease, log.program)
    first = Stream(store, lease)
    first.add()
    first.add()
    log.await_played("1:0", "1:1")
    reap(lease)
    second = Stream(store, claim(lease.job_id))
    for _ in range(4):
        second.add()
    entry = log.await_played("1:0", "1:1", "2:2", "2:3")  # what was shown is not shown again
    assert entry["headers"] == ["header 1", "header 2"]
    assert entry["lines"].count("#EXT-X-DISCONTINUITY") == 1
    second.finish(file_store_url)
    assert playing.result(timeout=10) == 0


def test_an_attempt_that_goes_on_with_the_stream_of_an_earlier_one_is_not_noticed(
    claim, log, begin, reap, store, file_store_url
):
    lease = claim()
    playing = begin(store, lease, log.program)
    first = Stream(store, lease)
    first.add()
    log.await_played("1:0")
    reap(lease)
    second = Stream(store, claim(lease.job_id), before=first)
    second.add()
    second.finish(file_store_url)
    assert playing.result(timeout=10) == 0
    assert log.entries[-1]["played"] == ["1:0", "2:1"]
    assert log.entries[-1]["headers"] == ["header 1"]


def test_a_job_that_ends_without_a_result_is_played_as_far_as_it_came(claim, log, begin, store):
    lease = claim()
    playing = begin(store, lease, log.program)
    Stream(store, lease).add()
    log.await_played("1:0")
    lease.fail(FAILED, "refused")
    with pytest.raises(JobFailed, match="the prompt is refused"):
        playing.result(timeout=10)
    assert log.entries[-1]["lines"][-1] == "#EXT-X-ENDLIST"
    assert has_gone(log.entries[-1])


@pytest.mark.parametrize("is_late", [True, False])
def test_a_job_without_a_stream_is_played_when_it_is_finished(redis, claim, log, begin, store, file_store_url, is_late):
    lease = claim()
    finish = lambda: commit(lease, Client(redis).job(lease.job_id).request(), store, file_store_url)  # noqa: E731
    if is_late:
        finish()
    playing = begin(store, lease, log.program)
    if not is_late:
        lease.tell(STEP)
        finish()
    assert playing.result(timeout=10) == 0
    [entry] = log.entries
    assert entry["video"] == CONTENTS["video.mp4"].decode()
    assert has_gone(entry)


def test_a_job_that_never_ran_is_not_played(redis, submit, log, store):
    job = Client(redis).job(submit())
    job.cancel()
    with pytest.raises(JobFailed, match="was canceled"):
        play(job, store, log.program)
    assert log.entries == []


def test_another_store_than_the_workers_is_named(redis, claim, log, store, tmp_path):
    lease = claim()
    Stream(store, lease).add()
    with pytest.raises(StoreUnavailable, match=r"elsewhere/.*playlist\.m3u8 does not exist: name the store"):
        play(Client(redis).job(lease.job_id), open_store((tmp_path / "elsewhere").as_uri()), log.program)


def test_a_playlist_that_names_what_is_not_the_jobs_is_refused(redis, claim, log, store):
    stream = Stream(store, claim())
    stream._keys.append("../secret")
    stream.add()
    with pytest.raises(StoreUnavailable, match=r"names '\.\./secret', which is not this job's"):
        play(Client(redis).job(stream._lease.job_id), store, log.program)


# --- the command


@pytest.fixture
def play_command(redis_url, file_store_url, monkeypatch):
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("H3_STORE_URL", file_store_url)
    return lambda job_id, *arguments, code=0: invoke("play", job_id, *arguments, code=code)


def test_a_player_that_is_closed_early_ends_the_command_while_the_job_runs(claim, log, store, play_command):
    stream = Stream(store, claim())
    stream.add()
    player = f"{sys.executable} {log.script} {log.path} leave"
    done = play_command(stream._lease.job_id, "--player", player, "--json", code=1)
    assert json.loads(done.stdout)["exit_code"] == 3
    assert "ended with exit code 3" in done.stderr


def test_ctrl_c_ends_the_player_and_removes_the_copy(claim, log, store, play_command):
    stream = Stream(store, claim())
    stream.add()
    player = f"{sys.executable} {log.script} {log.path}"
    command = [sys.executable, "-m", "h3render", "play", stream._lease.job_id, "--player", player]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        entry = log.await_played("1:0")
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=10)
    assert process.returncode != 0
    assert "Traceback" not in told
    assert has_gone(entry)
    with pytest.raises(ProcessLookupError):
        os.kill(entry["pid"], 0)


def test_without_a_player_it_says_which_would_do(submit, play_command, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    told = play_command(submit(), code=2).stderr
    for words in ("mpv, ffplay, vlc", "--player", "`h3render fetch`"):
        assert words in told
    assert "--player 'nonesuch' cannot be run here" in play_command(submit(), "--player", "nonesuch -x", code=2).stderr


def test_the_first_player_that_is_installed_is_taken_and_told_to_be_patient(monkeypatch, tmp_path):
    for name in ("ffplay", "vlc"):
        shutil.copy("/bin/true", tmp_path / name)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_program(None)
    assert found.name == "ffplay"
    assert "-live_start_index" in found.stream_options
    named = find_program(f"{tmp_path}/ffplay -fs")
    assert named.command == (f"{tmp_path}/ffplay", "-fs", *found.command[1:])
    assert named.stream_options == found.stream_options
    for wrong in ("", "'"):
        with pytest.raises(SettingsInvalid, match="--player"):
            find_program(wrong)
