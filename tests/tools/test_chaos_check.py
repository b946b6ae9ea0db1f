"""What the check of `make chaos` says of a farm at rest, sound and damaged in every way that it is to notice."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import pytest
from redis import Redis

from jobs.client import Client
from jobs.events import Failed, Finished
from jobs.lease import Charge, Lease, Leases, Waiting
from jobs.store import Store, open_store
from tools.chaos import check
from tools.chaos.check import Kind

REPOSITORY = Path(__file__).parents[2]
REQUEST = {"prompt": "a red kite", "width": 32, "height": 32, "frames": 22, "seed": 3, "steps": 4}
PLAYLIST = '#EXTM3U\n#EXT-X-MAP:URI="{header}"\n#EXTINF:0.9,\nsegment-00000.m4s\n#EXT-X-ENDLIST\n'
LATENTS = {"video": "a1", "audio": "b2"}


@dataclass
class Farm:
    """Four jobs of one request: undisturbed, finished, finished in a second attempt, dead."""

    redis: Redis
    store: Store
    store_url: str
    jobs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client, self.leases = Client(self.redis), Leases(self.redis)
        self.undisturbed, self.plain, self.resumed, self.dead = [self.submit() for _ in range(4)]
        self.finish(self.undisturbed)
        self.finish(self.plain)
        self.claim(self.resumed).hand_back(Charge.INTERRUPTED, "the lease ran out: its worker is gone")
        self.store.put(f"{self.resumed}/attempts/1/init.mp4", b"header", content_type="video/mp4")
        self.finish(self.resumed, resumed={"step": 2})
        for number in range(3):
            self.claim(self.dead).hand_back(Charge.FATAL, f"rank {number} died")

    def submit(self) -> str:
        job_id = self.client.submit(REQUEST).id
        self.jobs[job_id] = "kite"
        return job_id

    def claim(self, job_id: str) -> Lease:
        lease = self.leases.claim(Waiting(job_id, "default", "", b"", 0.0), "w")
        assert lease is not None
        return lease

    def finish(self, job_id: str, resumed: dict[str, int] | None = None) -> None:
        lease = self.claim(job_id)
        folder = f"{job_id}/attempts/{lease.attempt}"
        header = "../1/init.mp4" if resumed else "init.mp4"
        bodies = {
            "init.mp4": b"header",
            "segment-00000.m4s": b"segment",
            "video.mp4": b"video",
            "playlist.m3u8": PLAYLIST.format(header=header).encode(),
            "report.json": json.dumps({"latents_sha256": LATENTS, "resumed": resumed}).encode(),
        }
        pieces = [self.put(f"{folder}/{name}", body) for name, body in bodies.items() if name != "init.mp4"]
        pieces.append(self.put(f"{job_id}/attempts/1/init.mp4", bodies["init.mp4"]))
        names = {"video_key": "video.mp4", "report_key": "report.json", "playlist_key": "playlist.m3u8"}
        keys = {key: f"{folder}/{name}" for key, name in names.items()}
        result = {"job_id": job_id, "attempt": lease.attempt, "request": REQUEST, "pieces": pieces, **keys}
        self.write(f"{job_id}/result.json", json.dumps(result).encode())
        told = Finished(attempt=lease.attempt, store_url=self.store_url, result_key=f"{job_id}/result.json", **keys)
        lease.finish(told, {"result_key": told.result_key})

    def put(self, key: str, body: bytes) -> dict[str, object]:
        self.write(key, body)
        return {"key": key, "size_bytes": len(body), "sha256": sha256(body).hexdigest()}

    def write(self, key: str, body: bytes) -> None:
        self.store.put(key, body, content_type="text/plain")

    def rewrite(self, job_id: str, name: str, old: bytes, new: bytes) -> None:
        """Change what an object says, and what the result says of it: only the content betrays it."""
        result = self.result(job_id)
        piece = next(piece for piece in result["pieces"] if piece["key"].endswith(name))
        body = self.store.get(piece["key"])
        assert old in body
        piece |= self.put(piece["key"], body.replace(old, new))
        self.change_result(job_id, pieces=result["pieces"])

    def result(self, job_id: str) -> dict:
        return json.loads(self.store.get(f"{job_id}/result.json"))

    def change_result(self, job_id: str, **fields: object) -> None:
        self.write(f"{job_id}/result.json", json.dumps(self.result(job_id) | fields).encode())

    def tell(self, job_id: str, **event: object) -> None:
        self.redis.xadd(f"h3:events:{job_id}", {"event": json.dumps(event)})

    def write_ledger(self, path: Path) -> Path:
        jobs = {job_id: name for job_id, name in self.jobs.items() if job_id != self.undisturbed}
        ledger = {"requests": {"kite": REQUEST}, "undisturbed": {"kite": self.undisturbed}, "jobs": jobs}
        path.write_text(json.dumps(ledger))
        return path


@pytest.fixture(params=["file", "s3"])
def farm(request, redis, tmp_path):
    if request.param == "file":
        store_url = request.getfixturevalue("file_store_url")
    else:
        store_url = request.getfixturevalue("s3_store_url")
    return Farm(redis, open_store(store_url), store_url)


@pytest.fixture
def file_farm(redis, file_store_url):
    return Farm(redis, open_store(file_store_url), file_store_url)


def run_script(farm: Farm, redis_url: str, tmp_path: Path) -> tuple[int, dict]:
    command = [sys.executable, "tools/chaos/check.py", str(farm.write_ledger(tmp_path / "ledger.json"))]
    command += ["--redis", redis_url, "--store", farm.store_url]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_sound_farm_passes(farm, redis_url, tmp_path):
    exit_code, told = run_script(farm, redis_url, tmp_path)
    assert (told["lost"], told["double"], told["wrong"]) == ([], [], [])
    assert exit_code == 0
    counts = told["counts"]
    assert (counts["jobs"], counts["finished"], counts["dead"]) == (3, 2, 1)
    assert (counts["retried"], counts["resumed"], counts["objects"]) == (2, 1, 3 * 5)
    assert told["dead_letters"] == {farm.dead: ["rank 0 died", "rank 1 died", "rank 2 died"]}


def test_a_missing_object_is_told_with_exit_code_1(farm, redis_url, tmp_path):
    farm.store.delete(f"{farm.resumed}/attempts/1/init.mp4")
    exit_code, told = run_script(farm, redis_url, tmp_path)
    assert exit_code == 1
    assert told["wrong"] == [f"{farm.resumed}: {farm.resumed}/attempts/1/init.mp4 is missing"]
    assert (told["lost"], told["double"]) == ([], [])


def find(farm: Farm, tmp_path: Path) -> dict[Kind, list[str]]:
    """In this process, for speed."""
    ledger = check.Ledger.read(farm.write_ledger(tmp_path / "ledger.json"))
    return check.check(farm.redis, check.open_objects(farm.store_url), ledger).findings


# --- each damages a farm, and returns the job that is to be named


def lose_result(farm: Farm) -> str:
    farm.store.delete(f"{farm.plain}/result.json")
    return farm.plain


def lose_record_too(farm: Farm) -> str:
    farm.redis.delete(f"rq:job:{farm.plain}", f"h3:events:{farm.plain}")
    return lose_result(farm)


def leave_claimed(farm: Farm) -> str:
    job_id = farm.submit()
    farm.claim(job_id)
    return job_id


def fail(farm: Farm) -> str:
    job_id = farm.submit()
    farm.claim(job_id).fail(Failed(attempt=1, cause="store", reason="no store"), "no store")
    return job_id


LOST = {
    "its result is gone": (lose_result, "neither result nor dead letter"),
    "result and record are gone": (lose_record_too, "neither result nor dead letter"),
    "nobody has taken it": (Farm.submit, "neither result nor dead letter: status 'queued'"),
    "its worker is gone": (leave_claimed, "status 'started'"),
    "it failed, with no dead letter": (fail, "outcome 'failed'"),
}


@pytest.mark.parametrize(("damage", "words"), LOST.values(), ids=LOST)
def test_a_lost_job_is_told(file_farm, tmp_path, damage, words):
    job_id = damage(file_farm)
    [told] = find(file_farm, tmp_path)[Kind.LOST]
    assert told.startswith(f"{job_id}: ")
    assert words in told


def queue_again(farm: Farm) -> str:
    farm.redis.rpush("rq:queue:default", farm.plain)
    return farm.plain


def queue_elsewhere(farm: Farm) -> str:
    farm.redis.lpush("rq:queue:batch", farm.dead)
    return farm.dead


def lease_after_the_end(farm: Farm) -> str:
    farm.redis.zadd("h3:leases", {farm.plain: 1})
    return farm.plain


def leave_in_work(farm: Farm) -> str:
    farm.redis.zadd("rq:wip:default", {f"{farm.plain}:1": 1})
    return farm.plain


def bury_alive(farm: Farm) -> str:
    farm.redis.zadd("h3:dead", {farm.plain: 1})
    return farm.plain


def enlist_as_failed(farm: Farm) -> str:
    farm.redis.zadd("rq:failed:default", {farm.plain: 1})
    return farm.plain


def publish_twice(farm: Farm) -> str:
    body = farm.store.get(f"{farm.plain}/result.json")
    farm.write(f"{farm.plain}/attempts/1/result.json", body)
    return farm.plain


def publish_dead(farm: Farm) -> str:
    farm.write(f"{farm.dead}/result.json", farm.store.get(f"{farm.plain}/result.json"))
    return farm.dead


def end_twice(farm: Farm) -> str:
    farm.tell(farm.plain, kind="finished", attempt=1)
    return farm.plain


def start_after_the_end(farm: Farm) -> str:
    farm.redis.hset(f"rq:job:{farm.plain}", "h3_attempts", 2)
    farm.tell(farm.plain, kind="started", attempt=2, worker="w")
    return farm.plain


def start_an_attempt_twice(farm: Farm) -> str:
    job_id = farm.submit()
    lease = farm.claim(job_id)
    farm.tell(job_id, kind="started", attempt=lease.attempt, worker="another")
    return job_id


def succeed_twice(farm: Farm) -> str:
    [(_, fields)] = farm.redis.xrange(f"rq:results:{farm.plain}")
    farm.redis.xadd(f"rq:results:{farm.plain}", fields)
    return farm.plain


def submit_unasked(farm: Farm) -> str:
    return farm.client.submit(REQUEST).id


def publish_unasked(farm: Farm) -> str:
    farm.write("stranger/result.json", b"{}")
    return "stranger"


DOUBLE = {
    "queued after its end": (queue_again, "still in ['rq:queue:default']"),
    "queued in another queue after its end": (queue_elsewhere, "still in ['rq:queue:batch']"),
    "leased after its end": (lease_after_the_end, "still in ['h3:leases']"),
    "still a run of RQ's": (leave_in_work, "still in ['rq:wip:default']"),
    "finished and dead": (bury_alive, "still in ['h3:dead']"),
    "finished and failed": (enlist_as_failed, "still in ['rq:failed:default']"),
    "a second result": (publish_twice, "2 results"),
    "dead with a result": (publish_dead, "a dead letter besides"),
    "its end is told twice": (end_twice, "its end was told 2 times"),
    "an attempt after its end": (start_after_the_end, "after its end came ['started']"),
    "an attempt by two workers": (start_an_attempt_twice, "attempts [1, 1] were started"),
    "two successes": (succeed_twice, "2 successes"),
    "a job that nobody asked for": (submit_unasked, "nobody has asked for it"),
    "a result that nobody asked for": (publish_unasked, "nobody has asked for it"),
}


@pytest.mark.parametrize(("damage", "words"), DOUBLE.values(), ids=DOUBLE)
def test_a_doubled_job_is_told(file_farm, tmp_path, damage, words):
    job_id = damage(file_farm)
    told = find(file_farm, tmp_path)[Kind.DOUBLE]
    assert {text.partition(":")[0] for text in told} == {job_id}
    assert [text for text in told if words in text]


def lose_object(farm: Farm) -> str:
    farm.store.delete(f"{farm.plain}/attempts/1/segment-00000.m4s")
    return farm.plain


def lose_kept_object(farm: Farm) -> str:
    farm.store.delete(f"{farm.resumed}/attempts/1/init.mp4")
    return farm.resumed


def change_object(farm: Farm) -> str:
    farm.write(f"{farm.plain}/attempts/1/video.mp4", b"VIDEO")  # as long as it was
    return farm.plain


def cut_object(farm: Farm) -> str:
    farm.write(f"{farm.plain}/attempts/1/video.mp4", b"vid")
    return farm.plain


def change_latents(farm: Farm) -> str:
    farm.rewrite(farm.resumed, "report.json", b"b2", b"b3")
    return farm.resumed


def cut_playlist(farm: Farm) -> str:
    farm.rewrite(farm.plain, "playlist.m3u8", b"#EXT-X-ENDLIST", b"")
    return farm.plain


def play_a_segment_twice(farm: Farm) -> str:
    once = b"#EXTINF:0.9,\nsegment-00000.m4s\n"
    farm.rewrite(farm.plain, "playlist.m3u8", once, 2 * once)
    return farm.plain


def play_what_is_not_there(farm: Farm) -> str:
    farm.rewrite(farm.plain, "playlist.m3u8", b"segment-00000", b"segment-00001")
    return farm.plain


def name_without_checksum(farm: Farm) -> str:
    pieces = [piece for piece in farm.result(farm.plain)["pieces"] if not piece["key"].endswith("video.mp4")]
    farm.change_result(farm.plain, pieces=pieces)
    return farm.plain


def publish_of_another_job(farm: Farm) -> str:
    farm.write(f"{farm.plain}/result.json", farm.store.get(f"{farm.resumed}/result.json"))
    return farm.plain


def name_a_foreign_object(farm: Farm) -> str:
    pieces = farm.result(farm.plain)["pieces"] + farm.result(farm.resumed)["pieces"][:1]
    farm.change_result(farm.plain, pieces=pieces)
    return farm.plain


def misplace_result(farm: Farm) -> str:
    farm.write(f"{farm.plain}/attempts/1/result.json", farm.store.get(f"{farm.plain}/result.json"))
    farm.store.delete(f"{farm.plain}/result.json")
    return farm.plain


def publish_of_another_request(farm: Farm) -> str:
    farm.change_result(farm.plain, request=REQUEST | {"seed": 4})
    return farm.plain


def publish_of_another_attempt(farm: Farm) -> str:
    farm.change_result(farm.resumed, attempt=1)
    return farm.resumed


def publish_nonsense(farm: Farm) -> str:
    farm.write(f"{farm.plain}/result.json", b"{")
    return farm.plain


def forget_reasons(farm: Farm) -> str:
    farm.redis.delete(f"h3:losses:{farm.dead}")
    return farm.dead


def give_no_reason(farm: Farm) -> str:
    loss = json.loads(farm.redis.lindex(f"h3:losses:{farm.dead}", 1)) | {"reason": ""}
    farm.redis.lset(f"h3:losses:{farm.dead}", 1, json.dumps(loss))
    return farm.dead


def die_early(farm: Farm) -> str:
    farm.redis.rpop(f"h3:losses:{farm.dead}")
    return farm.dead


def forget_letter(farm: Farm) -> str:
    farm.redis.zrem("h3:dead", farm.dead)
    return farm.dead


def forget_end(farm: Farm) -> str:
    [*_, (last, _)] = farm.redis.xrange(f"h3:events:{farm.plain}")
    farm.redis.xdel(f"h3:events:{farm.plain}", last)
    return farm.plain


def forget_attempt(farm: Farm) -> str:
    farm.redis.hset(f"rq:job:{farm.plain}", "h3_attempts", 2)
    return farm.plain


def forget_outcome(farm: Farm) -> str:
    farm.redis.hset(f"rq:job:{farm.plain}", "h3_outcome", "failed")
    return farm.plain


def disturb_the_reference(farm: Farm) -> str:
    farm.redis.hset(f"rq:job:{farm.undisturbed}", "h3_attempts", 2)
    return farm.undisturbed


WRONG = {
    "an object is missing": (lose_object, "segment-00000.m4s is missing"),
    "an object of an earlier attempt is missing": (lose_kept_object, "attempts/1/init.mp4 is missing"),
    "an object differs": (change_object, "video.mp4 differs"),
    "an object is cut short": (cut_object, "video.mp4 differs: 3 bytes"),
    "its latents differ": (change_latents, "its latents differ"),
    "its playlist has no end": (cut_playlist, "no end"),
    "its playlist has a segment twice": (play_a_segment_twice, "its segments are"),
    "its playlist names what is not there": (play_what_is_not_there, "its playlist names"),
    "its video has no checksum": (name_without_checksum, "no checksum"),
    "its result is another job's": (publish_of_another_job, "its result is of job"),
    "its result is of another request": (publish_of_another_request, "another request: ['seed']"),
    "its result is of another attempt": (publish_of_another_attempt, "its result is of attempt 1"),
    "its result names another job's object": (name_a_foreign_object, "is of another job"),
    "its result lies elsewhere": (misplace_result, "its result is "),
    "its result cannot be read": (publish_nonsense, "cannot be followed"),
    "dead with no reasons": (forget_reasons, "dead after {}"),
    "dead with a reason missing": (give_no_reason, "dead without a reason"),
    "dead too early": (die_early, "dead after {'fatal': 2}"),
    "dead, and in no list of the dead": (forget_letter, "but not in ['h3:dead']"),
    "its end was not told": (forget_end, "but told was []"),
    "an attempt was not told": (forget_attempt, "2 attempts, but [1] were started"),
    "failed with a result": (forget_outcome, "a result, but status"),
    "the undisturbed run was disturbed": (disturb_the_reference, "the undisturbed run of kite was disturbed"),
}


@pytest.mark.parametrize(("damage", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_job_is_told(file_farm, tmp_path, damage, words):
    job_id = damage(file_farm)
    told = find(file_farm, tmp_path)[Kind.WRONG]
    assert {text.partition(":")[0] for text in told} == {job_id}
    assert [text for text in told if words in text]
