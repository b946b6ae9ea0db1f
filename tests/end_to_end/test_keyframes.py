"""A render with a first and a last frame, from picture files to the result; and a picture that is damaged."""

import json

import pytest
from PIL import Image
from redis import Redis

from jobs.client import Client
from jobs.errors import JobFailed
from jobs.pictures import put_picture
from jobs.result import read_result
from jobs.store import open_store
from tests.end_to_end.conftest import run

CLIP = {"width": 96, "height": 64, "frames": 22, "steps": 2, "seed": 7, "preview_every": 0, "checkpoint_every": 0}
PROMPT = "a paper boat in the rain"


class Farm:
    """What one worker has made of three jobs."""

    def __init__(self, client, url, folder):
        self.client, self.url, self.store = client, url, open_store((folder / "store").as_uri())
        self.folder = folder
        begin, end = (self.write(name, colour) for name, colour in (("begin.jpg", "red"), ("end.png", "blue")))
        self.damaged = self.submit(last_frame=put_picture(self.store, self.write_damaged()))
        self.plain = self.submit()
        self.framed = self.submit_by_command("--first-frame", str(begin), "--last-frame", str(end))

    def write(self, name, colour):
        Image.new("RGB", (120, 50), colour).save(self.folder / name)
        return self.folder / name

    def write_damaged(self):
        """Its first bytes are those of a picture."""
        whole = self.write("whole.png", "green")
        (self.folder / "cut.png").write_bytes(whole.read_bytes()[:-40])
        return self.folder / "cut.png"

    def submit(self, **frames):
        return self.client.submit({"prompt": PROMPT, **CLIP, **frames})

    def submit_by_command(self, *flags):
        fields = [part for name, value in CLIP.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        store = (self.folder / "store").as_uri()
        done = run("submit", PROMPT, *fields, *flags, "--url", self.url, "--store", store)
        assert done.returncode == 0, done.stderr
        return self.client.job(done.stdout.strip())

    def work(self, checkpoint):
        where = ("--checkpoint", str(checkpoint), "--url", self.url, "--store", (self.folder / "store").as_uri())
        done = run("worker", "--burst", *where, H3_LOG_FORMAT="json")
        assert done.returncode == 0, done.stderr
        self.log = done.stderr

    def report(self, job):
        return json.loads(self.store.get(read_result(self.store, job.id).report_key))


@pytest.fixture(scope="module")
def farm(shared_redis, checkpoint, tmp_path_factory):
    with Redis.from_url(shared_redis.url) as redis:
        redis.flushall()
        farm = Farm(Client(redis), shared_redis.url, tmp_path_factory.mktemp("farm"))
        farm.work(checkpoint)
        yield farm


def test_a_render_with_both_frames_is_another_one_and_its_report_names_them(farm):
    framed, plain = farm.report(farm.framed), farm.report(farm.plain)
    keys = [framed["request"][name] for name in ("first_frame", "last_frame")]
    assert [farm.store.get(key) for key in keys] == [
        (farm.folder / name).read_bytes() for name in ("begin.jpg", "end.png")
    ]
    assert framed["request"] == plain["request"] | dict(zip(("first_frame", "last_frame"), keys, strict=True))
    for name in ("video", "audio"):
        assert framed["latents_sha256"][name] != plain["latents_sha256"][name]


def test_a_picture_that_cannot_be_decoded_fails_its_job_and_leaves_the_fleet_alone(farm):
    with pytest.raises(JobFailed, match=r"attempt 1: inputs/\w+\.png: a damaged picture .* save it anew"):
        farm.damaged.wait(timeout_s=5)
    assert [event.kind for event in farm.damaged.news()] == ["queued", "started", "failed"]
    assert farm.damaged.news()[-1].cause == "request"
    assert farm.log.count("starting the fleet") == 1  # and it has rendered the jobs behind
