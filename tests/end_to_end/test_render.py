"""Jobs from the command line to playable videos, on a real Redis, a real store and two real ranks.

One worker renders all but one of them; among them is one with a first and a last frame, and one whose picture is
damaged.
"""

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from redis import Redis
from safetensors import safe_open
from safetensors.torch import load_file

from h3.provenance import sha256
from jobs import events
from jobs.client import Client, JobHandle
from jobs.errors import JobFailed
from jobs.pictures import put_picture
from jobs.request import ResolvedRequest
from jobs.result import Result, read_result
from jobs.store import open_store
from tests.end_to_end.conftest import run
from tests.end_to_end.video import read

CLIP = {"width": 96, "height": 64, "frames": 39, "steps": 4, "preview_every": 2, "checkpoint_every": 2}
PROMPT = "a paper boat in the rain"
AUDIO_FRAME = 1024  # samples
KINDS_IN_ORDER = [
    "queued",
    "started",
    "text_encoded",
    *["step_done"] * 2,
    "preview_ready",
    "checkpoint_saved",
    *["step_done"] * 2,
    "preview_ready",
    "checkpoint_saved",
    "stream_opened",
    "segment_ready",
    "segment_ready",
    "finished",
]


class Framed:
    """A job with two pictures, the same without, and before them one whose picture is damaged."""

    clip = CLIP | {"frames": 22, "steps": 2, "seed": 7, "preview_every": 0, "checkpoint_every": 0}

    def __init__(self, client: Client, root: Path, folder: Path, url: str) -> None:
        self.client, self.store, self.folder = client, open_store(root.as_uri()), folder
        begin, end = (self.write(name, colour) for name, colour in (("begin.jpg", "red"), ("end.png", "blue")))
        self.damaged = self.submit(last_frame=put_picture(self.store, self.write_damaged()))
        self.plain = self.submit()
        frames = ("--first-frame", str(begin), "--last-frame", str(end))
        self.framed = self.submit_by_command(*frames, "--url", url, "--store", root.as_uri())

    def write(self, name, colour):
        Image.new("RGB", (120, 50), colour).save(self.folder / name)
        return self.folder / name

    def write_damaged(self):
        """Its first bytes are those of a picture."""
        whole = self.write("whole.png", "green")
        (self.folder / "cut.png").write_bytes(whole.read_bytes()[:-40])
        return self.folder / "cut.png"

    def submit(self, **frames):
        return self.client.submit({"prompt": PROMPT, **self.clip, **frames})

    def submit_by_command(self, *flags):
        fields = [part for name, value in self.clip.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        done = run("submit", PROMPT, *fields, *flags)
        assert done.returncode == 0, done.stderr
        return self.client.job(done.stdout.strip())


class Renders:
    """Three renders by one worker: a seed, the same again, and another. A job for tensor mode is before them."""

    def __init__(self, client: Client, framed: Framed, root: Path, *where: str) -> None:
        self.framed, self.root, self.store, self.where = framed, root, open_store(root.as_uri()), where
        self.for_tensor = client.submit({"prompt": PROMPT, "seed": 7, "mode": "tensor", **CLIP})
        self.jobs = [client.submit({"prompt": PROMPT, "seed": seed, **CLIP}) for seed in (7, 7, 8)]

    def work(self, *flags: str) -> None:
        """Let a worker take all that it can."""
        worker = run("worker", "--burst", *self.where, "--store", self.root.as_uri(), *flags, H3_LOG_FORMAT="json")
        assert worker.returncode == 0, worker.stderr
        self.log = worker.stderr

    def collect(self) -> None:
        self.events = [list(job.events(timeout_s=5)) for job in self.jobs]
        self.results = [read_result(self.store, job.id) for job in self.jobs]
        self.reports = [self.report(result) for result in self.results]

    def report(self, result: Result) -> dict[str, Any]:
        return json.loads(self.store.get(result.report_key))

    def last_checkpoint(self, job: JobHandle) -> Path:
        return self.root / [event.key for event in job.news() if isinstance(event, events.CheckpointSaved)][-1]


@pytest.fixture(scope="module")
def renders(shared_redis, checkpoint, tmp_path_factory):
    where = ("--checkpoint", str(checkpoint), "--url", shared_redis.url)
    with Redis.from_url(shared_redis.url) as redis:
        redis.flushall()
        client, root = Client(redis), tmp_path_factory.mktemp("renders")
        framed = Framed(client, root, tmp_path_factory.mktemp("pictures"), shared_redis.url)
        renders = Renders(client, framed, root, *where)
        renders.work()
        renders.collect()
        yield renders


@pytest.fixture(scope="module")
def result(renders) -> Result:
    return renders.results[0]


@pytest.fixture(scope="module")
def video(renders, result):
    return read(renders.root / result.video_key)


def test_the_video_is_what_was_asked_for(video):
    assert video.pictures.shape == (39, 64, 96, 3)
    assert video.fps == 24
    assert (video.video_codec, video.pixel_format) == ("h264", "yuv420p")
    assert (video.samples.shape[0], video.sample_rate) == (2, 32_000)


def test_sound_and_picture_last_equally_long(video):
    samples = 39 * 32_000 / 24
    assert abs(video.samples.shape[1] - samples) <= AUDIO_FRAME


def test_segments_joined_give_the_same_frames_and_a_sound_without_a_gap(renders, result, video, tmp_path):
    folder = (renders.root / result.playlist_key).parent
    names = [line for line in (folder / "playlist.m3u8").read_text().splitlines() if not line.startswith("#")]
    assert len(names) == 2
    joined = tmp_path / "joined.mp4"
    joined.write_bytes(b"".join((folder / name).read_bytes() for name in ["init.mp4", *names]))
    contents = read(joined)
    assert np.array_equal(contents.pictures, video.pictures)
    assert all(b > a for a, b in pairwise(contents.picture_times))
    for (start, duration), (following, _) in pairwise(contents.audio_packets):
        assert abs(start + duration - following) * 32_000 < 1


def test_the_playlist_is_complete(renders, result):
    text = renders.store.get(result.playlist_key).decode()
    durations = [float(line[8:-1]) for line in text.splitlines() if line.startswith("#EXTINF:")]
    assert durations == pytest.approx([17 / 24, 22 / 24], abs=1e-3)
    assert text.splitlines()[-1] == "#EXT-X-ENDLIST"
    assert '#EXT-X-MAP:URI="init.mp4"' in text


def test_the_result_names_every_object_of_the_attempt_but_checkpoints_and_all_match(renders, result):
    job_id = renders.jobs[0].id
    written = set(renders.store.list(f"{job_id}/attempts/"))
    named = {piece.key for piece in result.pieces}
    assert {key for key in written - named if "checkpoint-" not in key} == {f"{job_id}/attempts/1/attempt.json"}
    assert named <= written
    for piece in result.pieces:
        body = renders.store.get(piece.key)
        assert (len(body), hashlib.sha256(body).hexdigest()) == (piece.size_bytes, piece.sha256)


def test_events_tell_the_phases_in_order(renders):
    told = renders.events[0]
    assert [event.kind for event in told] == KINDS_IN_ORDER
    steps = [event for event in told if isinstance(event, events.StepDone)]
    assert [(event.step, event.steps) for event in steps] == [(n, 4) for n in (1, 2, 3, 4)]
    assert steps[0].sigma == 1
    assert all(a.sigma > b.sigma for a, b in pairwise(steps))


def test_previews_are_pictures_and_the_last_checkpoint_holds_the_final_latents(renders):
    previews = [event.key for event in renders.events[0] if isinstance(event, events.PreviewReady)]
    assert [picture_size(renders.root / key) for key in previews] == [(96, 64)] * 2
    with safe_open(renders.last_checkpoint(renders.jobs[0]), framework="pt") as checkpoint:
        assert (checkpoint.metadata()["step"], checkpoint.metadata()["steps"]) == ("4", "4")
        hashes = {name: sha256(checkpoint.get_tensor(name)) for name in ("video", "audio")}
    assert hashes == renders.reports[0]["latents_sha256"]


def test_the_same_seed_gives_the_same_latents_and_another_seed_others(renders):
    first, again, other = (report["latents_sha256"] for report in renders.reports)
    assert first == again
    assert first["video"] != other["video"]
    assert first["audio"] != other["audio"]


def test_the_report_records_what_the_bits_depend_on(renders):
    report = renders.reports[0]
    assert report["request"] == ResolvedRequest(prompt=PROMPT, seed=7, **CLIP).model_dump(mode="json")
    assert report["provenance"]["world_size"] == 2
    assert report["provenance"]["mode"] == "ulysses"
    assert len(report["timings"]["step_s"]) == 4


def test_a_picture_that_cannot_be_decoded_fails_its_job_and_leaves_the_fleet_alone(renders):
    damaged = renders.framed.damaged
    with pytest.raises(JobFailed, match=r"attempt 1: inputs/\w+\.png: a damaged picture .* save it anew"):
        damaged.wait(timeout_s=5)
    assert [event.kind for event in damaged.news()] == ["queued", "started", "failed"]
    assert damaged.news()[-1].cause == "request"
    assert renders.log.count("starting the fleet") == 1  # and it has rendered the jobs behind


def test_a_render_with_both_frames_is_another_one_and_its_report_names_them(renders):
    jobs = (renders.framed.framed, renders.framed.plain)
    framed, plain = (renders.report(read_result(renders.store, job.id)) for job in jobs)
    keys = [framed["request"][name] for name in ("first_frame", "last_frame")]
    assert [renders.store.get(key) for key in keys] == [
        (renders.framed.folder / name).read_bytes() for name in ("begin.jpg", "end.png")
    ]
    assert framed["request"] == plain["request"] | dict(zip(("first_frame", "last_frame"), keys, strict=True))
    for name in ("video", "audio"):
        assert framed["latents_sha256"][name] != plain["latents_sha256"][name]


@pytest.mark.slow
def test_a_request_for_tensor_mode_waits_for_a_worker_in_it_and_is_nearly_the_same_render(renders, full):
    """Without `full` of one rank: that two in tensor mode agree with one is asked in tests/tools, too."""
    assert renders.for_tensor.status().state == "waiting"
    world_size = 2 if full else 1
    renders.work("--mode", "tensor", "--ranks", str(world_size))
    provenance = renders.report(read_result(renders.store, renders.for_tensor.id))["provenance"]
    assert (provenance["mode"], provenance["world_size"]) == ("tensor", world_size)
    ours, theirs = (load_file(renders.last_checkpoint(job)) for job in (renders.for_tensor, renders.jobs[0]))
    for name in ("video", "audio"):  # 7e-4 was measured; another prompt makes 3e-3, a rank that is left out 1.5e-2
        assert 0 < (ours[name] - theirs[name]).norm() / theirs[name].norm() < 1.5e-3


def test_any_rq_client_sees_the_truth(renders):
    assert [job.status().state for job in renders.jobs] == ["finished"] * 3


def picture_size(path):
    with Image.open(path) as picture:
        return picture.size
